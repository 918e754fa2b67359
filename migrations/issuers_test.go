package migrations_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
)

// TestIssuersAreHeldToTheirBounds states what an issuer may be: each refusal by its SQLSTATE, "" for what is accepted.
func TestIssuersAreHeldToTheirBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const (
		unknown, taken, invalid, check, state = "P0002", "23505", "22023", "23514", "55000"
		missing                               = "23502"
	)
	w.exec("SELECT queengate.set_issuer($1, 'known', 'https://known.example', 'queengate', $2)", w.acme, someRules)
	set := func(args string) string { return "SELECT queengate.set_issuer($1, " + args + ")" }
	rules := func(text string) string { return set("'x', 'https://x.example', 'a', '" + text + "'") }
	rule := func(text string) string { return rules("[" + text + "]") }
	with := func(member string) string {
		return rule(`{"claim": "c", "value": "v", "roles": ["viewer"], ` + member + `}`)
	}
	for what, c := range map[string]struct {
		want, sql string
		tenant    uuid.UUID
	}{
		"an issuer":                              {"", set("'x', 'https://x.example/realms/a', 'a', '[]'"), w.acme},
		"with a key set of its own":              {"", set("'x', 'https://x.example', 'a', '[]', 'https://keys.example:8443/k?v=1'"), w.acme},
		"with one algorithm":                     {"", set("'x', 'https://x.example', 'a', '[]', NULL, '{ES256}'"), w.acme},
		"the same issuer of another tenant":      {"", set("'known', 'https://known.example', 'a', '[]'"), w.rival},
		"of nobody":                              {unknown, set("'x', 'https://x.example', 'a', '[]'"), uuid.New()},
		"under a second name":                    {taken, set("'x', 'https://known.example', 'a', '[]'"), w.acme},
		"with a name that is no slug":            {check, set("'X:Y', 'https://x.example', 'a', '[]'"), w.acme},
		"with a file":                            {check, set("'x', 'file:///etc/passwd', 'a', '[]'"), w.acme},
		"with another protocol":                  {check, set("'x', 'gopher://x.example', 'a', '[]'"), w.acme},
		"with a password":                        {check, set("'x', 'https://ann:pw@x.example', 'a', '[]'"), w.acme},
		"with a query":                           {check, set("'x', 'https://x.example?a', 'a', '[]'"), w.acme},
		"with a blank":                           {check, set("'x', 'https://x.example/a b', 'a', '[]'"), w.acme},
		"with keys in a file":                    {check, set("'x', 'https://x.example', 'a', '[]', 'file:///etc/passwd'"), w.acme},
		"without an audience":                    {missing, set("'x', 'https://x.example', NULL, '[]'"), w.acme},
		"with an empty audience":                 {check, set("'x', 'https://x.example', '', '[]'"), w.acme},
		"without algorithms":                     {invalid, set("'x', 'https://x.example', 'a', '[]', NULL, '{}'"), w.acme},
		"with the algorithm none":                {invalid, set("'x', 'https://x.example', 'a', '[]', NULL, '{none}'"), w.acme},
		"with a shared secret's algorithm":       {invalid, set("'x', 'https://x.example', 'a', '[]', NULL, '{RS256,HS256}'"), w.acme},
		"with an algorithm of null":              {invalid, set("'x', 'https://x.example', 'a', '[]', NULL, '{NULL}'"), w.acme},
		"without rules":                          {invalid, set("'x', 'https://x.example', 'a', NULL"), w.acme},
		"a rule with roles":                      {"", rule(`{"claim": "c", "value": "v", "roles": ["admin", "viewer"]}`), w.acme},
		"a rule with scopes":                     {"", rule(`{"claim": "c", "value": "v", "scopes": ["produce"]}`), w.acme},
		"a rule with a path":                     {"", rule(`{"claim": ["realm_access", "roles"], "value": "v", "roles": ["viewer"]}`), w.acme},
		"a rule with clusters":                   {"", with(`"clusters": ["acme-main"]`), w.acme},
		"rules that are an object":               {invalid, rules(`{}`), w.acme},
		"a rule that is a text":                  {invalid, rule(`"x"`), w.acme},
		"a rule that gives nothing":              {invalid, rule(`{"claim": "c", "value": "v"}`), w.acme},
		"a rule that gives an empty list":        {invalid, rule(`{"claim": "c", "value": "v", "roles": [], "scopes": []}`), w.acme},
		"a rule without a claim":                 {invalid, rule(`{"value": "v", "roles": ["viewer"]}`), w.acme},
		"a rule with an empty claim":             {invalid, rule(`{"claim": "", "value": "v", "roles": ["viewer"]}`), w.acme},
		"a rule with an empty path":              {invalid, rule(`{"claim": [], "value": "v", "roles": ["viewer"]}`), w.acme},
		"a rule with a number in its path":       {invalid, rule(`{"claim": [1], "value": "v", "roles": ["viewer"]}`), w.acme},
		"a rule without a value":                 {invalid, rule(`{"claim": "c", "roles": ["viewer"]}`), w.acme},
		"a rule with an empty value":             {invalid, rule(`{"claim": "c", "value": "", "roles": ["viewer"]}`), w.acme},
		"a rule with a value of another type":    {invalid, rule(`{"claim": "c", "value": true, "roles": ["viewer"]}`), w.acme},
		"a rule with a role that does not exist": {invalid, rule(`{"claim": "c", "value": "v", "roles": ["owner"]}`), w.acme},
		"a rule with a role that is no list":     {invalid, rule(`{"claim": "c", "value": "v", "roles": "admin"}`), w.acme},
		"a rule with a scope of the operators":   {invalid, with(`"scopes": ["internal"]`), w.acme},
		"a rule with clusters of none":           {invalid, with(`"clusters": []`), w.acme},
		"a rule with a cluster that is no slug":  {invalid, with(`"clusters": ["*"]`), w.acme},
		"a rule with something else":             {invalid, with(`"unless": "x"`), w.acme},
		"too many rules": {
			invalid, rules("[" + strings.TrimSuffix(strings.Repeat(`{"claim": "c", "value": "v", "roles": ["viewer"]},`, 65), ",") + "]"), w.acme,
		},
		"switching an unknown one":         {unknown, "SELECT queengate.set_issuer_active($1, 'known', true)", w.rival},
		"deleting another tenant's":        {unknown, "SELECT queengate.delete_issuer($1, 'known')", w.rival},
		"revoking another tenant's tokens": {unknown, "SELECT queengate.revoke_issuer_tokens($1, 'known')", w.rival},
		"revoking a token without an id":   {invalid, "SELECT queengate.revoke_issuer_token($1, 'known', '', now())", w.acme},
		"revoking nobody's tokens":         {unknown, "SELECT queengate.revoke_tenant_tokens($1)", uuid.New()},
		"a cut-off of a user that is none": {check, "SELECT queengate.cut_off($1, NULL, NULL, 'ann', now())", w.acme},
	} {
		// Each in a transaction that is given up: what is accepted leaves nothing for the next.
		tx, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), c.sql, c.tenant)
		if got := pg.State(err); got != c.want || (err == nil) != (c.want == "") {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 7 {
		w.exec("SELECT queengate.set_issuer($1, $2, $3, 'a', '[]')", w.acme, fmt.Sprintf("i%d", i), fmt.Sprintf("https://i%d.example", i))
	}
	_, err := w.pool.Exec(t.Context(), set("'x', 'https://x.example', 'a', '[]'"), w.acme)
	if got := pg.State(err); got != state {
		t.Errorf("the ninth issuer: %v", err)
	}
}

// TestCutOffsOnlyMoveForward: a late word about an earlier instant must not revive tokens.
func TestCutOffsOnlyMoveForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, step := range []struct{ before, want time.Time }{
		{noon, noon}, {noon.Add(-time.Hour), noon}, {noon.Add(time.Hour), noon.Add(time.Hour)},
	} {
		w.exec("SELECT queengate.revoke_user_tokens('ann@acme.example', $1)", step.before)
		if got := scan[time.Time](w, "SELECT not_before FROM queengate.token_cutoffs"); !got.Equal(step.want) {
			t.Errorf("after %v: %v, want %v", step.before, got, step.want)
		}
	}
}
