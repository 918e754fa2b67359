package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

func TestProvisionCreatesWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	first := w.partition("orders.eu.x", "a")
	pairs := []Pair{{"orders.eu.x", "b"}, {"plain", "Default"}, {"orders.eu.x", "a"}, {"plain", "Default"}}
	got, err := w.Provision(t.Context(), w.tenant, pairs, Caps{})
	if err != nil {
		t.Fatal(err)
	}
	if got[2] != first || got[1] != got[3] || got[0].QueueID != first.QueueID || got[1].QueueID == first.QueueID {
		t.Errorf("got %+v", got)
	}
	for i, p := range got {
		if p.ID == 0 || p.UID == uuid.Nil || p.Tenant != w.tenant || (Pair{p.Queue, p.Name}) != pairs[i] || p.DedupWindow != time.Hour {
			t.Errorf("pair %d: got %+v", i, p)
		}
	}
	again, err := w.Lookup(t.Context(), w.tenant, append(pairs, Pair{"orders.eu.x", "none"}, Pair{"none", "a"}))
	if err != nil || !slices.Equal(again[:4], got) {
		t.Errorf("looked up %+v, %v", again, err)
	}
	for _, p := range again[4:] {
		if p.ID != 0 || p.QueueID != 0 || p.Queue == "" {
			t.Errorf("a missing pair: got %+v", p)
		}
	}
}

func TestQueueBornOfAPush(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	for name, want := range map[string]struct{ namespace, task string }{
		"plain": {"", ""}, "a.b": {"a", "b"}, "a.b.c": {"a", "b"}, ".b": {"", "b"}, "a.": {"a", ""}, "ä.ö": {"ä", "ö"}, "": {"", ""},
	} {
		w.partition(name, "p")
		q, err := w.LookupQueue(t.Context(), w.tenant, name)
		if err != nil || q == nil {
			t.Fatalf("%q: got %v, %v", name, q, err)
		}
		o := wire.DefaultOptions()
		o.LeaseTime, o.Namespace, o.Task = 60, want.namespace, want.task
		if q.Options != o || q.Name != name || q.Tenant != w.tenant || q.UID == uuid.Nil || q.Created.IsZero() {
			t.Errorf("%q: got %+v", name, q)
		}
	}
}

func TestNamesNeverCrossTenants(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	mine := w.partition("q", "a")
	other := uuid.New()
	if p, err := w.Lookup(t.Context(), other, []Pair{{"q", "a"}}); err != nil || p[0].ID != 0 {
		t.Errorf("looked up %+v, %v", p, err)
	}
	if q, err := w.LookupQueue(t.Context(), other, "q"); q != nil || err != nil {
		t.Errorf("looked up %+v, %v", q, err)
	}
	theirs, err := w.Provision(t.Context(), other, []Pair{{"q", "a"}}, Caps{})
	if err != nil || theirs[0].ID == mine.ID || theirs[0].QueueID == mine.QueueID {
		t.Errorf("provisioned %+v, %v", theirs, err)
	}
	if existed, _, err := w.DeleteQueue(t.Context(), other, "q"); !existed || err != nil {
		t.Errorf("delete: %v, %v", existed, err)
	}
	if got, err := w.DeletePartitions(t.Context(), other, []int64{mine.ID}); len(got) != 0 || err != nil {
		t.Errorf("deleted %v, %v", got, err)
	}
	if p, err := w.Lookup(t.Context(), w.tenant, []Pair{{"q", "a"}}); err != nil || p[0] != mine {
		t.Errorf("after the other's deletion: got %+v, %v", p, err)
	}
}

