package store

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

func TestExtendRenewsEveryLiveLeaseOfTheID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, other := w.lane("a"), w.lane("b"), w.lane("other")
	for _, l := range []lane{a, b, other} {
		w.push(l, 2)
	}
	c := w.claim(wire.QueueModeGroup, a, b)
	c.Lease = 10 * time.Second
	w.pop(c)
	w.lease(other, 1)
	lease, foreign := c.Worker.String(), uuid.New()
	untouched := *w.cursor(other, wire.QueueModeGroup).Expires

	extend := func(tenant uuid.UUID, lease string, seconds int) (int, time.Duration) {
		t.Helper()
		n, at, err := w.store.Extend(w.ctx, tenant, lease, seconds)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			if !at.IsZero() {
				t.Errorf("nothing renewed, yet it expires at %s", at)
			}
			return 0, 0
		}
		return n, at.Sub(w.now()).Round(time.Second)
	}
	for name, x := range map[string]struct {
		tenant uuid.UUID
		lease  string
	}{
		"another tenant": {foreign, lease},
		"an unknown id":  {w.tenant, uuid.NewString()},
		"a malformed id": {w.tenant, "lease-7"},
		"an empty id":    {w.tenant, ""},
	} {
		if n, _ := extend(x.tenant, x.lease, 100); n != 0 {
			t.Errorf("%s renewed %d", name, n)
		}
	}
	for _, x := range []struct {
		rule    string
		seconds int
		want    time.Duration
	}{
		{"the seconds count from now", 100, 100 * time.Second},
		{"a shorter one does not shorten", 20, 100 * time.Second},
		{"none means the queue's lease time when that is longer than a minute", 0, 300 * time.Second},
	} {
		if n, d := extend(w.tenant, lease, x.seconds); n != 2 || d != x.want {
			t.Errorf("%s: %d for %s, want %s", x.rule, n, d, x.want)
		}
	}
	w.exec("UPDATE queen.queues SET lease_time = 5")
	w.exec("UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() + interval '1 s' WHERE worker_id = $1", c.Worker)
	if n, d := extend(w.tenant, lease, 0); n != 2 || d != time.Minute {
		t.Errorf("none means at least a minute: %d for %s", n, d)
	}
	if n, at, err := w.store.ExtendKnown(w.ctx, w.tenant, lease, 600, []int64{b.id, other.id}); n != 1 || err != nil || at.Sub(w.now()).Round(time.Second) != 600*time.Second {
		t.Errorf("known partitions: %d, %s, %v", n, at, err)
	}
	if n, d := extend(w.tenant, lease, 120); n != 2 || d != 120*time.Second {
		t.Errorf("the earliest expiry is reported: %d for %s", n, d)
	}
	w.exec("UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() WHERE worker_id = $1 AND partition_id = $2", c.Worker, a.id)
	if n, d := extend(w.tenant, lease, 120); n != 1 || d != 600*time.Second {
		t.Errorf("an expired lease is not revived: %d for %s", n, d)
	}
	if at := *w.cursor(other, wire.QueueModeGroup).Expires; !at.Equal(untouched) {
		t.Error("another lease was renewed")
	}
	w.ack(w.group(b, lease, known(1, wire.AckCompleted)))
	if n, _ := extend(w.tenant, lease, 120); n != 0 {
		t.Errorf("after the end of the batch %d were renewed", n)
	}
}
