package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/wire"
)

// tokenFor is a bearer token of the world's user that ends at a time of the test's.
func (w *world) tokenFor(jti string, expires time.Time) string {
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": tokenIssuer, "sub": w.user.String(), "jti": jti, "exp": expires.Unix(),
	})
	t.Header["kid"] = "k"
	s, err := t.SignedString([]byte(tokenSecret))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// TestAChangeEndsThePollsItWouldRefuse parks a poll, takes away what it was let in for, and expects the refusal of a new
// request at once, with the broker's wait ended.
func TestAChangeEndsThePollsItWouldRefuse(t *testing.T) {
	t.Parallel()
	status := func(s plans.Status) func(*world) {
		return func(w *world) { w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = s }) }
	}
	for name, c := range map[string]struct {
		token  bool
		change func(*world)
		status int
		code   string
	}{
		"a revoked key":      {false, func(w *world) { w.facts.Keys = nil; w.publish() }, 401, "unauthorized"},
		"an expired key":     {false, func(w *world) { w.change(func(_ *plans.Cluster, k *plans.Key) { k.ExpiresAt = time.Now() }) }, 401, "key_expired"},
		"a lost scope":       {false, func(w *world) { w.change(func(_ *plans.Cluster, k *plans.Key) { k.Scopes = plans.ScopeProduce }) }, 403, "forbidden"},
		"a suspended one":    {false, status(plans.Suspended), 403, "cluster_suspended"},
		"a deleted one":      {false, status(plans.Deleting), 403, "cluster_suspended"},
		"a paused one":       {false, status(plans.Paused), 429, "rate_limited"},
		"a cluster gone":     {false, func(w *world) { w.facts.Clusters, w.facts.Keys = w.facts.Clusters[1:], nil; w.publish() }, 401, "unauthorized"},
		"a token, suspended": {true, status(plans.Suspended), 403, "cluster_suspended"},
		"a token, gone":      {true, func(w *world) { w.facts.Clusters = w.facts.Clusters[1:]; w.publish() }, 421, "cluster_unknown"},
		"a revoked token":    {true, func(w *world) { w.facts.Revoked = []string{"t"}; w.publish() }, 401, "unauthorized"},
		"a lost role": {true, func(w *world) {
			w.facts.Grants = []plans.Grant{{User: w.user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.RoleViewer}}}
			w.publish()
		}, 403, "forbidden"},
		"no role at all": {true, func(w *world) { w.facts.Grants = nil; w.publish() }, 403, "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, parked, ended := parking(t)
			// A new refused poll would be held back, a parked one has waited already.
			w := setup(t, options{address: address, config: func(c *Config) { c.RefusalHold = time.Hour }})
			request := w.head("GET", waiting)
			if c.token {
				request = strings.Replace(request, w.key, w.tokenFor("t", time.Now().Add(time.Hour)), 1)
			}
			conn := w.dial()
			conn.send(request)
			await(t, parked)
			c.change(w)
			r := conn.read()
			if r.StatusCode != c.status || r.code() != c.code {
				t.Errorf("got %d %q, want %d %s", r.StatusCode, r.body, c.status, c.code)
			}
			if r.Close {
				t.Error("the connection ends")
			}
			await(t, ended)
			until(t, "the slot", func() bool { return w.slots() == 0 })
		})
	}
}

