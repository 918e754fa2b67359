package e2e

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/wire"
)

// The attacks of this file are told by bytes, to the processes as they run: what a library of HTTP would refuse to send is
// what an attacker sends. Each row is named by the rule it attacks; docs/design/known-faults.md says where the other
// security rules are tested.

// raw sends bytes to an address and returns the first answer; ended reports whether the server then closes.
func raw(t *testing.T, address, text string) (r reply, ended bool) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// A server that has refused on the head may close before a long body is through.
	_, writeErr := io.WriteString(conn, text)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatalf("no answer: %v (written: %v)", err, writeErr)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Close {
		_, err = br.ReadByte()
		ended = err != nil
	}
	return reply{resp.StatusCode, resp.Header, body}, ended
}

// tenantOf is the id by which brokers know the cluster's tenant.
func (c *cluster) tenantOf(t *testing.T) uuid.UUID {
	t.Helper()
	var id uuid.UUID
	if err := c.db.QueryRow(t.Context(), `SELECT broker_tenant_uuid::text FROM queengate.clusters WHERE id = $1::uuid`, c.id).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// sharedCellKey is the key with which the shared system's gateway signs.
func sharedCellKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	shared(t)
	key, err := datadir.CellKey(sharedSystem.dir)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// cellToken is what a gateway with the key states to a broker of the cell.
func cellToken(t *testing.T, key ed25519.PrivateKey, cell string, claims wire.CellClaims) string {
	t.Helper()
	now := time.Now()
	if claims.Expires.IsZero() {
		claims.Expires = now.Add(time.Hour) // rows may wait long for their turn
	} else if claims.Expires.Before(now) {
		now = claims.Expires.Add(-time.Minute) // it was good once
	}
	token, err := wire.SignCell(key, cell, claims, now)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// localCell is the cell of `queengate up`.
const localCell = "local"

// TestSpoofedHeaders (S4): no header makes a client another, or tells the broker anything. The victim's queue is never in
// an answer, whatever the answer is.
func TestSpoofedHeaders(t *testing.T) {
	t.Parallel()
	s := shared(t)
	c, victim := s.newCluster(t, ""), s.newCluster(t, "")
	c.push(t, m{"items": []m{{"queue": "mine", "payload": 1}}})
	victim.push(t, m{"items": []m{{"queue": "secret", "payload": 1}}})
	tenant := victim.tenantOf(t).String()
	stolen := cellToken(t, sharedCellKey(t), localCell, wire.CellClaims{Tenant: victim.tenantOf(t), Access: wire.AccessAdmin, Subject: "x"})
	auth := "Authorization: Bearer " + c.full

	for rule, tt := range map[string]struct {
		head   []string // lines, beside Host; {auth} is the client's own credential
		status int
	}{
		"a tenant":                               {[]string{auth, "x-queen-tenant: " + tenant}, 200},
		"a tenant in another case":               {[]string{auth, "X-QuEeN-tEnAnT: " + tenant}, 200},
		"a tenant with underscores":              {[]string{auth, "X_Queen_Tenant: " + tenant}, 200},
		"a tenant with one underscore":           {[]string{auth, "X-Queen_Tenant: " + tenant}, 200},
		"a tenant twice":                         {[]string{auth, "X-Queen-Tenant: " + tenant, "X-Queen-Tenant: " + tenant}, 200},
		"a tenant before the credential":         {[]string{"X-Queen-Tenant: " + tenant, auth}, 200},
		"a tenant with blanks":                   {[]string{auth, "X-Queen-Tenant: \t " + tenant + " \t"}, 200},
		"a tenant behind a space":                {[]string{auth, "X-Queen-Tenant : " + tenant}, 400},
		"a tenant on a folded line":              {[]string{auth, "X-A: b", " X-Queen-Tenant: " + tenant}, 400},
		"a tenant behind a bare line feed":       {[]string{auth, "X-A: b\nX-Queen-Tenant: " + tenant}, 400},
		"a tenant behind a bare carriage return": {[]string{auth, "X-A: b\rX-Queen-Tenant: " + tenant}, 400},
		"a tenant behind a NUL":                  {[]string{auth, "X-A: b\x00X-Queen-Tenant: " + tenant}, 400},
		"a tenant for the hop":                   {[]string{auth, "Connection: X-Queen-Tenant", "X-Queen-Tenant: " + tenant}, 200},
		"ours taken off as hop by hop":           {[]string{auth, "Connection: close, X-Queen-Tenant, Authorization, X-Queen-Request-Id"}, 200},
		"the words of a gateway": {[]string{
			auth, "X-Queen-Request-Id: evil", "X-Queen-Delivered: 9", "X-Queen-Stored: 9", "X-Queen-Draining: true",
			"X-Queen-Cluster: " + victim.slug, "X-Queen-Access: admin", "X-Queen-Producer: evil", "X-Queen-Degraded: 1",
		}, 200},
		"a forwarded host":                  {[]string{auth, "X-Forwarded-Host: " + victim.slug + ".localhost", "Forwarded: host=" + victim.slug + ".localhost;for=127.0.0.1"}, 200},
		"a forwarded path":                  {[]string{auth, "X-Forwarded-Prefix: /x", "X-Original-URL: /api/v1/status", "X-Rewrite-URL: /api/v1/status"}, 200},
		"a method in a header":              {[]string{auth, "X-HTTP-Method-Override: DELETE", "X-Method-Override: DELETE"}, 200},
		"a cluster to act on, with a key":   {[]string{auth, "X-Queen-Act-Cluster: " + victim.slug}, 403},
		"its own cluster, with a key":       {[]string{auth, "X-Queen-Act-Cluster: " + c.slug}, 403},
		"a gateway's token at the gateway":  {[]string{"Authorization: Bearer " + stolen, "X-Queen-Tenant: " + tenant}, 401},
		"a credential of a proxy":           {[]string{"Proxy-Authorization: Bearer " + c.full}, 401},
		"a credential in a cookie":          {[]string{"Cookie: token=" + c.full + "; session=" + c.full}, 401},
		"a credential under another name":   {[]string{"X-Api-Key: " + c.full, "Api-Key: " + c.full}, 401},
		"two credentials":                   {[]string{auth, "Authorization: Bearer " + victim.full}, 400},
		"two credentials on one line":       {[]string{auth + ", Bearer " + victim.full}, 401},
		"a credential of underscore naming": {[]string{"Authorization_: Bearer " + c.full}, 401},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			r, _ := raw(t, s.proc.Credentials.GatewayURL, "GET /api/v1/resources/queues HTTP/1.1\r\nHost: localhost\r\n"+strings.Join(tt.head, "\r\n")+"\r\n\r\n")
			if r.status != tt.status {
				t.Errorf("got %d %s, want %d", r.status, r.body, tt.status)
			}
			if strings.Contains(string(r.body), "secret") || r.status == 200 && !strings.Contains(string(r.body), `"mine"`) {
				t.Errorf("the answer is about another: %s", r.body)
			}
			if id := r.header.Get("X-Queen-Request-Id"); id == "" || id == "evil" {
				t.Errorf("request id %q", id)
			}
			for _, name := range []string{"X-Queen-Tenant", "X-Queen-Delivered", "X-Queen-Stored"} {
				if v := r.header.Get(name); v != "" {
					t.Errorf("the answer says %s: %s", name, v)
				}
			}
		})
	}
	t.Run("an address of a client's choice opens no key", func(t *testing.T) {
		bound := s.newKey(t, c.id, []string{"read"})
		c.exec(t, `UPDATE queengate.api_keys SET allowed_cidrs = '{10.9.8.0/24}' WHERE hash = sha256(convert_to($1, 'UTF8'))`, bound)
		c.settle(t)
		for _, name := range []string{"X-Forwarded-For", "X-Real-IP", "Client-IP", "True-Client-IP", "CF-Connecting-IP", "Forwarded"} {
			value := "10.9.8.7"
			if name == "Forwarded" {
				value = "for=10.9.8.7"
			}
			if r := c.call(t, "GET", "/api/v1/resources/queues", nil, key(bound), header(name, value)); r.status != http.StatusForbidden {
				t.Errorf("%s: %d %s", name, r.status, r.body)
			}
		}
	})
}

