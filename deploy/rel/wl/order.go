package wl

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// reason is one reason to refuse a push, in the order of evaluation. Two together must be answered as the first of them.
type reason struct {
	name   string
	want   string         // status, code and limit
	limits map[string]any // of the plan, in the words of the control database
	status string         // of the cluster
	spend  func(context.Context, *Actor, Node)
	change func(*order, *Node)
}

// order is the push that is refused.
type order struct {
	path, queue, partition string
	items, size            int
}

// reasons are those that a push can have, first come first told. Rates of one in a thousand seconds keep a spent bucket
// spent for longer than any run lasts.
var reasons = []reason{
	{name: "an unknown path", want: "404 route_blocked", change: func(o *order, _ *Node) { o.path = "/api/v1/nothing" }},
	{name: "no credential", want: "401 unauthorized", change: func(_ *order, n *Node) { n.Header = "" }},
	{name: "a suspended cluster", want: "403 cluster_suspended", status: "suspended"},
	{
		name: "request rate", want: "429 rate_limited req", limits: map[string]any{"max_req_per_sec": 0.001, "req_burst": 1},
		spend: func(ctx context.Context, a *Actor, at Node) { a.spend(ctx, at, "req", get(lists)) },
	},
	{
		name: "message rate", want: "429 rate_limited msgs", limits: map[string]any{"max_msgs_per_sec": 0.001, "msgs_burst": 5},
		spend: func(ctx context.Context, a *Actor, at Node) {
			a.spend(ctx, at, "msgs", pushes("known", "Default", 5, 1))
		},
	},
	{name: "a queue too many", want: "403 quota_exceeded queues", limits: map[string]any{"max_queues": 0}, change: func(o *order, _ *Node) { o.queue = "another" }},
	{name: "a partition too many", want: "403 quota_exceeded partitions", limits: map[string]any{"max_partitions_per_queue": 0}, change: func(o *order, _ *Node) { o.partition = "one" }},
	{name: "a payload too large", want: "413 payload_too_large payload", limits: map[string]any{"max_payload_bytes": 100}, change: func(o *order, _ *Node) { o.size = 101 }},
	{name: "a batch too large", want: "413 payload_too_large batch", limits: map[string]any{"max_batch_items": 3}, change: func(o *order, _ *Node) { o.items = 4 }},
	{name: "no storage", want: "403 storage_quota_exceeded storage", limits: map[string]any{"max_retained_bytes": 0}},
	{name: "no allowance", want: "403 quota_exceeded month", limits: map[string]any{"monthly_msgs_quota": 0}},
	{name: "a billing hold", want: "403 push_blocked", status: "push_blocked"},
}

// spend sends a request until it is refused for a limit by a gateway that speaks for the fleet: that limit is in force by then,
// and what it gives is spent.
func (a *Actor) spend(ctx context.Context, at Node, limit string, r request) {
	a.insist(ctx, func() bool {
		v := a.Client.ask(ctx, at, hist.AskArgs{Cluster: "g4", Does: hist.DoesRead, Part: "spend"}, r, 0)
		return v.status == 429 && v.Limit == limit && v.Mode != "local"
	})
}

// insist does something over and over until it has come true, or a gateway should have heard of any edit long ago.
func (a *Actor) insist(ctx context.Context, done func() bool) {
	for range 40 {
		if done() || !a.rest(ctx, 200*time.Millisecond) {
			return
		}
	}
}

// Order is G4: for each pair of reasons a tenant to which both apply, and one push that breaks both.
func Order() Workload {
	w := Workload{Name: "G4", Clusters: []hist.Cluster{{Name: "g4", Workload: "G4"}}}
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
		var pairs []*pair
		for i := range reasons {
			for j := i; j < len(reasons); j++ {
				first, second := &reasons[i], &reasons[j]
				if i != j && first.status != "" && second.status != "" {
					continue // a cluster has one status
				}
				pairs = append(pairs, &pair{first: first, second: second})
			}
		}
		for _, step := range []func(*pair, context.Context, *Actor) error{(*pair).prepare, (*pair).spendSecond, (*pair).spendFirst, (*pair).ask} {
			if err := each(ctx, a, pairs, step); err != nil || ctx.Err() != nil {
				a.remark("the pairs of refusals could not be made: %v", err)
				return
			}
		}
	})
	return w
}

