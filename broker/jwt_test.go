package broker

import (
	"bufio"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/wire"
)

const jwtSecret = "0123456789abcdef0123456789abcdef"

// withJWT is a broker for clients with HS256 tokens, as the defaults of the settings make it.
func withJWT(t testing.TB, change func(*JWT)) func(*Config) {
	t.Helper()
	secret, err := bearer.Secret(jwtSecret)
	if err != nil {
		t.Fatal(err)
	}
	return jwtFrom(t, []string{"HS256"}, bearer.Fixed{Key: secret}, change)
}

func jwtFrom(t testing.TB, algs []string, keys bearer.Keys, change func(*JWT)) func(*Config) {
	t.Helper()
	tokens, err := bearer.New(bearer.Config{Algorithms: algs, Keys: keys, Issuer: "idp", Audience: "queues", Leeway: bearer.DefaultLeeway})
	if err != nil {
		t.Fatal(err)
	}
	j := &JWT{
		Tokens: tokens, RoleClaim: "role", RolesClaim: "roles", SkipPaths: DefaultSkipPaths,
		Roles: []Role{{"admin", wire.AccessAdmin}, {"read-write", wire.AccessReadWrite}, {"read-only", wire.AccessReadOnly}, {"write-only", wire.AccessWriteOnly}},
	}
	if change != nil {
		change(j)
	}
	return func(c *Config) { c.JWT = j }
}

// clientToken signs a token with HS256; claims come in pairs, and nil takes one out.
func clientToken(t testing.TB, pairs ...any) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, clientClaims(pairs...)).SignedString([]byte(jwtSecret))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func clientClaims(pairs ...any) jwt.MapClaims {
	c := jwt.MapClaims{"iss": "idp", "aud": "queues", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == nil {
			delete(c, pairs[i].(string))
		} else {
			c[pairs[i].(string)] = pairs[i+1]
		}
	}
	return c
}

func bearing(token string) []string { return []string{"Authorization", "Bearer " + token} }

// errorOf is the body of a refusal.
func errorOf(t testing.TB, a answer) (body struct{ Error, Code, Outcome string }) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return body
}

// TestEveryRouteAgainstEveryRole holds the route table against the levels of spec/broker-http.md 1.4 as they stand there.
func TestEveryRouteAgainstEveryRole(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, nil))
	everybody := []string{"", "unknown", "read-only", "write-only", "read-only write-only", "read-write", "admin"}
	admitted := map[wire.Access][]string{
		wire.AccessPublic:    everybody,
		wire.AccessReadOnly:  {"read-only", "read-only write-only", "read-write", "admin"},
		wire.AccessWriteOnly: {"write-only", "read-only write-only", "read-write", "admin"},
		wire.AccessReadWrite: {"read-write", "admin"},
		wire.AccessAdmin:     {"admin"},
		wire.AccessInternal:  {"admin"},
	}
	fill := strings.NewReplacer(":queue", "q", ":partition", "p", ":lease", uuid.NewString(), ":tenant", uuid.NewString(), ":id", uuid.NewString(), ":group", "g", ":transaction", "x", ":name", "n")
	for _, r := range wire.Routes {
		path := fill.Replace(r.Pattern)
		if r.Access != wire.AccessPublic {
			a := w.do(r.Method, path, "")
			if a.status != 401 || errorOf(t, a).Error != "Authentication required" || a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s %s without a token: %d %s", r.Method, r.Pattern, a.status, a.body)
			}
		}
		for _, roles := range everybody {
			a := w.do(r.Method, path, "", bearing(clientToken(t, "roles", strings.Fields(roles)))...)
			want := !slices.Contains(admitted[r.Access], roles)
			if refused := a.status == 401 || a.status == 403; refused != want {
				t.Errorf("%s %s (%v) as %q: %d %s", r.Method, r.Pattern, r.Access, roles, a.status, a.body)
			}
			if e := a.body; want && (a.status != 403 || !strings.HasPrefix(e, `{"error":"Insufficient permissions","code":"forbidden"`)) {
				t.Errorf("%s %s as %q: %d %s", r.Method, r.Pattern, roles, a.status, e)
			}
		}
	}
}

