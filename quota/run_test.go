package quota

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// together makes the requests wait for one round trip, in their order, and returns what was admitted. Meanwhile others end.
func together(g *Gate, c *plans.Cluster, asks []*Ask, now time.Time, end func()) []*Admission {
	p := &g.fleet.pipe
	l := &p.lanes[g.fleet.keysOf(c.ID).lane%laneCount]
	l.mu.Lock()
	l.busy = true // with a round trip that takes its time
	l.mu.Unlock()
	done, ended := make(chan *Admission, len(asks)), 0
	var admitted []*Admission
	take := func(a *Admission) {
		if ended++; a != nil {
			admitted = append(admitted, a)
		}
	}
	waiting := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.queue)
	}
	for _, ask := range asks {
		end()
		before, was := waiting(), ended
		go func() {
			a, _, _ := g.Admit(c, ask, now) // whatever it says
			done <- a
		}()
		for waiting() == before && ended == was {
			select {
			case a := <-done: // it had nothing to ask
				take(a)
			default:
				runtime.Gosched()
			}
		}
	}
	p.leave(l)
	for ended < len(asks) {
		take(<-done)
	}
	heard(g)
	return admitted
}

// double says to a second set of keys what a gateway says to its own, but each call by itself.
type double struct {
	t        testing.TB
	client   *redis.Client
	from, to string // prefixes
	shared   int    // runs of more than one call
}

func (d *double) key(key string) string { return d.to + strings.TrimPrefix(key, d.from) }

func (d *double) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (d *double) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (d *double) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Name() == "evalsha" {
				d.repeat(ctx, cmd.(*redis.Cmd))
			}
		}
		return err
	}
}

func (d *double) repeat(ctx context.Context, cmd *redis.Cmd) {
	words := cmd.Args()
	n := words[2].(int)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = d.key(words[3+i].(string))
	}
	sha, args := words[1].(string), words[3+n:]
	runs := [][]any{args}
	if sha == decideScript.sha && args[2].(int) > 1 {
		d.shared++
		runs = nil
		for _, call := range args[3:] {
			runs = append(runs, []any{args[0], args[1], 1, call})
		}
	}
	var answers []any
	for _, args := range runs {
		answer, err := d.client.EvalSha(ctx, sha, keys, args...).Slice()
		if err != nil {
			d.t.Error(err)
		}
		answers = append(answers, answer...)
	}
	got, _ := cmd.Slice()
	if len(got) != len(answers) {
		d.t.Errorf("%d answers, want %d", len(got), len(answers))
		return
	}
	for i := range got {
		if got[i] != answers[i] {
			d.t.Errorf("call %d of %d: together %s, by itself %s", i, len(got), numbers(got[i]), numbers(answers[i]))
		}
	}
}

func numbers(answer any) string {
	text, ok := answer.(string)
	if !ok {
		return fmt.Sprint(answer)
	}
	var all []int64
	for p := packed(text); len(all) < p.len(); {
		all = append(all, p.at(len(all)))
	}
	return fmt.Sprint(all)
}

