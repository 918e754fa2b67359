package proxy

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

func TestWallsCountPerAddress(t *testing.T) {
	t.Parallel()
	w := newConnWalls(&Config{MaxConns: 5, MaxAddressConns: 2})
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	six, same := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff:1")
	local := netip.MustParseAddr("127.0.0.1")
	enter := func(addr netip.Addr, want bool) {
		t.Helper()
		if got := w.enter(addr); got != want {
			t.Fatalf("%s: enters %v, want %v", addr, got, want)
		}
	}
	leave := func(addr netip.Addr) { w.leave(&clientConn{addr: addr}) }
	enter(a, true)
	enter(a, true)
	enter(a, false)
	enter(b, true)
	leave(a)
	enter(a, true)
	leave(a)
	leave(a)
	leave(b)
	enter(six, true)
	enter(same, true)
	enter(six, false)
	leave(six)
	leave(same)
	for range 5 {
		enter(local, true)
	}
	enter(local, false)
	for range 5 {
		leave(local)
	}
	if w.open.Load() != 0 || len(w.perAddress) != 0 {
		t.Errorf("left over: %d open, %v", w.open.Load(), w.perAddress)
	}
}

func TestByteBudgetIsShared(t *testing.T) {
	t.Parallel()
	b := newByteBudget(&Config{BodyBudgetBytes: 100 << 10, MaxBodyBytes: 20 << 10})
	l, m := &clusterLoad{}, &clusterLoad{}
	if !b.take(l, 20<<10) || b.take(l, 10<<10) {
		t.Error("a cluster has another share than a quarter")
	}
	for range 4 {
		if !b.take(m, 16<<10) {
			break
		}
		m = &clusterLoad{}
	}
	if b.take(&clusterLoad{}, 20<<10) {
		t.Error("the whole is exceeded")
	}
	b.give(l, 20<<10)
	if l.bodyBytes.Load() != 0 {
		t.Error("a share is not given back")
	}
}

func TestBodyBuffersGrowWithinTheirClass(t *testing.T) {
	t.Parallel()
	for size, class := range map[int64]int{0: 0, 1: 0, 4096: 0, 4097: 1, 8192: 1, 8193: 2, 16 << 20: 12} {
		if got := classOf(size); got != class || int64(smallestBody)<<got < size {
			t.Errorf("%d bytes: class %d, want %d", size, got, class)
		}
	}
	budget, load := newByteBudget(&Config{BodyBudgetBytes: 16 << 10, MaxBodyBytes: 16 << 10}), &clusterLoad{}
	b := newBodyBuffer(budget, load, 1)
	b.b = append(b.b, "kept"...)
	if !b.grow() || string(b.b) != "kept" || budget.used.Load() != 8<<10 {
		t.Errorf("grown to %q with %d bytes", b.b, budget.used.Load())
	}
	if b.grow() {
		t.Error("growing past the budget, both buffers being in memory")
	}
	b.release()
	if budget.used.Load() != 0 {
		t.Errorf("%d bytes are kept", budget.used.Load())
	}
}

func TestCellTokensAreLeastAndRenewed(t *testing.T) {
	t.Parallel()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]ed25519.PublicKey{wire.KeyID(pub): pub}
	tokens := newCellTokens(key)
	c := &plans.Cluster{ID: uuid.New(), Slug: "acme", BrokerTenant: uuid.New(), Cell: "c1", Limits: plans.Limits{
		MaxQueues: one(int64(7)), MaxPartitionsPerQueue: one(int64(9)), RequestsPerSecond: one(40.0),
		Modes: map[string]plans.Mode{plans.LimitPartitions: plans.Shadow, plans.LimitRequests: plans.Shadow},
	}}
	now := time.Now()
	tok, err := tokens.of(c, wire.AccessWriteOnly, "key1", false, now)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(tok.lines), "\r\n")
	text := strings.TrimPrefix(lines[0], "Authorization: Bearer ")
	claims, err := wire.VerifyCell(keys, "c1", text, now)
	if err != nil {
		t.Fatal(err)
	}
	if claims.Subject != "key1" || claims.Tenant != c.BrokerTenant || claims.Access != wire.AccessWriteOnly || claims.MaxQueues == nil || *claims.MaxQueues != 7 {
		t.Errorf("the token states %+v", claims)
	}
	if claims.MaxPartitions != nil {
		t.Error("a shadowed cap is enforced by the broker")
	}
	if claims.RetentionCeiling != nil || claims.RefuseUnbounded {
		t.Errorf("a plan that allows queues without retention states a ceiling: %+v", claims)
	}
	if r := claims.RequestsPerSecond; r == nil || *r != 40 {
		t.Error("the token does not state the rate, which is the tenant's weight even where it is only watched")
	}
	if lines[1] != "X-Queen-Tenant: "+c.BrokerTenant.String() {
		t.Errorf("got %q", lines)
	}
	if claims.WithholdPayloads {
		t.Error("payloads are withheld from who may see them")
	}
	again := func(c *plans.Cluster, a wire.Access, subject string, at time.Time, blind ...bool) *cellToken {
		tok, err := tokens.of(c, a, subject, blind != nil, at)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	if again(c, wire.AccessWriteOnly, "key1", now.Add(tokenRenew-time.Second)) != tok {
		t.Error("a token is minted twice")
	}
	edited := *c
	for name, other := range map[string]func() *cellToken{
		"another level":   func() *cellToken { return again(c, wire.AccessReadWrite, "key1", now) },
		"another subject": func() *cellToken { return again(c, wire.AccessWriteOnly, "key2", now) },
		"a later time":    func() *cellToken { return again(c, wire.AccessWriteOnly, "key1", now.Add(2*tokenRenew)) },
		"an edited plan":  func() *cellToken { return again(&edited, wire.AccessWriteOnly, "key1", now) },
		"a blind bearer":  func() *cellToken { return again(c, wire.AccessWriteOnly, "key1", now, true) },
	} {
		if before := again(c, wire.AccessWriteOnly, "key1", now); other() == before {
			t.Errorf("%s gets the same token", name)
		}
	}
}

