package proxy

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// testPool is a pool of n brokers that nobody probes.
func testPool(n int) *pool {
	p := newPool(slog.New(slog.DiscardHandler), "c1", 0)
	addresses := make([]string, n)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("10.0.0.%d:6632", i)
	}
	p.join(addresses, func(*broker) {})
	return p
}

func TestTenantsAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	const tenants = 3000
	for _, n := range []int{2, 3, 5, 16} {
		p := testPool(n)
		count := map[*broker]int{}
		for range tenants {
			key := homeKey(uuid.New(), 0)
			b := p.pick(key, needReady, nil)
			if b != p.owner(key) || b != p.pick(key, needLive, nil) {
				t.Fatal("a tenant has two brokers")
			}
			count[b]++
		}
		even := tenants / n
		for b, got := range count {
			if got < even*7/10 || got > even*13/10 {
				t.Errorf("of %d brokers %s has %d of %d tenants, want about %d", n, b.address, got, tenants, even)
			}
		}
	}
}

func TestOnlyTheTenantsOfALostBrokerMove(t *testing.T) {
	t.Parallel()
	const tenants = 3000
	p := testPool(3)
	before := map[uint64]*broker{}
	for range tenants {
		key := homeKey(uuid.New(), 0)
		before[key] = p.pick(key, needReady, nil)
	}
	changes := p.changes()
	lost := p.brokers()[1]
	lost.failed()
	select {
	case <-changes:
	default:
		t.Error("nobody is told")
	}
	for key, b := range before {
		now := p.pick(key, needReady, nil)
		if b != lost && now != b || now == lost {
			t.Fatalf("a tenant moved from %s to %s", b.address, now.address)
		}
		if other := p.pick(key, needReady, tried{now}); other == now || other == lost {
			t.Fatal("a second attempt goes to the same broker")
		}
	}
}

func TestANewBrokerTakesTenantsFromAllAndGivesNoneAway(t *testing.T) {
	t.Parallel()
	const tenants = 3000
	p := testPool(3)
	before := map[uint64]string{}
	for range tenants {
		key := homeKey(uuid.New(), 0)
		before[key] = p.pick(key, needReady, nil).address
	}
	const fourth = "10.0.1.1:6632"
	p.join([]string{"10.0.0.0:6632", "10.0.0.1:6632", "10.0.0.2:6632", fourth}, func(*broker) {})
	moved := map[string]int{}
	for key, was := range before {
		if now := p.pick(key, needReady, nil).address; now != was {
			if now != fourth {
				t.Fatalf("a tenant moved from %s to %s", was, now)
			}
			moved[was]++
		}
	}
	total := 0
	for was, n := range moved {
		total += n
		if n < tenants/12*6/10 || n > tenants/12*14/10 {
			t.Errorf("%s gave %d tenants, want about %d", was, n, tenants/12)
		}
	}
	if total < tenants/4*8/10 || total > tenants/4*12/10 {
		t.Errorf("%d tenants moved, want about %d", total, tenants/4)
	}
}

func TestASlowStartGivesTenantsBackOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const tenants = 2000
		p := testPool(3)
		p.slowStart = 10 * time.Second
		back := p.brokers()[0]
		var keys []uint64
		for len(keys) < tenants {
			if key := homeKey(uuid.New(), 0); p.pick(key, needReady, nil) == back {
				keys = append(keys, key)
			}
		}
		back.failed()
		for range successesIn {
			back.probed(livez, verdict{answered: true, ok: true}, back.seenFaults(), time.Now())
			back.probed(readyz, verdict{answered: true, ok: true}, back.seenFaults(), time.Now())
		}
		has := map[uint64]bool{}
		for second := range 11 {
			n := 0
			for _, key := range keys {
				at := p.pick(key, needReady, nil) == back
				if has[key] && !at {
					t.Fatal("a tenant that was given back went away again")
				}
				if has[key] = at; at {
					n++
				}
			}
			if want := tenants * second / 10; n < want-tenants/20 || n > want+tenants/20 {
				t.Errorf("after %d s the broker has %d of its tenants, want about %d", second, n, want)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestAPoolWithoutAnybodyElseSkipsTheSlowStart(t *testing.T) {
	t.Parallel()
	p := testPool(2)
	p.slowStart = time.Hour
	for _, b := range p.brokers() {
		b.risen.Store(time.Now().UnixNano())
	}
	key := homeKey(uuid.New(), 0)
	if b := p.pick(key, needReady, nil); b == nil || b != p.owner(key) {
		t.Errorf("got %v, want the owner", b)
	}
}

// TestRequestsOfASpreadClusterGoByTheirQueue holds that everything that concerns a queue goes one way, whether it names
// the queue or only an id of it.
func TestRequestsOfASpreadClusterGoByTheirQueue(t *testing.T) {
	t.Parallel()
	const queue = "orders"
	share := wire.QueueShare(queue)
	lease, partition := share.Stamp(uuid.New()).String(), share.Stamp(uuid.New()).String()
	foreign := (share + 1).Stamp(uuid.New()).String()
	cluster := &plans.Cluster{BrokerTenant: uuid.New(), Spread: 8}
	plain := *cluster
	plain.Spread = 1
	for name, c := range map[string]struct {
		method, path, body string
		pop                wire.PopQuery
		want               wire.Share
		free               bool // by the tenant
	}{
		"push":                         {method: "POST", path: "/api/v1/push", body: `{"items":[{"queue":"orders","payload":1},{"queue":"b","payload":1}]}`, want: share},
		"pop":                          {method: "GET", path: "/api/v1/pop/queue/orders", want: share},
		"pop of a partition":           {method: "GET", path: "/api/v1/pop/queue/orders/partition/p", want: share},
		"discovery":                    {method: "GET", path: "/api/v1/pop", pop: wire.PopQuery{Namespace: "n", Task: "t"}, want: wire.ScopeShare("n", "t")},
		"ack by lease":                 {method: "POST", path: "/api/v1/ack", body: `{"transactionId":"t","partitionId":"` + foreign + `","leaseId":"` + lease + `"}`, want: share},
		"ack without a lease":          {method: "POST", path: "/api/v1/ack", body: `{"transactionId":"t","partitionId":"` + partition + `"}`, want: share},
		"batch ack":                    {method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[{"transactionId":"t","partitionId":"` + partition + `"},{"transactionId":"t","partitionId":"` + foreign + `"}]}`, want: share},
		"ack by ids that tell nothing": {method: "POST", path: "/api/v1/ack", body: `{"transactionId":"t","partitionId":"` + uuid.NewString() + `","leaseId":"x"}`, free: true},
		"empty batch ack":              {method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[]}`, free: true},
		"extend":                       {method: "POST", path: "/api/v1/lease/" + lease + "/extend", want: share},
		"transaction by lease":         {method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"type":"push","items":[{"queue":"b","payload":1}]}],"requiredLeases":["` + lease + `"]}`, want: share},
		"transaction by ack":           {method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"type":"push","items":[{"queue":"b","payload":1}]},{"type":"ack","transactionId":"t","partitionId":"` + partition + `"}]}`, want: share},
		"transaction of pushes":        {method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"type":"push","items":[{"queue":"orders","payload":1}]}]}`, want: share},
		"configure":                    {method: "POST", path: "/api/v1/configure", body: `{"queue":"orders"}`, want: share},
		"fetch":                        {method: "POST", path: "/api/v1/fetch", body: `{"entries":[{"queue":"orders","partition":"p","offset":0}]}`, want: share},
		"changed partitions":           {method: "POST", path: "/api/v1/partitions/changed", body: `{"entries":[{"queue":"orders"}]}`, want: share},
		"seek":                         {method: "POST", path: "/api/v1/consumer-groups/g/queues/orders/seek", body: `{}`, want: share},
		"depth":                        {method: "GET", path: "/api/v1/resources/queues/orders/depth", want: share},
		"message":                      {method: "GET", path: "/api/v1/messages/" + partition + "/t", want: share},
		"overview":                     {method: "GET", path: "/api/v1/resources/overview", free: true},
		"groups":                       {method: "GET", path: "/api/v1/consumer-groups/orders", free: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			route, params, err := wire.Match(c.method, []byte(c.path))
			if err != nil {
				t.Fatal(err)
			}
			measured := func(cl *plans.Cluster) *exchange {
				ex := &exchange{route: route, params: params, pop: c.pop, cluster: cl}
				if _, e := measure(ex, []byte(c.body)); e != nil {
					t.Fatal(e)
				}
				return ex
			}
			ex := measured(cluster)
			if ex.shared == c.free || ex.shared && ex.share != c.want {
				t.Errorf("share %d (%v), want %d", ex.share, ex.shared, c.want)
			}
			want := uint64(c.want) % 8
			if c.free {
				want = 0
			}
			if ex.home() != homeKey(cluster.BrokerTenant, want) {
				t.Error("the key is another one")
			}
			if ex := measured(&plain); ex.shared || ex.home() != homeKey(plain.BrokerTenant, 0) {
				t.Error("a cluster that is not spread goes by more than its tenant")
			}
		})
	}
}

func TestSharesLieEvenlyAndTheFirstStaysAtHome(t *testing.T) {
	t.Parallel()
	p := testPool(3)
	count := map[*broker]int{}
	const clusters, spread = 200, 16
	for range clusters {
		tenant := uuid.New()
		for i := range uint64(spread) {
			count[p.pick(homeKey(tenant, i), needReady, nil)]++
		}
		ex := exchange{cluster: &plans.Cluster{BrokerTenant: tenant, Spread: spread}, shared: true, share: spread}
		if ex.home() != homeKey(tenant, 0) {
			t.Fatal("the first share is not where the tenant was")
		}
	}
	for b, n := range count {
		if even := clusters * spread / 3; n < even*9/10 || n > even*11/10 {
			t.Errorf("%s has %d shares, want about %d", b.address, n, even)
		}
	}
}