func TestRefusedTokensSayWhy(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, nil))
	good := clientToken(t, "role", "admin")
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, clientClaims("role", "admin")).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := jwt.NewWithClaims(jwt.SigningMethodHS256, clientClaims("role", "admin")).SignedString([]byte("another secret, and a long one at that"))
	if err != nil {
		t.Fatal(err)
	}
	ago, soon := time.Now().Add(-time.Minute).Unix(), time.Now().Add(time.Minute).Unix()
	for rule, c := range map[string]struct {
		headers []string
		status  int
		text    string
	}{
		"no credential":          {nil, 401, "Authentication required"},
		"an empty one":           {[]string{"Authorization", ""}, 401, "Authentication required"},
		"the scheme alone":       {[]string{"Authorization", "Bearer "}, 401, "Bad token header"},
		"another scheme":         {[]string{"Authorization", "Basic YTpi"}, 401, "Bad token header"},
		"no token":               {bearing("garbage"), 401, "Bad token header"},
		"too long a token":       {bearing(strings.Repeat("a", bearer.MaxTokenBytes+1)), 401, "Bad token header"},
		"two credentials":        {[]string{"Authorization", "Bearer " + good, "Authorization", "Bearer " + good}, 400, "the request carries more than one credential"},
		"none":                   {bearing(none), 401, "Unsupported token algorithm"},
		"forged":                 {bearing(forged), 401, "Invalid token signature"},
		"expired":                {bearing(clientToken(t, "exp", ago)), 401, "Token has expired"},
		"not yet":                {bearing(clientToken(t, "nbf", soon)), 401, "Token not yet valid"},
		"from the future":        {bearing(clientToken(t, "iat", soon)), 401, "Token issued in the future"},
		"another issuer":         {bearing(clientToken(t, "iss", "x")), 401, "Invalid token issuer"},
		"another audience":       {bearing(clientToken(t, "aud", "x")), 401, "Invalid token audience"},
		"a subject with a line":  {bearing(clientToken(t, "sub", "a\nb", "role", "admin")), 401, "Bad token claims"},
		"a subject without end":  {bearing(clientToken(t, "sub", strings.Repeat("a", wire.MaxNameBytes+1))), 401, "Bad token claims"},
		"no role":                {bearing(clientToken(t)), 403, "Insufficient permissions"},
		"an unknown role":        {bearing(clientToken(t, "role", "Admin")), 403, "Insufficient permissions"},
		"a list as the one role": {bearing(clientToken(t, "role", []string{"admin"})), 403, "Insufficient permissions"},
		"a text as the list":     {bearing(clientToken(t, "roles", "admin")), 403, "Insufficient permissions"},
		"a list of other things": {bearing(clientToken(t, "roles", []any{"admin", 7})), 403, "Insufficient permissions"},
		"another claim":          {bearing(clientToken(t, "Role", "admin")), 403, "Insufficient permissions"},
		"a token in the query":   {nil, 401, "Authentication required"},

		"good":             {bearing(good), 200, ""},
		"good, bare":       {[]string{"Authorization", good}, 200, ""},
		"good, in capital": {[]string{"Authorization", "BEARER  " + good}, 200, ""},
		"one of the list":  {bearing(clientToken(t, "roles", []string{"x", "read-only"})), 200, ""},
		"both claims":      {bearing(clientToken(t, "role", "write-only", "roles", []string{"read-only"})), 200, ""},
		"without exp":      {bearing(clientToken(t, "role", "admin", "exp", nil)), 200, ""},
	} {
		for _, use := range []string{"first", "second"} {
			a := w.do("GET", "/api/v1/resources/queues?token="+good, "", c.headers...)
			if a.status != c.status {
				t.Errorf("%s, %s use: %d %s, want %d", rule, use, a.status, a.body, c.status)
				continue
			}
			if c.text == "" {
				continue
			}
			if e := errorOf(t, a); e.Error != c.text || e.Outcome != "none" {
				t.Errorf("%s, %s use: %+v, want %q", rule, use, e, c.text)
			}
		}
	}
	page := w.do("GET", "/metrics/prometheus", "").want(t, 200).body
	for reason, times := range map[bearer.Reason]int{bearer.Expired: 2, bearer.BadHeader: 8, bearer.UnknownKey: 0} {
		if line := fmt.Sprintf("\nqueengate_broker_jwt_refused_total{reason=%q} %d\n", reason.String(), times); !strings.Contains(page, line) {
			t.Errorf("no line %q", line)
		}
	}
}