func TestPairsAreDistinct(t *testing.T) {
	t.Parallel()
	var s pairSet
	for i := range 100 {
		s.add(quota.Pair{Queue: "q", Partition: fmt.Sprint(i % 40)})
		s.add(quota.Pair{Queue: "q", Partition: fmt.Sprint(i % 40)})
	}
	seen := map[quota.Pair]bool{}
	for _, p := range s.list {
		seen[p] = true
	}
	if len(s.list) != 40 || len(seen) != 40 {
		t.Errorf("%d pairs, %d distinct, want 40", len(s.list), len(seen))
	}
}

func TestConfigReportsAllItsProblems(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Config{CellKey: key}).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err = Config{MaxHeadBytes: 1, MaxBodyBytes: -1, BodyTime: -1, Brokers: map[string][]string{"c": {"ftp://x"}}}.Validate()
	for _, want := range []string{"proxy.cell_key", "proxy.max_head_bytes = 1: want 1024..1048576", "proxy.max_body_bytes", "proxy.body_time", "proxy.brokers.c"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

func TestConnectionsOfACloggedClusterAreRefused(t *testing.T) {
	t.Parallel()
	w := setup(t, options{config: func(c *Config) { c.MaxClusterConns = 1 }})
	c := w.dial()
	c.send(w.push(aPush))
	if r := c.read(); r.StatusCode != 201 {
		t.Fatalf("got %d", r.StatusCode)
	}
	d := w.dial()
	d.send(w.push(aPush))
	if r := d.read(); r.StatusCode != 503 || r.code() != "gateway_overloaded" || !d.ended() {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	c.Close()
	until(t, "the first one's end", func() bool { return w.gateway.walls.open.Load() == 0 })
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

func TestRunMayEndBeforeItBegins(t *testing.T) {
	t.Parallel()
	for range 5 {
		w := setup(t, options{})
		w.stop()
	}
}

// TestCellTokensAreBounded: an issuer with subjects without end fills no memory, and is served all the same.
func TestCellTokensAreBounded(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tokens := newCellTokens(key)
	c := &plans.Cluster{ID: uuid.New(), Slug: "acme", Cell: "c1"}
	now := time.Now()
	mint := func(subject string, at time.Time) int {
		if tok, err := tokens.of(c, wire.AccessReadWrite, subject, false, at); err != nil || tok == nil {
			t.Fatalf("%s: %v", subject, err)
		}
		return len(tokens.byKey)
	}
	for i := range maxTokens {
		tokens.byKey[tokenKey{subject: strconv.Itoa(i)}] = &cellToken{renew: now.Add(tokenRenew)}
	}
	if n := mint("one more", now); n != maxTokens {
		t.Errorf("%d tokens are remembered", n)
	}
	if n := mint("one more", now.Add(sweepInterval-1)); n != maxTokens {
		t.Errorf("%d tokens are remembered a moment later", n)
	}
	if n := mint("one more", now.Add(tokenRenew+1)); n != 1 {
		t.Errorf("%d tokens are remembered when the rest is stale", n)
	}
}

// What a plan says of queues without retention goes to the broker with its ceiling, and only where that is enforced.
func TestCellTokensCarryTheRetentionCeiling(t *testing.T) {
	t.Parallel()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	shadow := map[string]plans.Mode{plans.LimitRetention: plans.Shadow}
	for rule, c := range map[string]struct {
		limits  plans.Limits
		ceiling int64 // 0: none is stated
		refuse  bool
	}{
		"allow":               {plans.Limits{MaxRetentionSeconds: one(int64(60))}, 0, false},
		"ceiling":             {plans.Limits{MaxRetentionSeconds: one(int64(60)), Unbounded: plans.GiveCeiling}, 60, false},
		"refuse":              {plans.Limits{MaxRetentionSeconds: one(int64(60)), Unbounded: plans.RefuseUnbounded}, 60, true},
		"there is no ceiling": {plans.Limits{Unbounded: plans.RefuseUnbounded}, 0, false},
		"shadowed":            {plans.Limits{MaxRetentionSeconds: one(int64(60)), Unbounded: plans.RefuseUnbounded, Modes: shadow}, 0, false},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			tok, err := newCellTokens(key).of(&plans.Cluster{ID: uuid.New(), BrokerTenant: uuid.New(), Cell: "c1", Limits: c.limits}, wire.AccessWriteOnly, "k", false, now)
			if err != nil {
				t.Fatal(err)
			}
			text, _, _ := strings.Cut(strings.TrimPrefix(string(tok.lines), "Authorization: Bearer "), "\r\n")
			claims, err := wire.VerifyCell(map[string]ed25519.PublicKey{wire.KeyID(pub): pub}, "c1", text, now)
			if err != nil {
				t.Fatal(err)
			}
			var ceiling int64
			if claims.RetentionCeiling != nil {
				ceiling = *claims.RetentionCeiling
			}
			if ceiling != c.ceiling || claims.RefuseUnbounded != c.refuse {
				t.Errorf("the token states %d and %v, want %d and %v", ceiling, claims.RefuseUnbounded, c.ceiling, c.refuse)
			}
		})
	}
}