// TestTrailers (S5): a trailer, announced or not, never reaches a broker as a header nor moves one of ours behind the
// body. It is refused at both ends, whether the body is small enough to be there at once or streams in.
func TestTrailers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	c, victim := s.newCluster(t, ""), s.newCluster(t, "")
	tenant, own := victim.tenantOf(t), c.tenantOf(t)
	token := cellToken(t, sharedCellKey(t), localCell, wire.CellClaims{Tenant: own, Access: wire.AccessReadWrite, Subject: "x"})
	names := []string{
		wire.HeaderTenant, wire.HeaderRequestID, wire.HeaderActCluster, wire.HeaderDelivered, wire.HeaderStored, wire.HeaderDraining,
		"Authorization", "Host", "Content-Length", "Transfer-Encoding",
	}
	bodies := map[string]string{
		"small":    `{"items":[{"queue":"stolen","payload":1}]}`,
		"streamed": `{"items":[{"queue":"stolen","payload":"` + strings.Repeat("x", 300<<10) + `"}]}`,
	}
	ends := map[string]struct{ address, head string }{
		"the gateway": {s.proc.Credentials.GatewayURL, "Host: localhost\r\nAuthorization: Bearer " + c.full + "\r\n"},
		"the broker":  {s.proc.Credentials.BrokerURL, "Host: localhost\r\nAuthorization: Bearer " + token + "\r\nX-Queen-Tenant: " + own.String() + "\r\n"},
	}
	for end, at := range ends {
		for _, name := range names {
			for size, body := range bodies {
				chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n", len(body), body)
				trailer := name + ": " + tenant.String() + "\r\n\r\n"
				for form, request := range map[string]string{
					"announced, chunked":     "Trailer: " + name + "\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + trailer,
					"unannounced, chunked":   "Transfer-Encoding: chunked\r\n\r\n" + chunk + trailer,
					"announced, with length": fmt.Sprintf("Trailer: %s\r\nContent-Length: %d\r\n\r\n%s", name, len(body), body),
				} {
					t.Run(strings.Join([]string{end, name, size, form}, " "), func(t *testing.T) {
						t.Parallel()
						r, ended := raw(t, at.address, "POST /api/v1/push HTTP/1.1\r\n"+at.head+request)
						if r.status != http.StatusBadRequest || !ended {
							t.Errorf("got %d %s, ended %v", r.status, r.body, ended)
						}
					})
				}
			}
		}
	}
	// The broker fails closed where the head does not name the tenant once.
	for rule, head := range map[string]string{
		"no tenant":                     "",
		"two tenants":                   "X-Queen-Tenant: " + own.String() + "\r\nX-Queen-Tenant: " + tenant.String() + "\r\n",
		"the same tenant twice":         "X-Queen-Tenant: " + own.String() + "\r\nX-Queen-Tenant: " + own.String() + "\r\n",
		"a tenant in a trailer only":    "Trailer: X-Queen-Tenant\r\n",
		"a tenant with underscores":     "X_Queen_Tenant: " + own.String() + "\r\n",
		"a tenant and another's beside": "X-Queen-Tenant: " + own.String() + ", " + tenant.String() + "\r\n",
	} {
		t.Run("the broker, "+rule, func(t *testing.T) {
			t.Parallel()
			body := bodies["small"]
			r, _ := raw(t, s.proc.Credentials.BrokerURL, "POST /api/v1/push HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer "+token+"\r\n"+head+
				fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
			if r.status != http.StatusBadRequest {
				t.Errorf("got %d %s", r.status, r.body)
			}
		})
	}
	t.Cleanup(func() {
		for who, of := range map[string]uuid.UUID{"the attacker": own, "the victim": tenant, "the default tenant": uuid.Nil} {
			var n int
			if err := s.db.QueryRow(context.Background(), `SELECT count(*) FROM queen.queues WHERE name = 'stolen' AND tenant_id = $1::uuid`, of.String()).Scan(&n); err != nil || n != 0 {
				t.Errorf("%s has %d queues of a refused push (%v)", who, n, err)
			}
		}
	})
}