func TestClaimsAndWordsOfRolesAreConfigurable(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, func(j *JWT) {
		j.RoleClaim, j.RolesClaim = "https://example.test/job", "groups"
		j.Roles = []Role{{"", wire.AccessAdmin}, {"root", wire.AccessAdmin}, {"dev", wire.AccessReadOnly}, {"dev", wire.AccessWriteOnly}}
	}))
	for rule, c := range map[string]struct {
		claims           []any
		list, push, wipe int
	}{
		"the old names mean nothing":      {[]any{"role", "root", "roles", []string{"root"}}, 403, 403, 403},
		"the old words mean nothing":      {[]any{"groups", []string{"admin"}}, 403, 403, 403},
		"an empty word is no role":        {[]any{"https://example.test/job", "", "groups", []string{""}}, 403, 403, 403},
		"the claim with one role":         {[]any{"https://example.test/job", "root"}, 200, 201, 200},
		"the claim with a list":           {[]any{"groups", []string{"root"}}, 200, 201, 200},
		"one word for two levels is both": {[]any{"groups", []string{"dev"}}, 200, 201, 403},
	} {
		auth := bearing(clientToken(t, c.claims...))
		for call, want := range map[string]int{"GET /api/v1/resources/queues": c.list, "POST /api/v1/push": c.push, "DELETE /api/v1/resources/queues/none": c.wipe} {
			method, path, _ := strings.Cut(call, " ")
			body := ""
			if method == "POST" {
				body = `{"items":[]}`
			}
			if a := w.do(method, path, body, auth...); a.status != want {
				t.Errorf("%s: %s: %d %s, want %d", rule, call, a.status, a.body, want)
			}
		}
	}
}

