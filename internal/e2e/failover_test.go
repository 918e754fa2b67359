package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/pgtest"
)

// pair is a primary and its standby, and the fleet that knows both.
type pair struct {
	*fleet
	old, next *pgtest.Server
}

// followWithin is how long brokers may take to work with a new primary.
const followWithin = 10 * time.Second

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{old: pgtest.NewServer(t, nil)}
	p.next = p.old.Standby()
	p.fleet = startFleetOn(t, fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=postgres dbname=postgres target_session_attrs=read-write", p.old.Port, p.next.Port), 64,
		"QUEENGATE_BROKER_DRAIN_DELAY=0s", "QUEENGATE_GATEWAY_DRAIN_DELAY=0s")
	return p
}

// followed waits until every broker is ready, and those that have something to do work with a primary of that timeline.
func (p *pair) followed(timeline float64) {
	p.t.Helper()
	working := func(b *part) bool {
		metrics := "http://" + b.ops + "/metrics"
		return metric(p.t, metrics, "queengate_broker_database_timeline") == timeline || metric(p.t, metrics, "queengate_broker_requests_total", `route="/api/v1/push"`) == 0
	}
	for _, b := range p.brokers {
		eventually(p.t, followWithin, fmt.Sprintf("%s to follow to timeline %v", b.addr, timeline), func() bool {
			return answersOK("http://"+b.ops+"/readyz") && working(b)
		})
	}
}

func answersOK(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// ledger is what producers and readers were told.
type ledger struct {
	p     *pair
	era   atomic.Int64 // grows with each promotion
	until context.Context

	mu       sync.Mutex // guards all below
	told     map[string]told
	byWriter map[int]int      // messages that are in the database, by writer
	read     map[place]record // in this era
}

// told is what a producer was told of a message.
type told struct {
	lane   string
	status string
	offset int64
	era    int64 // when the attempt began that was answered so
}

type place struct {
	lane   string
	offset int64
}

type record struct {
	Offset        int64  `json:"offset"`
	TransactionID string `json:"transactionId"`
	At            string `json:"ts"`
}

const (
	failoverQueues  = 3
	failoverWriters = 6
)

func startLedger(p *pair) (l *ledger, stop func()) {
	l = &ledger{p: p, told: map[string]told{}, byWriter: map[int]int{}, read: map[place]record{}}
	var cancel context.CancelFunc
	l.until, cancel = context.WithCancel(p.t.Context())
	var all sync.WaitGroup
	for n := range failoverWriters {
		all.Go(func() { l.write(n) })
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			all.Wait()
		}
	}
	p.t.Cleanup(stop)
	return l, stop
}

// write pushes messages with ids of its own, each until it has an answer that counts, as a client may with such ids.
func (l *ledger) write(n int) {
	queue, partition := fmt.Sprint("q", n%failoverQueues), fmt.Sprint("p", n/failoverQueues%2)
	lane := queue + "/" + partition
	for i := 0; l.until.Err() == nil && !l.p.t.Failed(); i++ {
		batch := items(queue, partition, fmt.Sprintf("w%d-%d", n, i), 2)
		for settled := false; !settled; time.Sleep(10 * time.Millisecond) { // a load, not a benchmark
			era := l.era.Load()
			r, err := l.p.call(context.Background(), n, "POST", "/api/v1/push", batch)
			switch {
			case err != nil:
				l.p.t.Errorf("push: %v", err)
				return
			case r.status == http.StatusCreated:
				settled = l.note(n, lane, era, decode[[]pushResult](l.p.t, r.body))
			case r.status < 500:
				l.p.t.Errorf("push: %d %s", r.status, r.body)
				return
			}
			if l.until.Err() != nil && !settled {
				return // its outcome is nobody's business
			}
		}
	}
}

// note enters the answers of a push and reports whether all of its messages are safe.
func (l *ledger) note(n int, lane string, era int64, results []pushResult) (settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	settled = true
	for _, r := range results {
		switch r.Status {
		case "queued", "duplicate":
			l.told[r.TransactionID] = told{lane, r.Status, *r.Offset, era}
			l.byWriter[n]++
		case "buffered":
			l.told[r.TransactionID] = told{lane, r.Status, -1, era}
		default:
			settled = false
		}
	}
	return settled
}

// more waits until every writer has had so many more messages stored.
func (l *ledger) more(n int, within time.Duration) {
	l.p.t.Helper()
	count := func() map[int]int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return maps.Clone(l.byWriter)
	}
	before := count()
	eventually(l.p.t, within, fmt.Sprintf("%d more messages of each writer", n), func() bool {
		now := count()
		for w := range failoverWriters {
			if now[w] < before[w]+n {
				return l.p.t.Failed()
			}
		}
		return true
	})
}

