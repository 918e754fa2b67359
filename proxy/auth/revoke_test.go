package auth

import (
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// TestRevocationsReachTokensOfOurs is W32 of spec/gateway.md 12: there, short bearers outlived the logout of their session,
// and a revocation was seen a minute late or not at all. Here a snapshot that has it is all it takes, also for a token that
// is remembered.
func TestRevocationsReachTokensOfOurs(t *testing.T) {
	t.Parallel()
	user := uuid.MustParse(goodClaims()["sub"].(string))
	soon := now.Add(time.Nanosecond)
	for rule, c := range map[string]struct {
		claims jwt.MapClaims // more of them; nil removes
		change func(*world)
		want   wire.Code
	}{
		"nothing":                         {nil, func(*world) {}, ""},
		"the token":                       {nil, func(w *world) { w.facts.Revoked = []string{"token-1"} }, wire.Unauthorized},
		"another token":                   {nil, func(w *world) { w.facts.Revoked = []string{"token-2"} }, ""},
		"the session that it was made of": {jwt.MapClaims{"sid": "session-1"}, func(w *world) { w.facts.Revoked = []string{"session-1"} }, wire.Unauthorized},
		"another session":                 {jwt.MapClaims{"sid": "session-1"}, func(w *world) { w.facts.Revoked = []string{"session-2"} }, ""},
		"the user's tokens":               {nil, func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: user, Before: soon}} }, wire.Unauthorized},
		"the user's older tokens":         {nil, func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: user, Before: now}} }, ""},
		"a token that does not say when":  {jwt.MapClaims{"iat": nil}, func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: user, Before: now.Add(-time.Hour)}} }, wire.Unauthorized},
		"another user's tokens":           {nil, func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: uuid.New(), Before: soon}} }, ""},
		"all tokens of the tenant":        {nil, func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: w.cluster.TenantID, Before: soon}} }, wire.Unauthorized},
		"all tokens of another tenant":    {nil, func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: w.other.TenantID, Before: soon}} }, ""},
		"the role":                        {nil, func(w *world) { w.facts.Grants = nil }, wire.Forbidden},
		"roles that it states, before":    {jwt.MapClaims{"roles": []string{"admin"}}, func(*world) {}, ""},
		"roles that it states, and it has no others": {
			jwt.MapClaims{"roles": []string{"producer"}},
			func(w *world) {
				w.facts.Grants = nil
				w.facts.Cutoffs = []plans.Cutoff{{Of: w.cluster.ID, User: user, Before: soon}}
			}, wire.Forbidden,
		},
		"roles that it states, and it has one": {
			jwt.MapClaims{"roles": []string{"viewer"}},
			func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: w.cluster.ID, User: user, Before: soon}} }, "",
		},
		"roles that it states since": {
			jwt.MapClaims{"roles": []string{"producer"}},
			func(w *world) {
				w.facts.Grants = nil
				w.facts.Cutoffs = []plans.Cutoff{{Of: w.cluster.ID, User: user, Before: now}}
			}, "",
		},
		"roles that it states of another cluster": {
			jwt.MapClaims{"roles": []string{"producer"}},
			func(w *world) {
				w.facts.Grants = nil
				w.facts.Cutoffs = []plans.Cutoff{{Of: w.other.ID, User: user, Before: soon}}
			}, "",
		},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			v, w := mustNew(t, config()), setup()
			w.cluster.TenantID, w.other.TenantID = uuid.New(), uuid.New()
			w.facts.Grants = []plans.Grant{{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.RoleProducer}}}
			claims := goodClaims()
			if c.claims["roles"] != nil {
				claims["cluster"] = w.cluster.ID.String()
			}
			for name, value := range c.claims {
				if claims[name] = value; value == nil {
					delete(claims, name)
				}
			}
			token := sign(t, jwt.SigningMethodHS256, "hs", []byte(secret), claims)
			r := Request{Authorization: []byte(token), Remote: remote, Tenant: w.cluster.TenantID, Now: now}
			first, err := v.Verify(w.snapshot(), r)
			if err != nil {
				t.Fatal(err)
			}
			c.change(w)
			snap := w.snapshot()
			p, err := v.Verify(snap, r)
			if got := v.Stands(snap, &first, w.cluster.TenantID, now); got != (err == nil) {
				t.Errorf("what was believed stands: %v, and now: %v", got, err)
			}
			if err == nil {
				err = Allow(snap, &p, w.cluster, wire.ClassProduce)
			}
			if got := codeOf(err); got != c.want {
				t.Errorf("%q (%v), want %q", got, err, c.want)
			}
		})
	}
}

// TestATenantsCutOffCountsWhereTheTokenSaysItGoes: on a shared host the token's own cluster tells the tenant.
func TestATenantsCutOffCountsWhereTheTokenSaysItGoes(t *testing.T) {
	t.Parallel()
	v, w := mustNew(t, config()), setup()
	w.cluster.TenantID = uuid.New()
	w.facts.Cutoffs = []plans.Cutoff{{Of: w.cluster.TenantID, Before: now.Add(1)}}
	claims := goodClaims()
	claims["cluster"] = w.cluster.ID.String()
	token := sign(t, jwt.SigningMethodHS256, "hs", []byte(secret), claims)
	if _, err := v.Verify(w.snapshot(), Request{Authorization: []byte(token), Now: now}); codeOf(err) != wire.Unauthorized {
		t.Errorf("%v", err)
	}
}

func TestStandsForKeys(t *testing.T) {
	t.Parallel()
	v, w := mustNew(t, Config{}), setup()
	k := w.addKey(oldKey, func(k *plans.Key) { k.ExpiresAt = now.Add(time.Hour) })
	p, err := v.Verify(w.snapshot(), Request{Authorization: []byte(oldKey), Remote: remote, Now: now})
	if err != nil || !p.Ends.Equal(k.ExpiresAt) {
		t.Fatalf("%+v, %v", p, err)
	}
	if !v.Stands(w.snapshot(), &p, uuid.Nil, now.Add(time.Hour-1)) {
		t.Error("not to its end")
	}
	if v.Stands(w.snapshot(), &p, uuid.Nil, now.Add(time.Hour)) {
		t.Error("beyond its end")
	}
	w.facts.Keys = nil
	if v.Stands(w.snapshot(), &p, uuid.Nil, now) {
		t.Error("after it was revoked")
	}
}
