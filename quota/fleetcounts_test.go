package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// pairOfGates is two gateways over one Redis and one broker's listing.
func pairOfGates(t *testing.T, pairs ...Pair) (a, b *Gate, names *fakeSeeder) {
	t.Helper()
	w := newFleetWorld(t, redistest.Options(t), true)
	names = new(fakeSeeder)
	names.set(pairs...)
	return w.gate(names), w.gate(names), names
}

// heard waits until Redis has heard what a gateway says without waiting.
func heard(g *Gate) { g.fleet.pipe.drains.Wait() }

func TestSlotsAreTheFleets(t *testing.T) {
	t.Parallel()
	a, b, _ := pairOfGates(t)
	c := clusterWith(func(l *plans.Limits) { l.MaxParkedPops = new(int64(3)) })
	first := admit(t, a, c, waitingPop(start.Add(20*time.Second)), start)
	admit(t, a, c, waitingPop(start.Add(30*time.Second)), start)
	admit(t, b, c, waitingPop(start.Add(40*time.Second)), start)
	err := refused(t, b, c, waitingPop(start.Add(time.Minute)), start, wire.RateLimited, plans.LimitParked)
	if err.RetryAfter != 20*time.Second || err.Limit.Used != 3 {
		t.Fatalf("wait %v with %v used, want the earliest deadline of the fleet", err.RetryAfter, err.Limit.Used)
	}
	a.Settle(first, Outcome{}, start)
	heard(a)
	admit(t, b, c, waitingPop(start.Add(time.Minute)), start)
}

// A gateway that no longer beats holds no slots, and one that does keeps them however long a poll is.
func TestSlotsOfADeadGatewayExpire(t *testing.T) {
	t.Parallel()
	a, b, _ := pairOfGates(t)
	c := clusterWith(func(l *plans.Limits) { l.MaxParkedPops = new(int64(2)) })
	admit(t, a, c, waitingPop(start.Add(10*time.Minute)), start)
	admit(t, b, c, waitingPop(start.Add(10*time.Minute)), start)
	now := start
	for range 5 {
		now = now.Add(3 * time.Second)
		b.fleet.tend(now)
		heard(b)
	}
	if !now.Equal(start.Add(15 * time.Second)) {
		t.Fatal(now)
	}
	admit(t, b, c, waitingPop(now.Add(time.Minute)), now) // in the place of a's
	refused(t, b, c, waitingPop(now.Add(time.Minute)), now, wire.RateLimited, plans.LimitParked)
}

// A slot that outlives its poll, since the word of its end was lost, goes ten seconds after the deadline.
func TestALostReleaseEndsWithTheDeadline(t *testing.T) {
	t.Parallel()
	a, b, _ := pairOfGates(t)
	c := clusterWith(func(l *plans.Limits) { l.MaxParkedPops = new(int64(1)) })
	poll := admit(t, a, c, waitingPop(start.Add(time.Second)), start)
	poll.slot = 0 // nobody says that it ends
	a.Settle(poll, Outcome{}, start)
	refused(t, b, c, waitingPop(start.Add(time.Minute)), start.Add(10*time.Second), wire.RateLimited, plans.LimitParked)
	admit(t, b, c, waitingPop(start.Add(time.Minute)), start.Add(11*time.Second))
}

// The audit: slots that Redis lost, or has too many of, are told anew.
func TestSlotsAreComparedAndRepaired(t *testing.T) {
	t.Parallel()
	server := redistest.New(t)
	w := newFleetWorld(t, server.Options(), false)
	a, b := w.gate(nil), w.gate(nil)
	c := clusterWith(func(l *plans.Limits) { l.MaxParkedPops = new(int64(300)) })
	for range 300 { // more than one call takes
		admit(t, a, c, waitingPop(start.Add(time.Hour)), start)
	}
	server.Do("FLUSHALL")
	a.fleet.tend(start.Add(slotBeat))
	heard(a)
	if got := value(t, a.fleet.stats.drift); got != -300 {
		t.Fatalf("drift %v, want -300", got)
	}
	refused(t, b, c, waitingPop(start.Add(time.Hour)), start.Add(slotBeat), wire.RateLimited, plans.LimitParked)

	l := a.lock(c.ID)
	stray := a.fleet.slotsCall(l.partaking, "add", start)
	l.mu.Unlock()
	stray.args = append(stray.args, 3_600_000_000, "stray")
	stray.done = make(chan struct{})
	a.fleet.pipe.send(0, stray)
	a.fleet.pipe.await(0, stray)
	for i := range 3 {
		a.fleet.tend(start.Add(time.Duration(i+2) * slotBeat))
		heard(a)
	}
	if got := value(t, a.fleet.stats.drift); got != 0 {
		t.Fatalf("drift %v after a repair, want none", got)
	}
}

