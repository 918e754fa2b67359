package bearer

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// issuer is a server of a key set whose answers a test changes.
type issuer struct {
	*httptest.Server
	asked atomic.Int64

	mu      sync.Mutex // guards answer
	answer  http.HandlerFunc
	fetched chan struct{} // a mark for every answer that was given
}

func newIssuer(t testing.TB, body []byte) *issuer {
	t.Helper()
	is := &issuer{fetched: make(chan struct{}, 1000)}
	is.serve(body)
	is.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		is.asked.Add(1)
		is.mu.Lock()
		answer := is.answer
		is.mu.Unlock()
		answer(w, r)
		is.fetched <- struct{}{}
	}))
	t.Cleanup(is.Close)
	return is
}

func (is *issuer) serve(body []byte) {
	is.answers(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
}

func (is *issuer) answers(f http.HandlerFunc) {
	is.mu.Lock()
	defer is.mu.Unlock()
	is.answer = f
}

func (is *issuer) remote(t testing.TB, change func(*RemoteConfig)) *Remote {
	t.Helper()
	cfg := RemoteConfig{URL: is.URL, Algorithms: algorithms, Timeout: 30 * time.Second}
	if change != nil {
		change(&cfg)
	}
	r, err := NewRemote(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ask verifies a token of the key with the kid, "" for none, at a time.
func ask(t testing.TB, r *Remote, alg string, key any, kid string, at time.Time) Reason {
	t.Helper()
	v := mustNew(t, Config{Algorithms: algorithms, Keys: r, Leeway: MaxLeeway})
	var header []any
	if kid != "" {
		header = []any{"kid", kid}
	}
	_, err := v.Verify(sign(t, alg, key, goodClaims(), header...), at)
	return reasonOf(t, err)
}

func TestKeysRotateAndTheThrottleHolds(t *testing.T) {
	t.Parallel()
	first, second := jwkOf("first", &pairs().rsa.PublicKey), jwkOf("second", &pairs().otherRSA.PublicKey)
	is := newIssuer(t, setOf(first))
	r := is.remote(t, nil)
	if got := r.Generation(); got != 0 {
		t.Errorf("generation %d before the first fetch", got)
	}
	steps := []struct {
		rule  string
		serve []byte
		kid   string
		key   any
		after time.Duration
		want  Reason
		asked int64 // so far
		gen   uint64
	}{
		{"the first token has the set fetched", nil, "first", pairs().rsa, 0, 0, 1, 1},
		{"a known key costs nothing", nil, "first", pairs().rsa, 0, 0, 1, 1},
		{"an unknown key is not asked for at once", nil, "second", pairs().otherRSA, time.Second, UnknownKey, 1, 1},
		{"nor a moment before the pause ends", nil, "second", pairs().otherRSA, defaultPause - 1, UnknownKey, 1, 1},
		{"then it is, in vain", nil, "second", pairs().otherRSA, defaultPause, UnknownKey, 2, 1},
		{"a new key is there with the next fetch", setOf(first, second), "second", pairs().otherRSA, 2 * defaultPause, 0, 3, 2},
		{"and the old one still", nil, "first", pairs().rsa, 2 * defaultPause, 0, 3, 2},
		{"a key that was taken back is unknown after the next fetch", setOf(second), "third", pairs().rsa, 3 * defaultPause, UnknownKey, 4, 3},
		{"and refused", nil, "first", pairs().rsa, 3 * defaultPause, UnknownKey, 4, 3},
		{"another key under a known id is a bad signature", nil, "second", pairs().rsa, 3 * defaultPause, BadSignature, 4, 3},
	}
	for _, s := range steps {
		if s.serve != nil {
			is.serve(s.serve)
		}
		if got := ask(t, r, "RS256", s.key, s.kid, now.Add(s.after)); got != s.want {
			t.Errorf("%s: got reason %d, want %d", s.rule, got, s.want)
		}
		if got := is.asked.Load(); got != s.asked || r.Generation() != s.gen {
			t.Errorf("%s: asked %d times, generation %d, want %d and %d", s.rule, got, r.Generation(), s.asked, s.gen)
		}
	}
}

func TestAFloodOfUnknownKeysIsOneFetch(t *testing.T) {
	t.Parallel()
	is := newIssuer(t, nil)
	arrived, release := make(chan struct{}), make(chan struct{})
	is.answers(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived) // panics on a second fetch
		<-release
		_, _ = w.Write(setOf(jwkOf("a", &pairs().rsa.PublicKey)))
	})
	r := is.remote(t, nil)
	var wg sync.WaitGroup
	var good, unknown atomic.Int64
	one := func(kid string) {
		switch ask(t, r, "RS256", pairs().rsa, kid, now) {
		case 0:
			good.Add(1)
		case UnknownKey:
			unknown.Add(1)
		}
	}
	wg.Go(func() { one("a") })
	<-arrived
	for i := range 50 {
		wg.Go(func() { one([]string{"a", "made up"}[i%2]) })
	}
	close(release)
	wg.Wait()
	if good.Load() != 26 || unknown.Load() != 25 || is.asked.Load() != 1 {
		t.Errorf("%d good, %d unknown, %d fetches; want 26, 25, 1", good.Load(), unknown.Load(), is.asked.Load())
	}
}

// TestTheLastGoodSetServesThroughAnOutage: whatever the address answers instead of a good set changes nothing.
func TestTheLastGoodSetServesThroughAnOutage(t *testing.T) {
	t.Parallel()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
	}
	good := setOf(jwkOf("a", &pairs().rsa.PublicKey))
	elsewhere := newIssuer(t, setOf(jwkOf("b", &pairs().rsa.PublicKey)))
	for rule, answer := range map[string]http.HandlerFunc{
		"a server error": status(500),
		"not found":      status(404),
		"no content":     status(204),
		"a redirect":     func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
		"no JSON":        text("<html>"),
		"nothing":        text(""),
		"null":           text("null"),
		"a list":         text("[]"),
		"no keys":        text(`{"keys":[]}`),
		"no key of use":  text(`{"keys":[{"kty":"oct","k":"AAAA","kid":"b"}]}`),
		"keys of words":  text(`{"keys":["b"]}`),
		"more than a MiB": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(append(setOf(jwkOf("b", &pairs().rsa.PublicKey)), bytes.Repeat([]byte(" "), maxSetBytes)...))
		},
		"an end in between":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"an answer too late": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			is := newIssuer(t, good)
			r := is.remote(t, nil)
			if got := ask(t, r, "RS256", pairs().rsa, "a", now); got != 0 {
				t.Fatalf("before: %d", got)
			}
			is.answers(answer)
			if rule == "an answer too late" {
				r.cfg.Timeout = 10 * time.Millisecond
			}
			if got := ask(t, r, "RS256", pairs().rsa, "b", now.Add(time.Minute)); got != UnknownKey {
				t.Errorf("an unknown key meanwhile: %d", got)
			}
			if got := ask(t, r, "RS256", pairs().rsa, "a", now.Add(time.Minute)); got != 0 {
				t.Errorf("the known key meanwhile: %d", got)
			}
			if s := r.Stats(); s.Fetches != 2 || s.Failures != 1 || s.Keys != 1 || r.Generation() != 1 {
				t.Errorf("%+v, generation %d", s, r.Generation())
			}
			r.cfg.Timeout = 30 * time.Second
			is.serve(setOf(jwkOf("b", &pairs().rsa.PublicKey)))
			if got := ask(t, r, "RS256", pairs().rsa, "b", now.Add(2*time.Minute)); got != 0 {
				t.Errorf("afterwards: %d", got)
			}
		})
	}
	if n := elsewhere.asked.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

