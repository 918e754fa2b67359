package plans

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestClaimRules(t *testing.T) {
	t.Parallel()
	viewer := ClaimRule{Claim: []string{"c"}, Value: "v", Roles: []Role{RoleViewer}}
	for text, want := range map[string][]ClaimRule{
		`[]`: {},
		`[{"claim":"c","value":"v","roles":["viewer"]}]`:                                                                     {viewer},
		`[{"claim":["c","d"],"value":"v","scopes":["produce","read"],"clusters":["a","b"]}]`:                                 {{Claim: []string{"c", "d"}, Value: "v", Scopes: ScopeProduce | ScopeRead, Clusters: []string{"a", "b"}}},
		`[{"claim":"c","value":"v","roles":["viewer","owner"],"scopes":["root"]}]`:                                           {viewer}, // what is not known grants nothing
		`[{"claim":"c","value":"v","roles":["admin"],"unless":"x"},{"claim":"c","value":"v","roles":["viewer"]}]`:            {viewer}, // it may be a condition
		`[{"value":"v","roles":["admin"]},{"claim":"","roles":["admin"]},{"claim":"c","roles":["admin"]}]`:                   {},
		`[{"claim":1,"value":"v","roles":["admin"]},{"claim":[],"value":"v"},{"claim":"c","value":"v","clusters":"a"},null]`: {},
	} {
		got, err := ParseClaimRules([]byte(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{`{}`, `"x"`, `[1]`, ``} {
		if got, err := ParseClaimRules([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestAnIssuerThatIsAsItWasStaysTheSame: keys and remembered tokens hang on it, so a load of everything must not have a
// fleet ask every issuer at once.
func TestAnIssuerThatIsAsItWasStaysTheSame(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	f.listening()
	rules := `[{"claim": "c", "value": "v", "roles": ["viewer"]}]`
	for _, name := range []string{"one", "two"} {
		f.exec("SELECT queengate.set_issuer($1, $2, 'https://' || $2 || '.example', 'a', $3)", f.tenant, name, rules)
	}
	one := func(s *Snapshot) *Issuer { return s.Issuer(f.tenant, "https://one.example") }
	two := func(s *Snapshot) *Issuer { return s.Issuer(f.tenant, "https://two.example") }
	f.await("the issuers", func(s *Snapshot) bool { return one(s) != nil && two(s) != nil })
	before := f.book.Snapshot()
	f.exec("SELECT queengate.set_issuer($1, 'one', 'https://one.example', 'b', $2)", f.tenant, rules)
	f.await("the edit", func(s *Snapshot) bool { return one(s).Audience == "b" })
	edited := f.book.Snapshot()
	if one(edited) == one(before) || two(edited) != two(before) {
		t.Error("an edit did not change its issuer and that alone")
	}
	seq := scan[int64](f, "INSERT INTO queengate.inval_log (kind, id) VALUES ('all', '') RETURNING seq")
	f.await("a load of everything", func(s *Snapshot) bool { return s.Seq() >= seq })
	if all := f.book.Snapshot(); one(all) != one(edited) || two(all) != two(edited) {
		t.Error("a load of everything made new values of the same issuers")
	}
}

// TestThePollKeepsARevocationWithinASecond: half of it at most until the next look.
func TestThePollKeepsARevocationWithinASecond(t *testing.T) {
	t.Parallel()
	if b := NewBook(nil, nil, 0); b.poll > time.Second/2 {
		t.Errorf("the poll's interval is %v", b.poll)
	}
}
