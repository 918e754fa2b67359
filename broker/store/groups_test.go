package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// Where a group starts: by the mode it registered with, on a partition that was there and on one created later.
func TestSeeding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := w.now().Add(-time.Hour)
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	queues := 0
	for name, c := range map[string]struct {
		group           string
		seed            Seed
		existing, later int64 // the first offset delivered, of messages stamped at minutes 0, 10, 20; 3 is the next push
	}{
		"all":                        {"g", Seed{Mode: wire.SeedAll}, 0, 0},
		"new":                        {"g", Seed{Mode: wire.SeedNew}, 3, 0},
		"from a time between":        {"g", Seed{Mode: wire.SeedTimestamp, From: at(5)}, 1, 1},
		"from the time of a segment": {"g", Seed{Mode: wire.SeedTimestamp, From: at(10)}, 1, 1},
		"from before everything":     {"g", Seed{Mode: wire.SeedTimestamp, From: at(-5)}, 0, 0},
		"from after everything":      {"g", Seed{Mode: wire.SeedTimestamp, From: at(30)}, 3, 3},
		"without a group always all": {wire.QueueModeGroup, Seed{Mode: wire.SeedNew}, 0, 0},
	} {
		queues++
		queue := fmt.Sprint(queues)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := *w
			w.t = t
			id := w.newQueue(w.tenant, queue)
			fill := func(l lane) lane {
				for i := range 3 {
					w.pushAt(l, at(10*i), 1)
				}
				return l
			}
			existing := fill(w.laneOf(id, "existing"))
			if err := w.enroll(w.tenant, c.group, queue, c.seed); err != nil {
				t.Fatal(err)
			}
			// The first registration wins.
			if err := w.enroll(w.tenant, c.group, queue, Seed{Mode: wire.SeedAll}); err != nil {
				t.Fatal(err)
			}
			later := fill(w.laneOf(id, "later"))
			for l, want := range map[lane]int64{existing: c.existing, later: c.later} {
				w.push(l, 1)
				if got := w.pop(w.claim(c.group, l))[0]; got.Status != ClaimTook || got.After != want-1 {
					t.Errorf("existing %v: %+v, want from %d", l == existing, got, want)
				}
			}
		})
	}
}

func TestNewOnAnOlderPartitionWithoutCursorStartsAtTheRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.exec("UPDATE queen.log_partitions SET created_at = clock_timestamp() - interval '1 hour'")
	w.pushAt(l, w.now().Add(-time.Minute), 2)
	if err := w.enroll(w.tenant, "g", w.queue, Seed{Mode: wire.SeedNew}); err != nil {
		t.Fatal(err)
	}
	w.push(l, 1)
	w.exec("DELETE FROM queen.log_consumers")
	w.push(l, 1)
	if got := w.pop(w.claim("g", l))[0]; got.After != 1 || got.Through != 3 {
		t.Errorf("got %+v, want from 2", got)
	}
}

func TestAGroupMaySubscribeBeforeTheQueueExists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.enroll(w.tenant, "g", "tomorrow", Seed{Mode: wire.SeedNew}); err != nil {
		t.Fatal(err)
	}
	var queues int
	w.scan("SELECT count(*) FROM queen.queues", nil, &queues)
	if queues != 1 {
		t.Error("a registration created a queue")
	}
	l := w.laneOf(w.newQueue(w.tenant, "tomorrow"), "a")
	w.push(l, 2)
	if got := w.pop(w.claim("g", l))[0]; got.After != -1 || got.Through != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestRegistrationsOfAbsentQueuesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from)
SELECT $1, 'absent-' || i, 'g', 'new', now() FROM generate_series(1, $2::int) i`, w.tenant, maxAbsentRegistrations)
	err := w.enroll(w.tenant, "g", "one-more", Seed{})
	if we := wire.AsError(err); we == nil || we.Code != wire.QuotaExceeded {
		t.Errorf("one more: %v", err)
	}
	for name, err := range map[string]error{
		"a known registration": w.enroll(w.tenant, "g", "absent-7", Seed{}),
		"a queue that exists":  w.enroll(w.tenant, "g", w.queue, Seed{}),
		"another tenant":       w.enroll(uuid.New(), "g", "one-more", Seed{}),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConcurrentRegistrationsSeedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ls []lane
	for i := range 20 {
		l := w.lane(fmt.Sprint(i))
		w.push(l, 2)
		ls = append(ls, l)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			seed := Seed{Mode: wire.SeedNew}
			if i%2 == 0 {
				seed.Mode = wire.SeedAll
			}
			if err := w.enroll(w.tenant, "g", w.queue, seed); err != nil {
				t.Error(err)
			}
			if _, err := w.store.ClaimBundle(w.ctx, []Claim{w.claim("g", ls...)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var modes, cursors int
	w.scan(`SELECT (SELECT count(*) FROM queen.group_registrations), count(DISTINCT committed) FROM queen.log_consumers`, nil, &modes, &cursors)
	if modes != 1 || cursors != 1 {
		t.Errorf("%d registrations, cursors at %d different places", modes, cursors)
	}
}

func TestOffsetBeforeHalvesItsWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	start := w.now().Add(-time.Hour)
	base := []int64{}
	for i := range 40 {
		n := 1 + i%5
		var last int64
		w.scan("SELECT last_offset FROM queen.log_partitions WHERE id = $1", []any{l.id}, &last)
		base = append(base, last+1)
		w.pushAt(l, start.Add(time.Duration(i/2)*time.Minute), n) // stamps come in pairs
	}
	var last int64
	w.scan("SELECT last_offset FROM queen.log_partitions WHERE id = $1", []any{l.id}, &last)
	w.exec("DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset < $2", l.id, base[7])
	for _, logStart := range []int64{0, base[7]} {
		w.exec("UPDATE queen.log_partitions SET log_start = $2 WHERE id = $1", l.id, logStart)
		for minute := -1; minute <= 20; minute++ {
			at := start.Add(time.Duration(minute)*time.Minute - time.Second)
			var got, want int64
			w.scan("SELECT queen.offset_before($1, $2)", []any{l.id, at}, &got)
			w.scan("SELECT coalesce(min(base_offset) - 1, $3) FROM queen.log_segments WHERE partition_id = $1 AND created_at >= $2", []any{l.id, at, last}, &want)
			if got != want && !(want == base[7]-1 && got <= want) {
				t.Errorf("log_start %d, minute %d: %d, want %d", logStart, minute, got, want)
			}
		}
	}
}