func TestWithoutASetNobodyCanTell(t *testing.T) {
	t.Parallel()
	is := newIssuer(t, nil)
	is.answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	r := is.remote(t, nil)
	for range 3 {
		if got := ask(t, r, "RS256", pairs().rsa, "a", now); got != KeysUnavailable {
			t.Errorf("got %d, want KeysUnavailable", got)
		}
	}
	if n := is.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestKeySetsAreReadWithCare(t *testing.T) {
	t.Parallel()
	rs, other, ed, ec := &pairs().rsa.PublicKey, &pairs().otherRSA.PublicKey, pairs().ed.Public(), pairs().ec
	off := jwkOf("k", ec["ES256"].Public())
	off["y"] = off["x"]
	for rule, c := range map[string]struct {
		set  []map[string]any
		alg  string
		key  any
		kid  string
		want Reason
	}{
		"RSA by its id":                      {[]map[string]any{jwkOf("x", other), jwkOf("k", rs)}, "RS384", pairs().rsa, "k", 0},
		"Ed25519 by its id":                  {[]map[string]any{jwkOf("k", ed)}, "EdDSA", pairs().ed, "k", 0},
		"P-256":                              {[]map[string]any{jwkOf("k", ec["ES256"].Public())}, "ES256", ec["ES256"], "k", 0},
		"P-384":                              {[]map[string]any{jwkOf("k", ec["ES384"].Public())}, "ES384", ec["ES384"], "k", 0},
		"P-521":                              {[]map[string]any{jwkOf("k", ec["ES512"].Public())}, "ES512", ec["ES512"], "k", 0},
		"PS256 with an RSA key":              {[]map[string]any{jwkOf("k", rs)}, "PS256", pairs().rsa, "k", 0},
		"no id takes the first that fits":    {[]map[string]any{jwkOf("e", ed), jwkOf("r", rs), jwkOf("s", other)}, "RS256", pairs().rsa, "", 0},
		"no id takes no second":              {[]map[string]any{jwkOf("s", other), jwkOf("r", rs)}, "RS256", pairs().rsa, "", BadSignature},
		"a key without id is found without":  {[]map[string]any{jwkOf("", rs)}, "RS256", pairs().rsa, "", 0},
		"a key without id has no other name": {[]map[string]any{jwkOf("", rs)}, "RS256", pairs().rsa, "k", UnknownKey},
		"one id for two kinds":               {[]map[string]any{jwkOf("k", ed), jwkOf("k", rs)}, "RS256", pairs().rsa, "k", 0},
		"one id twice: the first":            {[]map[string]any{jwkOf("k", other), jwkOf("k", rs)}, "RS256", pairs().rsa, "k", BadSignature},
		"a key pinned to the algorithm":      {[]map[string]any{with(jwkOf("k", rs), "alg", "RS256")}, "RS256", pairs().rsa, "k", 0},
		"a key pinned to another":            {[]map[string]any{with(jwkOf("k", rs), "alg", "RS512")}, "RS256", pairs().rsa, "k", UnknownKey},
		"a key pinned to PS":                 {[]map[string]any{with(jwkOf("k", rs), "alg", "PS256")}, "RS256", pairs().rsa, "k", UnknownKey},
		"a public key pinned to HS":          {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", rs), "alg", "HS256")}, "RS256", pairs().rsa, "k", UnknownKey},
		"a key for encryption":               {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", rs), "use", "enc")}, "RS256", pairs().rsa, "k", UnknownKey},
		"a key that may verify":              {[]map[string]any{with(jwkOf("k", rs), "key_ops", []string{"verify"})}, "RS256", pairs().rsa, "k", 0},
		"a key that may only sign":           {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", rs), "key_ops", []string{"sign"})}, "RS256", pairs().rsa, "k", UnknownKey},
		"a shared secret in a set":           {[]map[string]any{jwkOf("x", rs), {"kty": "oct", "kid": "k", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}}, "HS256", []byte(secret), "k", UnknownKey},
		"a kind that is not its own":         {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", rs), "kty", "rsa")}, "RS256", pairs().rsa, "k", UnknownKey},
		"a weak RSA key":                     {[]map[string]any{jwkOf("x", rs), jwkOf("k", &pairs().weakRSA.PublicKey)}, "RS256", pairs().weakRSA, "k", UnknownKey},
		"an exponent of 1":                   {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", rs), "e", "AQ")}, "RS256", pairs().rsa, "k", UnknownKey},
		"an exponent beyond an int":          {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", rs), "e", "AQAAAAAAAAAB")}, "RS256", pairs().rsa, "k", UnknownKey},
		"a point off the curve":              {[]map[string]any{jwkOf("x", rs), off}, "ES256", ec["ES256"], "k", UnknownKey},
		"a point of another curve":           {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", ec["ES256"].Public()), "crv", "P-384")}, "ES384", ec["ES384"], "k", UnknownKey},
		"a short Ed25519 point":              {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", ed), "x", "AAAA")}, "EdDSA", pairs().ed, "k", UnknownKey},
		"an X25519 key":                      {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", ed), "crv", "X25519")}, "EdDSA", pairs().ed, "k", UnknownKey},
		"padded base64":                      {[]map[string]any{jwkOf("x", rs), with(jwkOf("k", ed), "x", jwkOf("", ed)["x"].(string)+"=")}, "EdDSA", pairs().ed, "k", UnknownKey},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			r := newIssuer(t, setOf(c.set...)).remote(t, nil)
			if got := ask(t, r, c.alg, c.key, c.kid, now); got != c.want {
				t.Errorf("got reason %d, want %d", got, c.want)
			}
		})
	}
}

func TestKeysOfNoAcceptedAlgorithmAreLeftOut(t *testing.T) {
	t.Parallel()
	is := newIssuer(t, setOf(jwkOf("a", pairs().ec["ES256"].Public()), jwkOf("b", &pairs().rsa.PublicKey)))
	r := is.remote(t, func(c *RemoteConfig) { c.Algorithms = []string{"RS256", "EdDSA"} })
	if got := ask(t, r, "RS256", pairs().rsa, "b", now); got != 0 || r.Stats().Keys != 1 {
		t.Errorf("reason %d, %d keys", got, r.Stats().Keys)
	}
}

// TestRunKeepsTheKeysFresh: at once, by the interval, and on after failures; and it ends with its context.
func TestRunKeepsTheKeysFresh(t *testing.T) {
	t.Parallel()
	is := newIssuer(t, setOf(jwkOf("a", &pairs().rsa.PublicKey)))
	var log syncBuffer
	r := is.remote(t, func(c *RemoteConfig) {
		c.Refresh = time.Millisecond
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	<-is.fetched
	is.answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	for seen := r.Stats().Failures; r.Stats().Failures < seen+2; {
		<-is.fetched
	}
	is.serve(setOf(jwkOf("b", &pairs().rsa.PublicKey)))
	for r.Generation() < 2 {
		<-is.fetched
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	text := log.String()
	for line, times := range map[string]int{"without TLS": 1, "cannot be fetched": 1, "available again": 1, "have changed": 2} {
		if got := strings.Count(text, line); got != times {
			t.Errorf("%q is logged %d times, want %d:\n%s", line, got, times, text)
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestAddressesOfKeySets(t *testing.T) {
	t.Parallel()
	for addr, ok := range map[string]bool{
		"https://login.example/keys": true, "http://127.0.0.1:1/": true,
		"": false, "login.example/keys": false, "file:///etc/keys": false, "https://": false, "https://ann:hunter2@login.example": false, "%zz": false,
	} {
		_, err := NewRemote(RemoteConfig{URL: addr})
		if (err == nil) != ok || err != nil && strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func FuzzKeySet(f *testing.F) {
	f.Add(setOf(jwkOf("a", &pairs().rsa.PublicKey), jwkOf("b", pairs().ed.Public()), jwkOf("c", pairs().ec["ES256"].Public())))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AAAA"}]}`))
	f.Add([]byte(`{"keys":[null]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, _, err := parseSet(body, algorithms)
		if (err == nil) != (len(keys) > 0) {
			t.Fatalf("%d keys and %v", len(keys), err)
		}
		for _, k := range keys {
			for _, alg := range hsFamily {
				if k.Fits(alg) {
					t.Fatalf("a fetched key fits %s", alg)
				}
			}
		}
	})
}