// Polls that a gateway let in while Redis was away count when it is back.
func TestPollsOfAnAbsenceCountAfterwards(t *testing.T) {
	t.Parallel()
	a, b, _ := pairOfGates(t)
	c := clusterWith(func(l *plans.Limits) { l.MaxParkedPops = new(int64(2)) })
	a.fleet.pipe.fail(errAway)
	poll := admit(t, a, c, waitingPop(start.Add(time.Hour)), start)
	a.fleet.beat(start)
	a.fleet.tend(start)
	heard(a)
	admit(t, b, c, waitingPop(start.Add(time.Hour)), start)
	refused(t, b, c, waitingPop(start.Add(time.Hour)), start, wire.RateLimited, plans.LimitParked)
	a.Settle(poll, Outcome{}, start)
	heard(a)
	admit(t, b, c, waitingPop(start.Add(time.Hour)), start)
}

func seedAll(t *testing.T, c *plans.Cluster, gates ...*Gate) {
	t.Helper()
	for _, g := range gates {
		if err := g.EnsureSeeded(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
}

// The caps are the fleet's: what one gateway reserves counts at the other, and what it gives back does not.
func TestNamesAreTheFleets(t *testing.T) {
	t.Parallel()
	a, b, _ := pairOfGates(t, Pair{"q0", "p0"})
	c := clusterWith(counted(2, 2))
	seedAll(t, c, a, b)
	held := admit(t, a, c, push(1, Pair{"q1", "p"}), start)
	refused(t, b, c, push(1, Pair{"q2", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
	admit(t, b, c, push(1, Pair{"q1", "p"}), start) // the same one is no other
	a.Refund(held, start)
	heard(a)
	refused(t, a, c, push(1, Pair{"q2", ""}), start, wire.QuotaExceeded, plans.LimitQueues) // b holds q1
	admit(t, b, c, push(1, Pair{"q0", "p1"}), start)
	refused(t, a, c, push(1, Pair{"q0", "p2"}), start, wire.QuotaExceeded, plans.LimitPartitions)
	admit(t, a, c, push(1, Pair{"q0", wire.DefaultPartition}), start)
}

// A deletion is free at once for every gateway, and none believes in the queue any more.
func TestADeletionFreesForTheFleet(t *testing.T) {
	t.Parallel()
	a, b, names := pairOfGates(t, Pair{"q0", "p0"}, Pair{"q1", "p0"})
	c := clusterWith(counted(2, 1))
	seedAll(t, c, a, b)
	refused(t, b, c, push(1, Pair{"q2", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
	names.set(Pair{"q1", "p0"})
	a.QueueDeleted(c, "q0")
	heard(a)
	b.Settle(admit(t, b, c, push(1, Pair{"q2", "p"}), start), Outcome{Stored: true}, start)
	heard(b)
	refused(t, b, c, push(1, Pair{"q0", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
	refused(t, a, c, push(1, Pair{"q0", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
}

// Reservations of a gateway that died are free after a minute.
func TestReservationsOfADeadGatewayExpire(t *testing.T) {
	t.Parallel()
	a, b, _ := pairOfGates(t)
	c := clusterWith(counted(1, 5))
	seedAll(t, c, a, b)
	admit(t, a, c, push(1, Pair{"q1", "p"}), start)
	refused(t, b, c, push(1, Pair{"q2", "p"}), start.Add(59*time.Second), wire.QuotaExceeded, plans.LimitQueues)
	admit(t, b, c, push(1, Pair{"q2", "p"}), start.Add(61*time.Second))
}

// A Redis that came back empty knows no counts: the gateway's own view holds, and the next push lists them anew.
func TestCountsThatRedisLostAreNotFree(t *testing.T) {
	t.Parallel()
	server := redistest.New(t)
	w := newFleetWorld(t, server.Options(), false)
	names := new(fakeSeeder)
	names.set(Pair{"q0", ""}, Pair{"q1", ""})
	clock := start
	a := w.gate(names, WithClock(func() time.Time { return clock }))
	c := clusterWith(counted(2, 2))
	seedAll(t, c, a)
	server.Do("FLUSHALL")
	refused(t, a, c, push(1, Pair{"q2", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
	clock = clock.Add(2 * time.Second)
	before := names.calls()
	seedAll(t, c, a)
	if names.calls() != before+1 {
		t.Fatal("the counts were not listed anew")
	}
	b := w.gate(nil) // without a listing of its own: Redis knows
	refused(t, b, c, push(1, Pair{"q2", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
}

// A batch with thousands of new names goes in parts, and is let in or refused as a whole; its rate is asked first.
func TestABatchWithThousandsOfNewNames(t *testing.T) {
	t.Parallel()
	a, b, _ := pairOfGates(t)
	c := clusterWith(limits(counted(40, 100), messageRate(1e6, 1e6)))
	seedAll(t, c, a, b)
	many := func(queues, partitions int) *Ask {
		var pairs []Pair
		for q := range queues {
			for p := range partitions {
				pairs = append(pairs, Pair{fmt.Sprint("q", q), fmt.Sprint("p", p)})
			}
		}
		return push(len(pairs), pairs...)
	}
	refused(t, a, c, many(41, 50), start, wire.QuotaExceeded, plans.LimitQueues)
	refused(t, a, c, many(2, 101), start, wire.QuotaExceeded, plans.LimitPartitions)
	heard(a)
	slow := edited(c, limits(counted(40, 100), messageRate(10, 10_000)))
	for range 2 {
		g := a
		if adm, _, err := g.Admit(slow, push(6000), start); err == nil {
			g.Settle(adm, Outcome{}, start)
		}
	}
	refused(t, a, slow, many(41, 100), start, wire.RateLimited, plans.LimitMessages)
	heard(a)
	// Nothing is left of what was refused.
	all := admit(t, b, c, many(40, 100), start.Add(time.Hour))
	refused(t, a, c, push(1, Pair{"other", ""}), start.Add(time.Hour), wire.QuotaExceeded, plans.LimitQueues)
	refused(t, a, c, push(1, Pair{"q0", "other"}), start.Add(time.Hour), wire.QuotaExceeded, plans.LimitPartitions)
	b.Settle(all, Outcome{Stored: true}, start.Add(time.Hour))
	heard(b)
	refused(t, a, c, push(1, Pair{"q39", "other"}), start.Add(2*time.Hour), wire.QuotaExceeded, plans.LimitPartitions)
}

// A listing removes from Redis what brokers no longer have, and keeps what was confirmed while it ran.
func TestAListingPutsRedisRight(t *testing.T) {
	t.Parallel()
	a, b, names := pairOfGates(t, Pair{"gone", "p"}, Pair{"q", "gone"}, Pair{"q", "here"})
	c := clusterWith(limits(counted(2, 2), requestRate(100, 100)))
	seedAll(t, c, a)
	refused(t, a, c, push(1, Pair{"new", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
	admit(t, a, c, pop(), start.Add(time.Second)) // the clock of the test goes on
	names.set(Pair{"q", "here"})
	seedAll(t, c, b)
	b.Settle(admit(t, b, c, push(2, Pair{"new", "1"}, Pair{"q", "2"}), start.Add(time.Second)), Outcome{Stored: true}, start.Add(time.Second))
	heard(b)
	refused(t, b, c, push(1, Pair{"more", ""}), start.Add(time.Second), wire.QuotaExceeded, plans.LimitQueues)
	refused(t, b, c, push(1, Pair{"q", "3"}), start.Add(time.Second), wire.QuotaExceeded, plans.LimitPartitions)
}

// No call of a batch with thousands of new names carries more than a bounded part of them: Redis, which does one thing at
// a time, is never kept for long, and answers others in between.
func TestABatchWithThousandsOfNewNamesDoesNotBlockRedis(t *testing.T) {
	t.Parallel()
	server := redistest.New(t)
	w := newFleetWorld(t, server.Options(), true)
	g := w.gate(new(fakeSeeder))
	c := clusterWith(counted(40, 5000))
	seedAll(t, c, g)
	server.Do("CONFIG", "SET", "slowlog-log-slower-than", "0")
	server.Do("CONFIG", "SET", "slowlog-max-len", "100000") // what scripts call stands there too
	var pairs []Pair
	for p := range 4000 {
		pairs = append(pairs, Pair{fmt.Sprint("q", p%40), fmt.Sprint("p", p)})
	}
	adm := admit(t, g, c, push(len(pairs), pairs...), start)
	g.Settle(adm, Outcome{Stored: true}, start)
	heard(g)
	client := redis.NewClient(server.Options())
	defer client.Close()
	calls, err := client.SlowLogGet(t.Context(), -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	scripted, longest := 0, 0
	for _, call := range calls {
		if !strings.HasPrefix(strings.ToLower(call.Args[0]), "eval") {
			continue
		}
		scripted++
		n := len(call.Args)
		var more int // the log cuts long calls: "... (97 more arguments)"
		if _, err := fmt.Sscanf(call.Args[n-1], "... (%d more arguments)", &more); err == nil {
			n += more - 1
		}
		longest = max(longest, n)
	}
	// A name is at most three arguments (a queue: its key, itself and how many partitions follow), beside a decision's own.
	if most := 3*namesPerCall + 64; longest > most || longest < namesPerCall {
		t.Errorf("a call has %d arguments, want at most %d", longest, most)
	}
	if least := 2 * len(pairs) / namesPerCall; scripted < least {
		t.Errorf("%d calls, want at least %d", scripted, least)
	}
}