// TestTheSubjectIsTheProducer is one client's day: what it pushes carries its name, whatever the body says.
func TestTheSubjectIsTheProducer(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, nil))
	worker := bearing(clientToken(t, "role", "read-write", "sub", "worker"))
	w.push(`{"items":[{"queue":"q","payload":1,"producerSub":"eve"}]}`, bearing(clientToken(t, "role", "write-only", "sub", "sensor-7"))...)
	w.push(`{"items":[{"queue":"q","payload":2}]}`, append(bearing(clientToken(t, "role", "write-only", "sub", nil)), wire.HeaderTenant, "not even a UUID")...)
	if a := w.do("GET", "/api/v1/pop/queue/q", "", bearing(clientToken(t, "role", "write-only"))...); a.status != 403 {
		t.Errorf("a write-only token pops: %d", a.status)
	}
	if a := w.do("GET", "/api/v1/pop/queue/q", "", bearing(clientToken(t, "role", "read-only"))...); a.status != 403 {
		t.Errorf("a read-only token pops: %d", a.status)
	}
	got := w.pop("q?batch=10", worker...)
	if len(got.Messages) != 2 || got.Messages[0].ProducerSub == nil || *got.Messages[0].ProducerSub != "sensor-7" || got.Messages[1].ProducerSub != nil {
		t.Fatalf("%+v", got)
	}
	m := got.Messages[1]
	body := fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q}`, m.TransactionID, m.PartitionID, m.LeaseID)
	if a := w.do("POST", "/api/v1/ack", body, worker...).want(t, 200); !strings.Contains(a.body, `"success":true`) {
		t.Error(a.body)
	}
}

func TestWhatIsNotThereIsToldToReadersAndWriters(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, nil))
	for _, c := range []struct {
		method, path string
		status       int // for who may look around
	}{
		{"GET", "/api/v1/nope", 404},
		{"PUT", "/api/v1/push", 405},
		{"GET", "/api/v1/ephemeral/pop", 404},
		{"GET", "/api/v1/resources/../system/maintenance", 400},
		{"POST", "/api/v1/resources/queues/%zz", 405},
		{"POST", "/nope", 404},
	} {
		ask := func(auth ...string) answer { return w.line(c.method, c.path, auth...) }
		if a := ask(); a.status != 401 || a.header.Get("Allow") != "" {
			t.Errorf("%s %s without a token: %d %s", c.method, c.path, a.status, a.body)
		}
		for _, role := range []string{"read-only", "write-only"} {
			if a := ask(bearing(clientToken(t, "role", role))...); a.status != 403 {
				t.Errorf("%s %s as %s: %d %s", c.method, c.path, role, a.status, a.body)
			}
		}
		for _, role := range []string{"read-write", "admin"} {
			if a := ask(bearing(clientToken(t, "role", role))...); a.status != c.status {
				t.Errorf("%s %s as %s: %d %s, want %d", c.method, c.path, role, a.status, a.body, c.status)
			}
		}
	}
	if a := w.do("GET", "/", ""); a.status != 404 {
		t.Errorf("the skipped path that is not there: %d", a.status)
	}
}

// line sends a request without a body whose target is taken as it stands.
func (w *world) line(method, target string, headers ...string) answer {
	w.t.Helper()
	head := method + " " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
	for i := 0; i < len(headers); i += 2 {
		head += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	return w.raw(head + "\r\n")
}

func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func readAnswer(t testing.TB, r *bufio.Reader) answer {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body), resp.Close}
}

func TestSkippedPathsAskForNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, func(j *JWT) {
		j.SkipPaths = []string{"/", "/api/v1/push", "/api/v1/status/", "/api/v1/system/maintenance"}
	}))
	w.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, "Authorization", "Bearer rubbish").want(t, 201)
	for path, status := range map[string]int{
		"POST /api/v1/push?x=1":                 201,
		"GET /api/v1/status/queues":             200,
		"GET /api/v1/status/queues/q":           200,
		"GET /api/v1/status":                    401, // not below the prefix
		"GET /api/v1/system/maintenance":        200,
		"GET /api/v1/system/maintenance/pop":    401,
		"GET /api/v1/resources/queues":          401, // "/" is that path alone
		"GET /api/v1/status/../resources/tasks": 400,
		"GET /api/v1/%73ystem/maintenance":      401, // as it stands
		"GET //api/v1/system/maintenance":       401,
	} {
		method, target, _ := strings.Cut(path, " ")
		var a answer
		if method == "POST" {
			a = w.do(method, target, `{"items":[{"queue":"q","payload":1}]}`, "Authorization", "Bearer rubbish")
		} else {
			a = w.line(method, target)
		}
		if a.status != status {
			t.Errorf("%s: %d %s, want %d", path, a.status, a.body, status)
		}
	}
	got := w.pop("q", bearing(clientToken(t, "role", "admin"))...)
	if len(got.Messages) == 0 || got.Messages[0].ProducerSub != nil {
		t.Errorf("%+v", got)
	}
}

// TestRefusalsDoNotWaitForTheBody: the answer is there with not a byte of the body sent, and its connection ends.
func TestRefusalsDoNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, nil))
	reader := clientToken(t, "role", "read-only")
	for rule, c := range map[string]struct {
		head   string
		status int
	}{
		"no credential":             {"POST /api/v1/push HTTP/1.1\r\nContent-Length: 60000000\r\n", 401},
		"a body in chunks":          {"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 401},
		"a body beyond all bounds":  {"POST /api/v1/push HTTP/1.1\r\nContent-Length: 6000000000\r\n", 401},
		"the client asks first":     {"POST /api/v1/push HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 10\r\n", 401},
		"not permitted":             {"POST /api/v1/push HTTP/1.1\r\nAuthorization: Bearer " + reader + "\r\nContent-Length: 10\r\n", 403},
		"a path that is not there":  {"POST /api/v1/nope HTTP/1.1\r\nContent-Length: 10\r\n", 401},
		"an absolute target":        {"POST http://x/api/v1/push HTTP/1.1\r\nContent-Length: 10\r\n", 401},
		"a body of a GET":           {"GET /api/v1/resources/queues HTTP/1.1\r\nContent-Length: 10\r\n", 401},
		"a tenant makes no odds":    {"POST /api/v1/push HTTP/1.1\r\nX-Queen-Tenant: x\r\nContent-Length: 10\r\n", 401},
		"a trailer makes no odds":   {"POST /api/v1/push HTTP/1.1\r\nTrailer: X-Queen-Tenant\r\nTransfer-Encoding: chunked\r\n", 401},
		"two credentials":           {"POST /api/v1/push HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\nContent-Length: 10\r\n", 400},
		"a public path is let in":   {"GET /livez HTTP/1.1\r\nContent-Length: 0\r\n", 200},
		"a skipped path is let in":  {"GET /metrics HTTP/1.1\r\nContent-Length: 0\r\n", 200},
		"HTTP/1.0 is judged as all": {"POST /api/v1/push HTTP/1.0\r\nContent-Length: 10\r\n", 401},
	} {
		t.Run(rule, func(t *testing.T) {
			a := w.raw(c.head + "Host: x\r\n\r\n")
			if a.status != c.status {
				t.Fatalf("%d %s, want %d", a.status, a.body, c.status)
			}
			if c.status == 200 {
				return
			}
			if !a.close || a.header.Get(wire.HeaderRequestID) == "" || errorOf(t, a).Error == "" {
				t.Errorf("close %v, %v, %s", a.close, a.header, a.body)
			}
		})
	}
}

// TestTheHeadWallDoesNotShowToClientsWithTokens: bodies sent late, in pieces, after a question and one after the other.
func TestTheHeadWallDoesNotShowToClientsWithTokens(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, nil))
	auth := "Authorization: Bearer " + clientToken(t, "role", "read-write") + "\r\nHost: x\r\n"
	const body = `{"items":[{"queue":"q","payload":1}]}`
	c := w.dial()
	r := bufio.NewReader(c)
	send := func(text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	head := fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\n%sContent-Length: %d\r\n", auth, len(body))
	for range 2 {
		send(head + "\r\n" + body[:5])
		send(body[5:])
		readAnswer(t, r).want(t, 201)
	}
	send(head + "Expect: 100-continue\r\n\r\n")
	readAnswer(t, r).want(t, 100)
	send(body)
	readAnswer(t, r).want(t, 201)
	send(fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", auth, len(body), body))
	readAnswer(t, r).want(t, 201)
	send("POST /api/v1/nope HTTP/1.1\r\n" + auth + "Content-Length: 2\r\n\r\n{}")
	readAnswer(t, r).want(t, 404)
	send("POST /api/v1/push HTTP/1.1\r\n" + auth + "Content-Length: 2\r\n\r\n{}" + head + "\r\n" + body) // pipelined
	readAnswer(t, r).want(t, 400)
	if a := readAnswer(t, r).want(t, 201); a.close {
		t.Error("the connection ends")
	}
}

// TestKeysOfAnAddress is rotation as a broker's client sees it: a key that is taken back ends its tokens, though they
// were verified before.
func TestKeysOfAnAddress(t *testing.T) {
	t.Parallel()
	type pair struct {
		pub  ed25519.PublicKey
		priv ed25519.PrivateKey
	}
	keys := map[string]pair{}
	for _, kid := range []string{"a", "b"} {
		pub, priv, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		keys[kid] = pair{pub, priv}
	}
	var serving atomic.Value // the ids of the keys in the set; "" answers 503
	serving.Store("")
	is := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		ids := serving.Load().(string)
		if ids == "" {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var members []string
		for _, kid := range strings.Fields(ids) {
			members = append(members, fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q}`, kid, base64.RawURLEncoding.EncodeToString(keys[kid].pub)))
		}
		_, _ = io.WriteString(rw, `{"keys":[`+strings.Join(members, ",")+`]}`)
	}))
	t.Cleanup(is.Close)
	remote, err := bearer.NewRemote(bearer.RemoteConfig{URL: is.URL, Algorithms: []string{"EdDSA"}, Refresh: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w := setup(t, jwtFrom(t, []string{"EdDSA"}, remote, func(j *JWT) { j.Keys = remote }))
	sign := func(kid string) []string {
		token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, clientClaims("role", "admin"))
		token.Header["kid"] = kid
		text, err := token.SignedString(keys[kid].priv)
		if err != nil {
			t.Fatal(err)
		}
		return bearing(text)
	}
	a, b := sign("a"), sign("b")
	list := func(auth []string) answer { return w.do("GET", "/api/v1/resources/queues", "", auth...) }

	if got := list(a); got.status != 500 || errorOf(t, got).Code != "keys_unavailable" || errorOf(t, got).Outcome != "none" {
		t.Errorf("without keys: %d %s", got.status, got.body)
	}
	if got := list(nil); got.status != 401 {
		t.Errorf("without keys and credential: %d", got.status)
	}
	serving.Store("a")
	w.until("the first set", func() bool { return list(a).status == 200 })
	if got := list(b); got.status != 401 || errorOf(t, got).Error != "Unknown key ID" {
		t.Errorf("a key that is not there yet: %d %s", got.status, got.body)
	}
	serving.Store("a b")
	w.until("both keys", func() bool { return list(b).status == 200 })
	list(a).want(t, 200)
	serving.Store("")
	failures := remote.Stats().Failures
	w.until("an outage", func() bool { return remote.Stats().Failures > failures })
	list(a).want(t, 200)
	list(b).want(t, 200)
	serving.Store("b")
	w.until("the end of the first key", func() bool { return list(a).status == 401 })
	list(b).want(t, 200)
	page := w.do("GET", "/metrics/prometheus", "").want(t, 200).body
	for _, name := range []string{"queengate_broker_jwks_keys 1", "queengate_broker_jwks_fetches_total", "queengate_broker_jwks_failures_total"} {
		if !strings.Contains(page, "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
}

func TestRememberedTokensEnd(t *testing.T) {
	t.Parallel()
	var cfg Config
	withJWT(t, nil)(&cfg)
	c := newClients(cfg.JWT)
	now := time.Now()
	token := []byte(clientToken(t, "role", "admin", "exp", now.Add(time.Minute).Unix(), "nbf", now.Unix()))
	first, err := c.verify(token, now)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := c.verify(token, now); err != nil || second.subject != first.subject || c.cache.Get(token) != second {
		t.Errorf("the second use: %+v, %v", second, err)
	}
	end := time.Unix(now.Add(time.Minute).Unix(), 0).Add(bearer.DefaultLeeway)
	if _, err := c.verify(token, end.Add(-time.Nanosecond)); err != nil {
		t.Errorf("within the leeway: %v", err)
	}
	if _, err := c.verify(token, end); wire.AsError(err).Text() != "Token has expired" {
		t.Errorf("at its end: %v", err)
	}
	if _, err := c.verify(token, now.Add(-bearer.DefaultLeeway-time.Second)); wire.AsError(err).Text() != "Token not yet valid" {
		t.Errorf("before its time: %v", err)
	}
	bad := []byte(string(token) + "A")
	if _, err := c.verify(bad, now); err == nil || c.cache.Get(bad) != nil {
		t.Error("a refused token is remembered")
	}
}

func TestJWTIsHeldToItsTerms(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	for rule, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"with tenancy":       {m.tenancy, "exclude each other"},
		"without a verifier": {func(c *Config) { c.JWT.Tokens = nil }, "want a verifier"},
		"without a claim":    {func(c *Config) { c.JWT.RoleClaim, c.JWT.RolesClaim = "", "" }, "name of a claim"},
		"without a role":     {func(c *Config) { c.JWT.Roles = []Role{{"", wire.AccessAdmin}} }, "at least one role"},
		"a relative path":    {func(c *Config) { c.JWT.SkipPaths = []string{"health"} }, "begins with a slash"},
		"a path with query":  {func(c *Config) { c.JWT.SkipPaths = []string{"/health?x"} }, "begins with a slash"},
	} {
		var cfg Config
		withJWT(t, nil)(&cfg)
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", rule, err, c.want)
		}
	}
}

func BenchmarkRememberedToken(b *testing.B) {
	var cfg Config
	withJWT(b, nil)(&cfg)
	c := newClients(cfg.JWT)
	token, now := []byte(clientToken(b, "role", "admin")), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.verify(token, now); err != nil {
			b.Fatal(err)
		}
	}
}

// faulty is a source of keys with a fault of ours.
type faulty struct{}

func (faulty) Find(string, string, time.Time) (bearer.Key, error) { panic("a fault of ours") }
func (faulty) Generation() uint64                                 { return 0 }

func TestAFaultOfOursWhileJudgingIsA500(t *testing.T) {
	t.Parallel()
	w := setup(t, jwtFrom(t, []string{"HS256"}, faulty{}, nil))
	auth := bearing(clientToken(t, "role", "admin"))
	for range 2 {
		for _, a := range []answer{
			w.do("POST", "/api/v1/push", `{"items":[]}`, auth...), w.do("GET", "/api/v1/resources/queues", "", auth...),
		} {
			if a.status != 500 || errorOf(t, a).Code != "internal" {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	}
	w.do("GET", "/livez", "").want(t, 200)
}
