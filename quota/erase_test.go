package quota

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// Erase takes all that Redis keeps of a cluster, whatever it is named and whoever wrote it, and nothing of another.
func TestEraseTakesOneClusterAndNoOther(t *testing.T) {
	t.Parallel()
	options := redistest.Options(t)
	w := newFleetWorld(t, options, false)
	g := w.gate(new(fakeSeeder))
	client := redis.NewClient(options)
	defer client.Close()
	dump := func(c *plans.Cluster) map[string]string {
		t.Helper()
		found := map[string]string{}
		keys := client.Scan(t.Context(), 0, w.prefix+"*"+c.ID.String()+"*", 1000).Iterator()
		for keys.Next(t.Context()) {
			switch text, err := client.Dump(t.Context(), keys.Val()).Result(); {
			case err == nil:
				found[keys.Val()] = text
			case !errors.Is(err, redis.Nil): // it went meanwhile
				t.Fatal(err)
			}
		}
		if err := keys.Err(); err != nil {
			t.Fatal(err)
		}
		return found
	}
	var clusters []*plans.Cluster
	for range 2 {
		c := clusterWith(func(l *plans.Limits) {
			l.RequestsPerSecond, l.RequestsBurst, l.MessagesPerSecond, l.MessagesBurst = new(10.0), new(20.0), new(10.0), new(20.0)
			l.MaxQueues, l.MaxPartitionsPerQueue, l.MaxParkedPops = new(int64(9)), new(int64(9)), new(int64(9))
		})
		clusters = append(clusters, c)
		if err := g.EnsureSeeded(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for _, ask := range []*Ask{
			{Cost: wire.CostMessages, Messages: 2, Pairs: []Pair{{"q", "p"}, {"r", "p"}}}, waitingPop(start.Add(time.Hour)),
		} {
			a, _, e := g.Admit(c, ask, start)
			if e != nil {
				t.Fatal(e)
			}
			g.Settle(a, Outcome{Stored: true}, start)
		}
		if err := client.Set(t.Context(), g.fleet.keysOf(c.ID).requests+":of another part", "x", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody waits for what is told of an end; but a request that Redis decides comes behind it.
	for _, c := range clusters {
		a, _, e := g.Admit(c, &Ask{Cost: wire.CostRequest}, start)
		if e != nil {
			t.Fatal(e)
		}
		g.Settle(a, Outcome{}, start)
	}
	gone, stays := clusters[0], clusters[1]
	before := dump(stays)
	if len(dump(gone)) < 4 {
		t.Fatalf("too little to see anything: %d keys", len(dump(gone)))
	}
	for range 2 {
		if err := g.Erase(t.Context(), gone.ID); err != nil {
			t.Fatal(err)
		}
	}
	if left := dump(gone); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if d := cmp.Diff(before, dump(stays)); d != "" {
		t.Errorf("another cluster changed (-before +after):\n%s", d)
	}
}

// A gateway that is alone has nothing elsewhere.
func TestEraseAloneForgets(t *testing.T) {
	t.Parallel()
	g := testGate()
	c := clusterWith(func(l *plans.Limits) { l.RequestsPerSecond, l.RequestsBurst = new(1.0), new(1.0) })
	admit(t, g, c, &Ask{Cost: wire.CostRequest}, start)
	if err := g.Erase(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	admit(t, g, c, &Ask{Cost: wire.CostRequest}, start) // of a bucket that is new
}