func TestCaps(t *testing.T) {
	t.Parallel()
	var many []Pair
	for i := range 3 {
		many = append(many, Pair{"many", fmt.Sprint(i)})
	}
	for rule, c := range map[string]struct {
		caps  Caps
		pairs []Pair
		limit *wire.Limit // nil: allowed
	}{
		"no caps":                          {Caps{}, append(many, Pair{"x", "y"}), nil},
		"queues up to the cap":             {Caps{MaxQueues: ptr(int64(3))}, []Pair{{"b", "p"}, {"c", "p"}}, nil},
		"one queue above":                  {Caps{MaxQueues: ptr(int64(2))}, []Pair{{"b", "p"}, {"c", "p"}}, &wire.Limit{Name: "queues", Limit: 2, Used: 1, Unit: "queues"}},
		"a zero cap blocks":                {Caps{MaxQueues: ptr(int64(0))}, []Pair{{"b", "p"}}, &wire.Limit{Name: "queues", Limit: 0, Used: 1, Unit: "queues"}},
		"a new queue may reach its cap":    {Caps{MaxPartitions: ptr(int64(3))}, many, nil},
		"a new queue may not exceed it":    {Caps{MaxPartitions: ptr(int64(2))}, many, &wire.Limit{Name: "partitions", Limit: 2, Used: 0, Unit: "partitions"}},
		"an old queue counts what it has":  {Caps{MaxPartitions: ptr(int64(1))}, []Pair{{"old", "q"}}, &wire.Limit{Name: "partitions", Limit: 1, Used: 1, Unit: "partitions"}},
		"Default is free":                  {Caps{MaxPartitions: ptr(int64(0))}, []Pair{{"old", "Default"}, {"new", "Default"}}, nil},
		"what exists is not judged":        {Caps{MaxQueues: ptr(int64(0)), MaxPartitions: ptr(int64(0))}, []Pair{{"old", "p"}}, nil},
		"repeats count once":               {Caps{MaxQueues: ptr(int64(2)), MaxPartitions: ptr(int64(1))}, []Pair{{"new", "p"}, {"new", "p"}}, nil},
		"all or nothing over both":         {Caps{MaxQueues: ptr(int64(9)), MaxPartitions: ptr(int64(1))}, []Pair{{"fine", "p"}, {"old", "more"}}, &wire.Limit{Name: "partitions", Limit: 1, Used: 1, Unit: "partitions"}},
		"the cap is per queue, not summed": {Caps{MaxPartitions: ptr(int64(1))}, []Pair{{"x", "1"}, {"y", "1"}, {"z", "1"}}, nil},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t)
			w.partition("old", "p")
			const state = "SELECT (SELECT count(*) FROM queen.queues) * 1000 + (SELECT count(*) FROM queen.log_partitions)"
			before := w.count(state)
			got, err := w.Provision(t.Context(), w.tenant, c.pairs, c.caps)
			if c.limit == nil {
				if err != nil || len(got) != len(c.pairs) {
					t.Fatalf("got %v, %v", got, err)
				}
				return
			}
			e, ok := errors.AsType[*wire.Error](err)
			if !ok || e.Code != wire.QuotaExceeded || e.Limit == nil || *e.Limit != *c.limit || e.Outcome == wire.OutcomeUnknown {
				t.Fatalf("got %v, want %+v", err, c.limit)
			}
			if after := w.count(state); after != before {
				t.Errorf("a refused request created something: %d, before %d", after, before)
			}
		})
	}
}

// Counts are exact under concurrency: of many racing creations exactly as many succeed as the cap allows.
func TestCapsAreExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	caps := Caps{MaxQueues: ptr(int64(5)), MaxPartitions: ptr(int64(7))}
	var queues, partitions atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 4 {
				if _, err := w.Provision(t.Context(), w.tenant, []Pair{{fmt.Sprint("q", g, i), "Default"}}, caps); err == nil {
					queues.Add(1)
				}
				// Everybody wants the same queue, and each two partitions of their own.
				pairs := []Pair{{"q00", fmt.Sprint("a", g, i)}, {"q00", fmt.Sprint("b", g, i)}}
				if _, err := w.Provision(t.Context(), w.tenant, pairs, Caps{MaxPartitions: caps.MaxPartitions}); err == nil {
					partitions.Add(2)
				}
			}
		})
	}
	wg.Wait()
	// q00 may be born of either wish; partitions come in twos, so one place of seven stays free.
	if q := w.count("SELECT count(*) FROM queen.queues"); q > 6 || q < 5 || w.count("SELECT queue_count FROM queen.tenants") != q {
		t.Errorf("queues: %d, counted %d", q, w.count("SELECT queue_count FROM queen.tenants"))
	}
	n := w.count("SELECT count(*) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'q00' AND p.name <> 'Default'")
	if n != 6 || partitions.Load() != 6 || w.count("SELECT partition_count FROM queen.queues WHERE name = 'q00'") != 6 {
		t.Errorf("partitions: %d, granted %d", n, partitions.Load())
	}
}