// contents is everything that Redis has under a prefix.
func contents(t testing.TB, client *redis.Client, prefix string) map[string]any {
	t.Helper()
	ctx := t.Context()
	all := map[string]any{}
	keys, err := client.Keys(ctx, prefix+"*").Result()
	for _, key := range keys {
		if err != nil {
			break
		}
		var v any
		switch client.Type(ctx, key).Val() {
		case "string":
			v, err = client.Get(ctx, key).Result()
		case "hash":
			v, err = client.HGetAll(ctx, key).Result()
		case "zset":
			v, err = client.ZRangeWithScores(ctx, key, 0, -1).Result()
		}
		all[strings.TrimPrefix(key, prefix)] = v
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Requests that share a run of the script are decided as if each had one of its own, and leave the same behind.
func TestRequestsOfOneRunAreDecidedOneByOne(t *testing.T) {
	t.Parallel()
	server := redistest.New(t)
	for _, leases := range []bool{false, true} {
		t.Run(fmt.Sprintf("leases %v", leases), func(t *testing.T) {
			w := newFleetWorld(t, server.Options(), leases)
			g := w.gate(nil, WithMonths(newFakeMonths()))
			client := redis.NewClient(server.Options())
			t.Cleanup(func() { _ = client.Close() })
			d := &double{t: t, client: client, from: w.prefix, to: "double:" + w.prefix}
			g.fleet.pipe.client.AddHook(d)
			rapid.Check(t, func(rt *rapid.T) {
				offerTogether(t, rt, g)
				if t.Failed() {
					rt.FailNow()
				}
			})
			if d.shared == 0 {
				t.Error("no requests shared a run")
			}
			if diff := cmp.Diff(contents(t, client, d.to), contents(t, client, d.from)); diff != "" {
				t.Errorf("they leave behind (-by themselves +together):\n%s", diff)
			}
		})
	}
}

// offerTogether has crowds of requests decided by a cluster of its own.
func offerTogether(t *testing.T, rt *rapid.T, g *Gate) {
	rate := rapid.Float64Range(0.001, 200)
	most := func(n int64, name string) *int64 {
		if rapid.Bool().Draw(rt, name+" is limited") {
			return new(rapid.Int64Range(0, n).Draw(rt, name))
		}
		return nil
	}
	plan := func(l *plans.Limits) {
		l.RequestsPerSecond, l.RequestsBurst = new(rate.Draw(rt, "rate")), new(float64(rapid.IntRange(1, 90).Draw(rt, "burst")))
		l.MessagesPerSecond, l.MessagesBurst = new(rate.Draw(rt, "rate")), new(float64(rapid.IntRange(1, 300).Draw(rt, "burst")))
		l.DeliveryPerSecond, l.DeliveryBurst = nil, nil
		if rapid.Bool().Draw(rt, "deliveries apart") {
			l.DeliveryPerSecond, l.DeliveryBurst = new(rate.Draw(rt, "rate")), new(float64(rapid.IntRange(1, 30).Draw(rt, "burst")))
		}
		l.MaxParkedPops = most(9, "polls")
		l.MaxRetainedBytes, l.MonthlyMessages = most(5000, "bytes"), most(1000, "month")
		l.Modes = map[string]plans.Mode{}
		for _, name := range []string{
			plans.LimitKeyRequests, plans.LimitRequests, plans.LimitMessages, plans.LimitDelivery, plans.LimitParked,
			plans.LimitStorage, plans.LimitMonth,
		} {
			l.Modes[name] = rapid.SampledFrom([]plans.Mode{plans.Enforce, plans.Enforce, plans.Shadow}).Draw(rt, name)
		}
	}
	c := clusterWith(plan)
	keys := []*plans.Key{nil, nil, nil, keyWith(keyRequests(rate.Draw(rt, "rate"), 5))}
	now := start
	if err := g.EnsureSeeded(t.Context(), c); err != nil {
		rt.Fatal(err)
	}
	if c.Limits.MaxRetainedBytes != nil && rapid.Bool().Draw(rt, "measured") {
		g.Measured(c, Usage{ComputedAt: now.Add(-time.Hour), Since: now})
	}
	heard(g)
	var open []*Admission
	for range rapid.IntRange(1, 8).Draw(rt, "rounds") {
		now = now.Add(time.Duration(rapid.Int64Range(0, 2e6).Draw(rt, "dt")) * time.Microsecond)
		asks := make([]*Ask, rapid.IntRange(1, 2*maxRun).Draw(rt, "asks"))
		for i := range asks {
			ask := &Ask{Cost: rapid.SampledFrom([]wire.Cost{
				wire.CostRequest, wire.CostMessages, wire.CostMessages, wire.CostDelivery, wire.CostSettle,
			}).Draw(rt, "cost"), Key: rapid.SampledFrom(keys).Draw(rt, "key")}
			switch ask.Cost {
			case wire.CostMessages:
				ask.Messages = rapid.IntRange(0, 9).Draw(rt, "messages")
				ask.PayloadBytes = 3 * int64(ask.Messages)
			case wire.CostDelivery:
				ask.Wait, ask.Deadline = rapid.Bool().Draw(rt, "waits"), now.Add(time.Minute)
			}
			asks[i] = ask
		}
		var passed []*Admission
		passed, open = open, nil
		open = together(g, c, asks, now, func() {
			if len(passed) == 0 || rapid.IntRange(0, 2).Draw(rt, "none ends") > 0 {
				return
			}
			a := passed[0]
			passed = passed[1:]
			if rapid.Bool().Draw(rt, "refund") {
				g.Refund(a, now)
				return
			}
			stored := rapid.Int64Range(0, 20).Draw(rt, "stored")
			g.Settle(a, Outcome{Stored: true, StoredBytes: stored, Delivered: rapid.IntRange(0, 20).Draw(rt, "delivered")}, now)
		})
		open = append(passed, open...)
		if rapid.IntRange(0, 3).Draw(rt, "edit") == 0 {
			c = edited(c, plan)
		}
	}
	for _, a := range open {
		g.Settle(a, Outcome{}, now)
	}
	heard(g)
}

// Decisions of a cluster that wait at once are one run, up to its bound, and nothing of the cluster changes places.
func TestWhatWaitsTogetherRunsTogether(t *testing.T) {
	t.Parallel()
	of := func(s *script, cluster string, args int) *call {
		return &call{script: s, keys: []string{"qg:1:{" + cluster + "}:p"}, args: make([]any, args)}
	}
	plain := func(cluster string) *call { return of(decideScript, cluster, fixedArgs) }
	named := func(cluster string) *call { return of(decideScript, cluster, fixedArgs+2) }
	other := func(cluster string) *call { return of(slotsScript, cluster, fixedArgs) }
	for _, test := range []struct {
		name  string
		calls []*call
		runs  [][]int
	}{
		{"one", []*call{plain("a")}, [][]int{{0}}},
		{"of one cluster", []*call{plain("a"), plain("a"), plain("a")}, [][]int{{0, 1, 2}}},
		{"of two", []*call{plain("a"), plain("b"), plain("a"), plain("b")}, [][]int{{0, 2}, {1, 3}}},
		{"with names", []*call{plain("a"), named("a"), plain("a"), plain("a")}, [][]int{{0}, {1}, {2, 3}}},
		{"around another call", []*call{plain("a"), other("a"), plain("b"), plain("a")}, [][]int{{0}, {1}, {2}, {3}}},
		{"too many", slices.Repeat([]*call{plain("a")}, maxRun+1), [][]int{make([]int, maxRun), {0}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			runs := runsOf(test.calls)
			if len(runs) != len(test.runs) {
				t.Fatalf("%d runs, want %d", len(runs), len(test.runs))
			}
			for i, r := range runs {
				if len(r) != len(test.runs[i]) {
					t.Fatalf("run %d has %d calls, want %d", i, len(r), len(test.runs[i]))
				}
				for k, x := range r {
					if want := test.calls[test.runs[i][k]]; x != want {
						t.Errorf("call %d of run %d is another", k, i)
					}
				}
			}
		})
	}
}