func lanes() (all []string) {
	for n := range failoverWriters {
		all = append(all, fmt.Sprintf("q%d/p%d", n%failoverQueues, n/failoverQueues%2))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// log reads a partition from its beginning, and holds it against what was read of it before in this era.
func (l *ledger) log(lane string) (all []record) {
	l.p.t.Helper()
	era := l.era.Load()
	for {
		var r reply
		eventually(l.p.t, followWithin, "a fetch of "+lane, func() bool {
			var err error
			r, err = l.p.call(l.p.t.Context(), len(all), "POST", "/api/v1/fetch",
				m{"entries": []m{{"queue": lane[:2], "partition": lane[3:], "offset": len(all)}}})
			if err != nil || r.status != http.StatusOK && r.status != http.StatusServiceUnavailable {
				l.p.t.Fatalf("fetch %s: %d %s %v", lane, r.status, r.body, err)
			}
			return r.status == http.StatusOK // a gateway that follows a failover may have no broker for reads yet
		})
		var answer struct {
			Entries []struct {
				Records       []record `json:"records"`
				HighWatermark int64    `json:"highWatermark"`
			} `json:"entries"`
		}
		if err := json.Unmarshal(r.body, &answer); err != nil {
			l.p.t.Fatal(err)
		}
		e := answer.Entries[0]
		all = append(all, e.Records...)
		if int64(len(all)) >= e.HighWatermark || len(e.Records) == 0 {
			break
		}
	}
	for i, r := range all {
		if r.Offset != int64(i) {
			l.p.t.Fatalf("%s: offset %d follows %d", lane, r.Offset, i-1)
		}
		if i > 0 && r.At < all[i-1].At {
			l.p.t.Errorf("%s: time runs backwards at %d", lane, i)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if era != l.era.Load() {
		return all
	}
	for _, r := range all {
		at := place{lane, r.Offset}
		if before, seen := l.read[at]; seen && before != r {
			l.p.t.Errorf("%s: offset %d was %+v and is %+v", lane, r.Offset, before, r)
		}
		l.read[at] = r
	}
	return all
}

// promoted begins an era.
func (l *ledger) promoted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.era.Add(1)
	clear(l.read)
}

// drained waits until no broker has anything in its spool.
func (l *ledger) drained() {
	l.p.t.Helper()
	for _, b := range l.p.brokers {
		eventually(l.p.t, 20*time.Second, "the spools to be empty", func() bool {
			return metric(l.p.t, "http://"+b.ops+"/metrics", "queengate_spool_messages") == 0
		})
	}
}

// judge compares the logs with what producers were told. forgiven says what may be missing: of each partition what lies
// behind the last message that is not.
func (l *ledger) judge(forgiven func(told) bool) (missing int) {
	t := l.p.t
	t.Helper()
	at := map[string]place{}
	for _, lane := range lanes() {
		for _, r := range l.log(lane) {
			if first, twice := at[r.TransactionID]; twice {
				t.Errorf("%s is stored twice, at %v and at %s %d", r.TransactionID, first, lane, r.Offset)
			}
			at[r.TransactionID] = place{lane, r.Offset}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	firstLost, lastKept := map[string]int64{}, map[string]int64{}
	for id, said := range l.told {
		is, stored := at[id]
		kept := stored && is.lane == said.lane && (said.status == "buffered" || is.offset == said.offset)
		switch {
		case kept && forgiven(said):
			lastKept[said.lane] = max(lastKept[said.lane], said.offset)
		case kept:
		case forgiven(said) && !stored:
			missing++
			if first, any := firstLost[said.lane]; !any || said.offset < first {
				firstLost[said.lane] = said.offset
			}
		default:
			t.Errorf("%s was %+v and is at %+v (%v)", id, said, is, stored)
		}
	}
	for lane, first := range firstLost {
		if first < lastKept[lane] {
			t.Errorf("%s: %d was lost and %d was not: what a failover loses is the end", lane, first, lastKept[lane])
		}
	}
	return missing
}

// TestAFailoverWithASynchronousStandbyLosesNothing kills the primary under load, twice, with the roles changed in
// between, and once starts the old primary again as if nothing had happened. Whatever a broker has acknowledged is there,
// once, at the offset it was told.
func TestAFailoverWithASynchronousStandbyLosesNothing(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	p.old.Synchronous()
	l, stop := startLedger(p)
	l.more(20, 30*time.Second)

	p.old.Kill()
	p.next.Promote()
	l.promoted()
	p.followed(2)
	l.more(20, followWithin)

	// The old primary comes back, first in the address, and would take writes.
	p.old.Start()
	p.old.Exec("ALTER SYSTEM RESET synchronous_standby_names")
	p.old.Exec("SELECT pg_reload_conf()")
	written := func() string {
		return p.old.Ask("SELECT coalesce(sum(last_offset), 0)::text FROM queen.log_partitions")
	}
	before := written()
	p.stop(p.brokers[0].Process) // one that starts again has it from the file in its spool
	p.start(p.brokers[0])
	l.more(10, followWithin)
	p.followed(2)
	if after := written(); after != before {
		t.Errorf("the replaced primary was written to: %s offsets, then %s", before, after)
	}

	p.old.Rewind(p.next)
	p.next.Synchronous()
	l.more(10, followWithin)
	p.next.Kill()
	p.old.Promote()
	l.promoted()
	p.followed(3)
	l.more(10, followWithin)
	for _, lane := range lanes() {
		l.log(lane)
	}
	stop()
	l.drained()
	l.judge(func(told) bool { return false })
	t.Logf("%d messages", len(l.told))
}

// TestAFailoverWithAnAsynchronousStandbyLosesAnEnd promotes a standby that lacks the last second. What is missing then is
// the end of each partition; offsets go on from there, and nobody sees what stood at them before.
func TestAFailoverWithAnAsynchronousStandbyLosesAnEnd(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	l, stop := startLedger(p)
	l.more(20, 30*time.Second)
	p.next.AwaitReplay(p.old)
	p.next.Detach()
	l.more(20, 20*time.Second)
	for _, lane := range lanes() {
		l.log(lane) // so that the brokers have what is going to be lost in their caches
	}

	p.old.Kill()
	p.next.Promote()
	l.promoted()
	p.followed(2)
	for range 3 {
		l.more(10, followWithin)
		for _, lane := range lanes() {
			l.log(lane)
		}
	}
	stop()
	l.drained()
	missing := l.judge(func(said told) bool { return said.era == 0 && said.status != "buffered" })
	if missing < 20*failoverWriters {
		t.Errorf("%d messages are missing: the standby had more than it should", missing)
	}
	t.Logf("%d messages, %d were lost", len(l.told), missing)
}