func TestAPollEndsWithItsCredential(t *testing.T) {
	t.Parallel()
	t.Run("key", func(t *testing.T) {
		t.Parallel()
		address, parked, ended := parking(t)
		w := setup(t, options{address: address})
		c := w.dial()
		expires := time.Now().Add(3 * time.Second) // it has to be parked before
		w.change(func(_ *plans.Cluster, k *plans.Key) { k.ExpiresAt = expires })
		c.send(w.head("GET", waiting))
		await(t, parked)
		r := c.read()
		if early := time.Until(expires); r.StatusCode != 401 || r.code() != "key_expired" || early > 0 {
			t.Errorf("got %d %q, %v before the end", r.StatusCode, r.body, early)
		}
		await(t, ended)
	})
	t.Run("key whose end is moved forward", func(t *testing.T) {
		t.Parallel()
		address, parked, _ := parking(t)
		w := setup(t, options{address: address})
		c := w.dial()
		c.send(w.head("GET", waiting))
		await(t, parked)
		w.change(func(_ *plans.Cluster, k *plans.Key) { k.ExpiresAt = time.Now().Add(300 * time.Millisecond) })
		if r := c.read(); r.code() != "key_expired" {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	})
	t.Run("key whose end is put off", func(t *testing.T) {
		t.Parallel()
		address, parked, _ := parking(t)
		w := setup(t, options{address: address, config: func(c *Config) { c.LongPollGrace = 50 * time.Millisecond }})
		c := w.dial()
		w.change(func(_ *plans.Cluster, k *plans.Key) { k.ExpiresAt = time.Now().Add(3 * time.Second) })
		c.send(w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=3500"))
		await(t, parked)
		w.change(func(_ *plans.Cluster, k *plans.Key) { k.ExpiresAt = time.Now().Add(time.Hour) })
		emptyAnswer(t, c.read())
	})
	t.Run("token", func(t *testing.T) {
		t.Parallel()
		address, parked, ended := parking(t)
		w := setup(t, options{address: address})
		const leeway = 30 * time.Second                                         // the verifier's
		expires := time.Now().Add(4*time.Second - leeway).Truncate(time.Second) // tokens tell whole seconds
		c := w.dial()
		c.send(strings.Replace(w.head("GET", waiting), w.key, w.tokenFor("t", expires), 1))
		await(t, parked)
		r := c.read()
		// The wall clock may be slewed meanwhile.
		if early := time.Until(expires.Add(leeway)); r.StatusCode != 401 || r.code() != "unauthorized" || early > 100*time.Millisecond {
			t.Errorf("got %d %q, %v before the end", r.StatusCode, r.body, early)
		}
		await(t, ended)
	})
}

func TestOtherChangesLeaveAPollAlone(t *testing.T) {
	t.Parallel()
	address, parked, release := releasing(t)
	w := setup(t, options{address: address})
	var conns []*wireConn
	for _, credential := range []string{w.key, w.tokenFor("t", time.Now().Add(time.Hour))} {
		c := w.dial()
		c.send(strings.Replace(w.head("GET", waiting), w.key, credential, 1))
		await(t, parked)
		conns = append(conns, c)
	}
	zeta := *w.other
	zeta.Status = plans.Suspended
	w.facts.Clusters = []*plans.Cluster{w.facts.Clusters[0], &zeta}
	w.facts.Revoked = []string{"another"}
	w.publish()
	w.change(func(c *plans.Cluster, _ *plans.Key) { c.Limits.MaxQueues = one(int64(3)) })
	w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = plans.PushBlocked })
	for range conns {
		release <- struct{}{}
	}
	for _, c := range conns {
		if r := c.read(); r.StatusCode != 200 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	}
}

// TestAPollIsJudgedByTheSnapshotOfItsParking stands for a swap between the judgement of a head and the parking.
func TestAPollIsJudgedByTheSnapshotOfItsParking(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	c := w.parkable(0)
	w.facts.Keys = nil
	w.publish()
	p := w.gateway.park(c, time.Now().Add(time.Minute))
	defer w.gateway.unpark(p)
	if e := p.verdict(); e == nil || e.Code != wire.Unauthorized {
		t.Errorf("got %v", e)
	}
}

// parkable is a connection whose request was let in with the world's key.
func (w *world) parkable(i int) *clientConn {
	route, _, err := wire.Match("GET", []byte("/api/v1/pop/queue/q"))
	if err != nil {
		w.t.Fatal(err)
	}
	k := w.facts.Keys[i]
	return &clientConn{gateway: w.gateway, ex: exchange{
		cluster: k.Cluster, principal: auth.Principal{Key: k}, route: route,
		head: head{host: []byte(k.Cluster.Slug + ".example.com"), authorization: []byte(w.key)},
	}}
}

// BenchmarkRejudge measures a swap of the snapshot with many parked polls.
func BenchmarkRejudge(b *testing.B) {
	const polls = 10_000
	w := setup(b, options{facts: func(w *world) {
		for i := range 100 {
			c := *w.other
			c.ID, c.Slug = uuid.New(), fmt.Sprintf("c%d", i)
			w.facts.Clusters = append(w.facts.Clusters, &c)
			w.facts.Keys = append(w.facts.Keys, &plans.Key{ID: uuid.New(), Cluster: &c, Scopes: plans.ScopeConsume, Hash: [32]byte{byte(i), 1}})
		}
	}})
	for i := range polls {
		w.gateway.park(w.parkable(1+i%100), time.Now().Add(time.Hour))
	}
	b.Run("another cluster", func(b *testing.B) {
		snap := w.book.Snapshot()
		for b.Loop() {
			w.gateway.rejudge(nil, snap)
		}
	})
	if n := len(w.gateway.parked.polls); n != polls {
		b.Fatalf("%d polls are parked", n)
	}
	w.gateway.parked.drain()
}