// pair is two reasons and the tenant they apply to.
type pair struct {
	first, second *reason
	tenant        *lab.Tenant
}

func (p *pair) name() string {
	if p.first == p.second {
		return p.first.name
	}
	return p.first.name + " before " + p.second.name
}

// each does one step for all pairs, a few at a time.
func each(ctx context.Context, a *Actor, pairs []*pair, does func(*pair, context.Context, *Actor) error) error {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex // guards wrong
		wrong error
	)
	places := make(chan struct{}, 4)
	for i, p := range pairs {
		// An actor is for one goroutine: each pair has its own, with the randomness of its place in the table.
		own := a.stage.actor(a.w, a.thread+1000+i)
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if err := does(p, ctx, own); err != nil {
				mu.Lock()
				wrong = fmt.Errorf("%s: %w", p.name(), err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return wrong
}

// prepare makes the tenant, with the limits under which its second reason is spent.
func (p *pair) prepare(ctx context.Context, a *Actor) (err error) {
	name := fmt.Sprintf("g4-%d", a.thread)
	if p.tenant, err = a.stage.Fleet.NewTenant(ctx, name, &hist.Limits{}); err != nil {
		return err
	}
	if p.second.spend == nil {
		return nil
	}
	return a.stage.Fleet.Override(ctx, p.tenant, p.second.limits)
}

// spendSecond makes the queue that is known and spends what the second reason wants spent, under its limits alone. Then
// come those of the first: a spent request bucket would refuse whatever spends another.
func (p *pair) spendSecond(ctx context.Context, a *Actor) error {
	at := a.gateway(p.tenant, "")
	if p.second.spend != nil {
		p.second.spend(ctx, a, at)
	}
	if p.first == p.second || p.first.spend == nil {
		return nil
	}
	return a.stage.Fleet.Override(ctx, p.tenant, p.first.limits)
}

// spendFirst spends what the first reason wants spent, and puts all limits and the status in force.
func (p *pair) spendFirst(ctx context.Context, a *Actor) error {
	if p.first != p.second && p.first.spend != nil {
		p.first.spend(ctx, a, a.gateway(p.tenant, ""))
	}
	limits := maps.Clone(p.first.limits)
	if limits == nil {
		limits = map[string]any{}
	}
	maps.Copy(limits, p.second.limits)
	if err := a.stage.Fleet.Override(ctx, p.tenant, limits); err != nil {
		return err
	}
	for _, r := range []*reason{p.first, p.second} {
		if r.status != "" {
			return a.stage.Fleet.Do(ctx, "SELECT queengate.set_cluster_status($1, $2)", p.tenant.Cluster, r.status)
		}
	}
	return nil
}

// ask sends the push that breaks both rules, first until the gateway has heard of both, and then to be judged: an order that
// is wrong stays so.
func (p *pair) ask(ctx context.Context, a *Actor) error {
	at := a.gateway(p.tenant, "")
	o := order{path: "/api/v1/push", queue: "known", partition: "Default", items: 1, size: 1}
	for _, r := range []*reason{p.second, p.first} {
		if r.change != nil {
			r.change(&o, &at)
		}
	}
	r := pushes(o.queue, o.partition, o.items, o.size)
	r.path = o.path
	args := hist.AskArgs{Cluster: "g4", Does: hist.DoesPush, Messages: o.items, Part: p.name()}
	a.insist(ctx, func() bool {
		v := a.Client.ask(ctx, at, args, r, 0)
		return v.Refusal(v.status) == p.first.want
	})
	args.Want = p.first.want
	a.Client.ask(ctx, at, args, r, 0)
	return nil
}
