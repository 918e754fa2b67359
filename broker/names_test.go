package broker

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
)

func TestAChangeOfConfigurationCostsPushesOneLookUpPerQueue(t *testing.T) {
	t.Parallel()
	n, tenant := newNames(), uuid.New()
	at := func(id, queue int64, name string, window time.Duration) store.Partition {
		return store.Partition{ID: id, Tenant: tenant, QueueID: queue, Queue: "q", Name: name, DedupWindow: window}
	}
	age := func() { // as if refreshAge had passed
		known := n.queues[queueKey{tenant, "q"}]
		known.latest.asked = known.latest.asked.Add(-refreshAge)
		for name, p := range known.partitions.All() {
			p.asked = p.asked.Add(-refreshAge)
			known.partitions.Put(name, p)
		}
	}
	n.learn(0, []store.Partition{at(1, 7, "a", time.Hour), at(2, 7, "b", time.Hour)})
	n.version.Store(1)
	age()
	for _, name := range []string{"a", "b"} {
		if _, ok := n.target(tenant, "q", name); ok {
			t.Errorf("%s is used although the options of its queue may have changed", name)
		}
	}
	n.learn(1, []store.Partition{at(1, 7, "a", time.Minute)})
	for name, id := range map[string]int64{"a": 1, "b": 2} {
		if p, ok := n.target(tenant, "q", name); !ok || p.ID != id || p.DedupWindow != time.Minute {
			t.Errorf("%s is partition %d with a window of %s, known: %t", name, p.ID, p.DedupWindow, ok)
		}
	}
	if _, ok := n.partition(tenant, "q", "b"); ok {
		t.Error("a pop uses a partition that may have been deleted since it was looked up")
	}
	if _, ok := n.target(tenant, "q", "c"); ok {
		t.Error("a partition is known that was never looked up")
	}

	n.learn(1, []store.Partition{at(3, 8, "a", time.Hour)})
	if p, ok := n.target(tenant, "q", "b"); ok {
		t.Errorf("partition %d of a queue that was deleted and made again is still used", p.ID)
	}
	if want := 1 + 1; n.partitions != want {
		t.Errorf("%d entries counted, want %d", n.partitions, want)
	}
}
