package broker

import (
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/wire"
)

// mint signs tokens of one cell.
type mint struct {
	t   testing.TB
	key ed25519.PrivateKey
}

func newMint(t testing.TB) *mint {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &mint{t, key}
}

func (m *mint) tenancy(c *Config) {
	pub := m.key.Public().(ed25519.PublicKey)
	c.Tenancy, c.Cell, c.Keys = true, "cell-1", map[string]ed25519.PublicKey{wire.KeyID(pub): pub}
}

func (m *mint) token(c wire.CellClaims) string {
	m.t.Helper()
	if c.Expires.IsZero() {
		c.Expires = time.Now().Add(time.Minute)
	}
	token, err := wire.SignCell(m.key, "cell-1", c, time.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	return "Bearer " + token
}

// headers are those of a gateway's request for a tenant.
func (m *mint) headers(tenant uuid.UUID, access wire.Access) []string {
	return []string{wire.HeaderTenant, tenant.String(), "Authorization", m.token(wire.CellClaims{Tenant: tenant, Access: access, Subject: "key-1"})}
}

func TestTheTenantComesFromTheTokenAlone(t *testing.T) {
	t.Parallel()
	m, other := newMint(t), newMint(t)
	w := setup(t, m.tenancy)
	tenant, stranger := uuid.New(), uuid.New()
	good := m.token(wire.CellClaims{Tenant: tenant, Access: wire.AccessReadWrite})
	const push = `{"items":[{"queue":"q","payload":1}]}`
	for name, c := range map[string]struct {
		headers []string
		status  int
		code    wire.Code
	}{
		"neither":                {nil, 400, wire.TenantRequired},
		"two headers, no token":  {[]string{wire.HeaderTenant, tenant.String(), wire.HeaderTenant, tenant.String()}, 400, wire.TenantAmbiguous},
		"header without a token": {[]string{wire.HeaderTenant, tenant.String()}, 401, wire.Unauthorized},
		"token without a header": {[]string{"Authorization", good}, 400, wire.TenantRequired},
		"empty header":           {[]string{"Authorization", good, wire.HeaderTenant, ""}, 400, wire.TenantRequired},
		"two headers":            {[]string{"Authorization", good, wire.HeaderTenant, tenant.String(), wire.HeaderTenant, tenant.String()}, 400, wire.TenantAmbiguous},
		"malformed header":       {[]string{"Authorization", good, wire.HeaderTenant, "acme"}, 400, wire.InvalidRequest},
		"braced header":          {[]string{"Authorization", good, wire.HeaderTenant, "{" + tenant.String() + "}"}, 400, wire.InvalidRequest},
		"another tenant":         {[]string{"Authorization", good, wire.HeaderTenant, stranger.String()}, 400, wire.TenantAmbiguous},
		"two tokens":             {[]string{"Authorization", good, "Authorization", good, wire.HeaderTenant, tenant.String()}, 400, wire.InvalidRequest},
		"another's key":          {other.headers(tenant, wire.AccessReadWrite), 401, wire.Unauthorized},
		"expired":                {[]string{"Authorization", m.token(wire.CellClaims{Tenant: tenant, Access: wire.AccessReadWrite, Expires: time.Now().Add(-time.Minute)}), wire.HeaderTenant, tenant.String()}, 401, wire.Unauthorized},
		"read-only token":        {m.headers(tenant, wire.AccessReadOnly), 403, wire.Forbidden},
		"internal token":         {m.headers(tenant, wire.AccessInternal), 403, wire.Forbidden},
	} {
		a := w.do("POST", "/api/v1/push", push, c.headers...)
		var r refusal
		if err := json.Unmarshal([]byte(a.body), &r); err != nil || a.status != c.status || r.Code != c.code {
			t.Errorf("%s: %d %s (%v)", name, a.status, a.body, err)
		}
	}
	w.push(push, m.headers(tenant, wire.AccessWriteOnly)...)
	w.push(push, append(m.headers(tenant, wire.AccessWriteOnly), "X-Other", "x")...)
	upper := m.headers(tenant, wire.AccessReadWrite)
	upper[1] = strings.ToUpper(upper[1])
	got := w.pop("q", upper...)
	if len(got.Messages) != 2 || got.Messages[0].ProducerSub == nil || *got.Messages[0].ProducerSub != "key-1" {
		t.Errorf("the tenant's own pop: %+v", got)
	}
	if got := w.pop("q", m.headers(stranger, wire.AccessReadWrite)...); got.Messages != nil {
		t.Errorf("another tenant sees %+v", got)
	}
	// A partition of another tenant is one that does not exist.
	body, err := json.Marshal(map[string]string{"transactionId": got.Messages[0].TransactionID, "partitionId": got.Messages[0].PartitionID})
	if err != nil {
		t.Fatal(err)
	}
	mine := w.do("POST", "/api/v1/ack", string(body), m.headers(stranger, wire.AccessReadWrite)...).want(t, 200)
	absent := w.do("POST", "/api/v1/ack", strings.Replace(string(body), got.Messages[0].PartitionID, uuid.NewString(), 1), m.headers(stranger, wire.AccessReadWrite)...).want(t, 200)
	if mine.body != absent.body || strings.Contains(mine.body, `"success":true`) {
		t.Errorf("foreign: %s\nabsent:  %s", mine.body, absent.body)
	}
	w.do("GET", "/livez", "").want(t, 200)
}

func TestAuthorizationMatrix(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	tenant := uuid.New()
	fill := strings.NewReplacer(":queue", "q", ":partition", "p", ":lease", uuid.NewString(), ":tenant", tenant.String())
	for _, r := range wire.Routes {
		for _, access := range []wire.Access{wire.AccessReadOnly, wire.AccessWriteOnly, wire.AccessReadWrite, wire.AccessAdmin, wire.AccessInternal} {
			a := w.do(r.Method, fill.Replace(r.Pattern), "", m.headers(tenant, access)...)
			if refused := a.status == 403; refused == access.Admits(r.Access) {
				t.Errorf("%s %s with %v: %d %s", r.Method, r.Pattern, access, a.status, a.body)
			}
		}
	}
}

// Whatever a broker remembers, it remembers by tenant: the same names mean other things to another one.
func TestTenantsWithTheSameNamesMeetNowhere(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	mine, theirs := m.headers(uuid.New(), wire.AccessReadWrite), m.headers(uuid.New(), wire.AccessReadWrite)
	const poll = "q?consumerGroup=g&subscriptionMode=all&autoAck=true" // no lease of the one hides from the other
	push := func(txn string, h []string) {
		w.push(`{"items":[{"queue":"q","partition":"p","transactionId":"`+txn+`","payload":1}]}`, h...)
	}
	push("mine", mine)
	first := w.pop(poll, mine...)
	if len(first.Messages) != 1 || first.Messages[0].TransactionID != "mine" {
		t.Fatalf("the owner got %+v", first)
	}
	push("mine-too", mine)
	if got := w.pop(poll, theirs...); got.Messages != nil {
		t.Errorf("before they push anything, others get %+v", got)
	}
	push("mine", theirs) // no duplicate: the id is another tenant's
	got := w.pop(poll, theirs...)
	if len(got.Messages) != 1 || got.Messages[0].TransactionID != "mine" || got.Messages[0].ID == first.Messages[0].ID {
		t.Errorf("others got %+v, want their own only", got)
	}
	if got := w.pop(poll+"&partitions=0", theirs...); got.Messages != nil {
		t.Errorf("others got more: %+v", got)
	}
}

func TestCapsOfTheTokenRefuseTheWholeRequest(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	tenant, two := uuid.New(), int64(2)
	headers := []string{
		wire.HeaderTenant, tenant.String(), "Authorization",
		m.token(wire.CellClaims{Tenant: tenant, Access: wire.AccessReadWrite, MaxQueues: &two, MaxPartitions: &two}),
	}
	w.push(`{"items":[{"queue":"a","payload":1}]}`, headers...)
	a := w.do("POST", "/api/v1/push", `{"items":[{"queue":"a","payload":1},{"queue":"b","payload":1},{"queue":"c","payload":1}]}`, headers...)
	if a.status != 403 || !strings.Contains(a.body, `"code":"quota_exceeded"`) || !strings.Contains(a.body, `"limit":{"name":"queues","limit":2`) {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if got := w.pop("a", headers...); len(got.Messages) != 1 {
		t.Errorf("a refused request stored something: %+v", got)
	}
	w.push(`{"items":[{"queue":"b","payload":1}]}`, headers...)
	if a := w.do("POST", "/api/v1/configure", `{"queue":"c"}`, headers...); a.status != 403 {
		t.Errorf("configure over the cap: %d %s", a.status, a.body)
	}
	internal := []string{"Authorization", m.token(wire.CellClaims{Access: wire.AccessInternal})}
	usage := w.do("POST", "/internal/v1/tenants/usage", `{"tenants":["`+tenant.String()+`","`+uuid.Nil.String()+`"]}`, internal...).want(t, 200)
	if !strings.HasPrefix(usage.body, `{"tenants":[{"tenant":"`+tenant.String()+`","retained_bytes":2,"queues":2,"computed_at":"`) {
		t.Error(usage.body)
	}
	names := w.do("GET", "/internal/v1/tenants/"+tenant.String()+"/names?limit=2", "", internal...).want(t, 200)
	if names.body != `{"names":[{"queue":"a","partition":"Default"},{"queue":"b","partition":"Default"}],"more":true}` {
		t.Error(names.body)
	}
	names = w.do("GET", "/internal/v1/tenants/"+tenant.String()+"/names?limit=2&after_queue=b&after_partition=Default", "", internal...).want(t, 200)
	if names.body != `{"names":[],"more":false}` {
		t.Error(names.body)
	}
}

// A token that is remembered ends when it says, like one that is new (W19: there it never ends).
func TestARememberedTokenEndsInTime(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	tenant, now := uuid.New(), time.Now()
	var h fasthttp.RequestHeader
	h.Set(wire.HeaderTenant, tenant.String())
	h.Set("Authorization", m.token(wire.CellClaims{Tenant: tenant, Access: wire.AccessReadWrite, Expires: now.Add(time.Minute)}))
	route, _, err := wire.Match("POST", []byte("/api/v1/push"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := w.b.verifier.identify(&h, nil, route, now); err != nil {
			t.Errorf("while it is good: %v", err)
		}
	}
	if _, err := w.b.verifier.identify(&h, nil, route, now.Add(2*time.Minute)); wire.AsError(err) == nil || wire.AsError(err).Code != wire.Unauthorized {
		t.Errorf("afterwards: %v", err)
	}
}

// TestATenantWeighsWhatItsNewestTokenStates, and as usual when that states nothing, as those of older gateways.
func TestATenantWeighsWhatItsNewestTokenStates(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	tenant := uuid.New()
	small, large := 50.0, 600.0
	for _, c := range []struct {
		rate *float64
		want fair.Weight
	}{{&large, 6 * fair.Usual}, {nil, fair.Usual}, {&small, fair.Usual / 2}} {
		token := m.token(wire.CellClaims{Tenant: tenant, Access: wire.AccessReadWrite, RequestsPerSecond: c.rate})
		w.do("GET", "/api/v1/pop/queue/none", "", wire.HeaderTenant, tenant.String(), "Authorization", token).want(t, 204)
		if got := w.b.weights.Of(tenant); got != c.want {
			t.Errorf("it weighs %d, want %d", got, c.want)
		}
	}
}
