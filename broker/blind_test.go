package broker

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// A token that withholds payloads is shown messages without them, and gives nothing that only hands out payloads. That no
// route of reading forgets it is shown through a gateway, by internal/e2e TestReadingShowsPayloadsToWhoMaySeeThem.
func TestATokenWithholdsPayloads(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, func(c *Config) {
		m.tenancy(c)
		with(testKey(t, 1))(c)
	})
	tenant := uuid.New()
	full := m.headers(tenant, wire.AccessReadWrite)
	blind := func(access wire.Access) []string {
		return []string{wire.HeaderTenant, tenant.String(), "Authorization", m.token(wire.CellClaims{Tenant: tenant, Access: access, WithholdPayloads: true})}
	}
	w.do("POST", "/api/v1/configure", `{"queue":"sealed","options":{"encryptionEnabled":true}}`, full...).want(t, 200)
	w.push(`{"items":[{"queue":"open","transactionId":"a","payload":{"n":"secret"}},{"queue":"sealed","transactionId":"b","payload":{"n":"secret"}}]}`, blind(wire.AccessWriteOnly)...)

	for queue, encrypted := range map[string]string{"open": "false", "sealed": "true"} {
		if seen := w.do("GET", "/api/v1/messages?queue="+queue, "", full...).want(t, 200).body; strings.Count(seen, "secret") != 2 {
			t.Errorf("who may see payloads is shown %s", seen)
		}
		a := w.do("GET", "/api/v1/messages?queue="+queue, "", blind(wire.AccessReadOnly)...).want(t, 200)
		for _, part := range []string{`"payloadAvailable":false`, `"data":null,"payload":null,"isEncrypted":` + encrypted + `,"payloadWithheld":true`} {
			if strings.Count(a.body, part) != 1 || strings.Contains(a.body, "secret") || strings.Contains(a.body, "payloadError") {
				t.Errorf("who may not is shown %s, without %s", a.body, part)
			}
		}
	}

	// Whatever its level, it does not consume.
	fill := strings.NewReplacer(":queue", "open", ":partition", "Default", ":lease", uuid.NewString())
	for i := range wire.Routes {
		if r := &wire.Routes[i]; r.Class == wire.ClassConsume {
			if a := w.do(r.Method, fill.Replace(r.Pattern), "", blind(wire.AccessAdmin)...); a.status != 403 {
				t.Errorf("%s %s: %d %s", r.Method, r.Pattern, a.status, a.body)
			}
		}
	}
}