// TestBrokerTrust (S7): a broker's port believes nothing but a token of the cell's key for this cell, in force, at the
// route's level, for the tenant that the request names.
func TestBrokerTrust(t *testing.T) {
	t.Parallel()
	s := shared(t)
	c, victim := s.newCluster(t, ""), s.newCluster(t, "")
	own, other := c.tenantOf(t), victim.tenantOf(t)
	victim.push(t, m{"items": []m{{"queue": "secret", "payload": 1}}})
	key := sharedCellKey(t)
	public, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	claims := func(a wire.Access) wire.CellClaims { return wire.CellClaims{Tenant: own, Access: a, Subject: "x"} }
	good := cellToken(t, key, localCell, claims(wire.AccessReadWrite))
	parts := strings.Split(good, ".")
	kid := wire.KeyID(key.Public().(ed25519.PublicKey))
	// forge signs the claims of a good token by other means.
	forge := func(method jwt.SigningMethod, by any, id string) string {
		tok := jwt.NewWithClaims(method, jwt.MapClaims{
			"iss": "queengate", "aud": []string{"broker:" + localCell}, "sub": "x", "exp": time.Now().Add(time.Hour).Unix(),
			"tid": other.String(), "cid": "x", "lvl": wire.AccessAdmin.String(),
		})
		tok.Header["kid"] = id
		text, err := tok.SignedString(by)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	expired := claims(wire.AccessReadWrite)
	expired.Expires = time.Now().Add(-2 * time.Minute)
	foreign := claims(wire.AccessAdmin)
	foreign.Tenant = other

	for rule, tt := range map[string]struct {
		token  string // "" for none
		tenant uuid.UUID
		push   int
		list   int
	}{
		"the gateway's own":                    {good, own, 201, 200},
		"no token":                             {"", other, 401, 401},
		"a client's key":                       {victim.full, other, 401, 401},
		"a token of another key":               {cellToken(t, stranger, localCell, foreign), other, 401, 401},
		"another key under the known id":       {forge(jwt.SigningMethodEdDSA, stranger, kid), other, 401, 401},
		"the public key as a shared secret":    {forge(jwt.SigningMethodHS256, []byte(key.Public().(ed25519.PublicKey)), kid), other, 401, 401},
		"unsigned":                             {forge(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid), other, 401, 401},
		"a made-up key id":                     {forge(jwt.SigningMethodEdDSA, stranger, wire.KeyID(public)), other, 401, 401},
		"a key id that is a path":              {forge(jwt.SigningMethodEdDSA, stranger, "../../keys/cell.pub"), other, 401, 401},
		"a token of another cell":              {cellToken(t, key, "elsewhere", foreign), other, 401, 401},
		"other claims under a good signature":  {parts[0] + "." + strings.Split(cellToken(t, key, localCell, foreign), ".")[1] + "." + parts[2], other, 401, 401},
		"no signature":                         {parts[0] + "." + parts[1] + ".", own, 401, 401},
		"a token that has expired":             {cellToken(t, key, localCell, expired), own, 401, 401},
		"a header that names another tenant":   {good, other, 400, 400},
		"a token to read, for a push":          {cellToken(t, key, localCell, claims(wire.AccessReadOnly)), own, 403, 200},
		"a token to write, for a list":         {cellToken(t, key, localCell, claims(wire.AccessWriteOnly)), own, 201, 403},
		"a token of the inside":                {cellToken(t, key, localCell, wire.CellClaims{Access: wire.AccessInternal, Tenant: own}), own, 403, 403},
		"an administrator's for its own":       {cellToken(t, key, localCell, claims(wire.AccessAdmin)), own, 201, 200},
		"the nobody of the inside as a tenant": {cellToken(t, key, localCell, wire.CellClaims{Access: wire.AccessInternal}), uuid.Nil, 403, 403},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			auth := ""
			if tt.token != "" {
				auth = "Authorization: Bearer " + tt.token + "\r\n"
			}
			head := " HTTP/1.1\r\nHost: b\r\nX-Queen-Tenant: " + tt.tenant.String() + "\r\n" + auth
			const body = `{"items":[{"queue":"q","payload":1}]}`
			if r, _ := raw(t, s.proc.Credentials.BrokerURL, "POST /api/v1/push"+head+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)); r.status != tt.push {
				t.Errorf("push: %d %s, want %d", r.status, r.body, tt.push)
			}
			if r, _ := raw(t, s.proc.Credentials.BrokerURL, "GET /api/v1/resources/queues"+head+"\r\n"); r.status != tt.list || strings.Contains(string(r.body), "secret") {
				t.Errorf("list: %d %s, want %d", r.status, r.body, tt.list)
			}
		})
	}
}
