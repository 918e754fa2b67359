package bearer

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestKeysAreFetchedWhenTheyAreDue: at once, by the interval, after a failure sooner and then ever later; an answer on
// demand counts too.
func TestKeysAreFetchedWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	is := newIssuer(t, setOf(jwkOf("a", &pairs().rsa.PublicKey)))
	r := is.remote(t, func(c *RemoteConfig) { c.Refresh, c.Pause = time.Minute, 10*time.Second })
	failing := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }
	at := now
	tend := func(rule string, asked int64) {
		t.Helper()
		due := r.Tend(t.Context(), at)
		if got := is.asked.Load(); got != asked {
			t.Errorf("%s: asked %d times, want %d", rule, got, asked)
		}
		at = due
	}
	tend("the first time", 1)
	if early := at.Sub(now); early < 54*time.Second || early > time.Minute {
		t.Errorf("due after %v, want a minute less a tenth at most", early)
	}
	due := at
	at = due.Add(-1)
	tend("a moment early", 1)
	is.answers(failing)
	tend("by the interval, in vain", 2)
	for i, wait := range []time.Duration{10, 20, 40, 60, 60} {
		begin := due
		if i > 0 {
			begin = at
			tend("again, in vain", int64(2+i))
		}
		if got := at.Sub(begin); got != wait*time.Second {
			t.Errorf("after failure %d: due after %v, want %v s", i+1, got, int(wait))
		}
	}
	is.serve(setOf(jwkOf("b", &pairs().rsa.PublicKey)))
	found := at.Add(-time.Second)
	if got := ask(t, r, "RS256", pairs().rsa, "b", found); got != 0 {
		t.Fatalf("on demand: reason %d", got)
	}
	tend("when it has just been done on demand", 7)
	if at.Before(found.Add(54 * time.Second)) {
		t.Errorf("due %v after a good answer", at.Sub(found))
	}
}

// TestKeysAreUsedForAWhileWithoutTheirIssuer: the last good set serves through an outage, not for ever.
func TestKeysAreUsedForAWhileWithoutTheirIssuer(t *testing.T) {
	t.Parallel()
	is := newIssuer(t, setOf(jwkOf("a", &pairs().rsa.PublicKey)))
	r := is.remote(t, func(c *RemoteConfig) { c.MaxAge = time.Minute })
	if r.Usable(now) {
		t.Error("usable before the first set")
	}
	for _, c := range []struct {
		rule  string
		after time.Duration
		want  Reason
	}{
		{"fresh", 0, 0}, {"a minute old", time.Minute, 0}, {"older", time.Minute + 1, KeysUnavailable},
	} {
		if got := ask(t, r, "RS256", pairs().rsa, "a", now.Add(c.after)); got != c.want {
			t.Errorf("%s: reason %d, want %d", c.rule, got, c.want)
		}
		is.answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	}
	is.serve(setOf(jwkOf("a", &pairs().rsa.PublicKey)))
	if got := ask(t, r, "RS256", pairs().rsa, "a", now.Add(2*time.Minute)); got != 0 || r.Generation() != 1 {
		t.Errorf("when the issuer is back: reason %d, generation %d", got, r.Generation())
	}
}

// TestKnownKeysAskNobody: who must not wait gets what is there.
func TestKnownKeysAskNobody(t *testing.T) {
	t.Parallel()
	is := newIssuer(t, setOf(jwkOf("a", &pairs().rsa.PublicKey)))
	var changes int
	r := is.remote(t, func(c *RemoteConfig) { c.Changed = func() { changes++ } })
	find := func(kid string) Reason {
		_, err := r.Known().Find(kid, "RS256", now)
		return reasonOf(t, err)
	}
	if got := find("a"); got != KeysUnavailable || is.asked.Load() != 0 {
		t.Errorf("before the first set: reason %d, asked %d times", got, is.asked.Load())
	}
	r.Tend(t.Context(), now)
	r.Tend(t.Context(), now.Add(2*time.Hour))
	if got := find("a"); got != 0 {
		t.Errorf("known: reason %d", got)
	}
	if got := find("b"); got != UnknownKey || is.asked.Load() != 2 {
		t.Errorf("unknown: reason %d, asked %d times", got, is.asked.Load())
	}
	if changes != 1 || r.Known().Generation() != 1 {
		t.Errorf("%d changes, generation %d: the same set is no change", changes, r.Known().Generation())
	}
}

func TestValuesOfClaims(t *testing.T) {
	t.Parallel()
	var c Claims
	err := c.UnmarshalJSON([]byte(`{"iss":"i","text":"a","list":["a",1,null,"b",["c"]],"number":1,"yes":true,"none":null,
		"https://x.example/roles":["r"],"a.b":"dotted","a":{"b":{"c":["deep"]},"n":null},"Text":"other"}`))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"iss": {"i"}, "text": {"a"}, "TEXT": nil, "list": {"a", "b"}, "number": nil, "yes": nil, "none": nil, "absent": nil,
		"https://x.example/roles": {"r"}, "a.b": {"dotted"}, "a": nil, "a|b": nil, "a|b|c": {"deep"}, "a|n": nil, "a|n|x": nil, "text|x": nil, "list|0": nil,
	} {
		if got := c.Values(strings.Split(path, "|")); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := c.Values(nil); got != nil {
		t.Errorf("no path: %q", got)
	}
}

func TestStatedIssuer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		raw(t, `{"iss":"https://a.example"}`): "https://a.example", raw(t, `{"ISS":"a"}`): "", raw(t, `{"iss":1}`): "", raw(t, `{}`): "",
		raw(t, `[]`): "", raw(t, `null`): "", "": "", ".": "", "..": "", "a.!.c": "", strings.Repeat(".", 1<<20): "",
		raw(t, fmt.Sprintf(`{"iss":"a","x":%q}`, strings.Repeat("x", MaxTokenBytes))): "",
	} {
		if got := StatedIssuer(text); got != want {
			t.Errorf("%.80q: %q, want %q", text, got, want)
		}
	}
}
