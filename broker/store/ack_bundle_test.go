package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/wire"
)

func TestAckCannotTellAForeignPartitionFromAMissingOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 2)
	lease, _ := w.lease(l, 2)
	foreign := w.group(l, lease, known(0, wire.AckCompleted))
	foreign.Tenant = uuid.New()
	missing := w.group(lane{uid: uuid.New()}, lease, known(0, wire.AckCompleted))
	vs := w.ack(foreign, missing)
	if diff := cmp.Diff(vs[0], vs[1]); diff != "" {
		t.Errorf("the two answers differ:\n%s", diff)
	}
	if got := vs[0].Items[0].Error; got != AckNotOwned {
		t.Errorf("error %q", got)
	}
	if c := w.cursor(l, wire.QueueModeGroup); c.Committed != -1 || c.BatchEnd == nil {
		t.Errorf("a foreign ack moved the cursor: %v", c)
	}
}

func TestAckAnswersEveryGroupInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var groups []AckGroup
	for i := range 20 {
		l := w.lane(fmt.Sprint(i))
		w.push(l, 4)
		lease, _ := w.lease(l, 4)
		it := known(int64(i%4), wire.AckCompleted)
		if i%3 == 0 {
			it = said(int64(i%4), wire.AckCompleted)
		}
		groups = append(groups, w.group(l, lease, it))
	}
	rand.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	groups = append(groups, AckGroup{Tenant: w.tenant, Partition: groups[0].Partition, Group: "nobody", Items: groups[0].Items}, AckGroup{})
	vs := w.ack(groups...)
	for i, g := range groups[:20] {
		if v := vs[i]; !v.Items[0].Success || v.Committed != int64(offsetOf(g.Items[0])) || v.Queue != w.queue {
			t.Errorf("group %d: %+v", i, v)
		}
	}
	if got := vs[20].Items[0].Error; got != AckNoConsumer {
		t.Errorf("unknown group: %q", got)
	}
	if len(vs[21].Items) != 0 {
		t.Errorf("empty group: %+v", vs[21])
	}
}

func offsetOf(it AckItem) (at int) {
	if _, err := fmt.Sscanf(it.TransactionID, "t-%d", &at); err != nil {
		panic(err)
	}
	return at
}

func TestAcksOfOneLeaseAreDecidedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 6)
	lease, _ := w.lease(l, 6)
	vs := w.ack(
		w.group(l, lease, known(3, wire.AckCompleted)),
		w.group(l, lease, known(5, wire.AckCompleted)),
		w.group(l, lease, said(0, wire.AckCompleted)),
	)
	var advanced int64
	for i, v := range vs {
		if !v.Items[0].Success || v.Items[0].Noop || v.Committed != 5 || v.LeaseReleased != (i == 1) {
			t.Errorf("verdict %d: %+v", i, v)
		}
		advanced += v.Advanced
	}
	if advanced != 6 {
		t.Errorf("%d messages crossed, want 6", advanced)
	}
}

func TestASignalIsDecidedAfterTheAcksBeforeIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 6)
	lease, _ := w.lease(l, 6)
	vs := w.ack(
		w.group(l, lease, known(2, wire.AckCompleted)),
		w.group(l, lease, known(3, wire.AckFailed)),
		w.group(l, lease, known(4, wire.AckCompleted)),
	)
	if !vs[0].Items[0].Success || vs[0].LeaseReleased {
		t.Errorf("first: %+v", vs[0])
	}
	if !vs[1].Items[0].Success || !vs[1].LeaseReleased || vs[1].Committed != 2 {
		t.Errorf("signal: %+v", vs[1])
	}
	if got := vs[2].Items[0].Error; got != AckStaleLease {
		t.Errorf("after the release: %q", got)
	}
}

func TestDeadLetterReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	because := func(it AckItem, reason string) AckItem {
		it.Reason = reason
		return it
	}
	for name, c := range map[string]struct {
		items []AckItem
		want  string
	}{
		"of the item that hit":        {[]AckItem{because(known(2, wire.AckFailed), "later"), because(known(1, wire.AckDLQ), "hit")}, "hit"},
		"else the first in the group": {[]AckItem{known(0, wire.AckCompleted), because(known(2, wire.AckFailed), "first"), known(1, wire.AckDLQ)}, "first"},
		"else a fixed text":           {[]AckItem{known(1, wire.AckDLQ)}, "Retries exhausted"},
		"by hash as well":             {[]AckItem{because(said(2, wire.AckFailed), "later"), because(said(1, wire.AckDLQ), "hit")}, "hit"},
		"the strongest at one offset": {[]AckItem{because(known(1, wire.AckRetry), "weak"), because(known(1, wire.AckDLQ), "strong")}, "strong"},
		"with bytes that no text has": {[]AckItem{because(known(1, wire.AckDLQ), "a\x00b\xff")}, "a\uFFFDb\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := *w
			w.t = t
			l := w.lane(name)
			w.push(l, 4)
			lease, _ := w.lease(l, 4)
			w.ack(w.group(l, lease, c.items...))
			var got string
			w.scan("SELECT error FROM queen.log_dlq WHERE partition_id = $1", []any{l.id}, &got)
			if got != c.want {
				t.Errorf("reason %q, want %q", got, c.want)
			}
		})
	}
}

func TestADeadLetterWhosePayloadIsLostIsFiledAllTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		harm string
		want string
		id   bool // the message id is still known
	}{
		"removed by retention": {"DELETE FROM queen.log_segments WHERE partition_id = $1", "boom (the payload had been removed by retention)", false},
		"unreadable":           {`UPDATE queen.log_segments SET blob = '\x00' WHERE partition_id = $1`, "boom (the payload could not be read)", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := *w
			w.t = t
			l := w.lane(name)
			w.push(l, 4)
			lease, _ := w.lease(l, 4)
			w.exec(c.harm, l.id)
			it := known(1, wire.AckDLQ)
			it.Reason = "boom"
			v := w.ack(w.group(l, lease, it))[0]
			if !v.Items[0].DLQ || !v.LeaseReleased || v.Committed != 1 {
				t.Errorf("verdict %+v", v)
			}
			var reason, name string
			var payload []byte
			var message *uuid.UUID
			w.scan("SELECT error, transaction_id, payload, message_id FROM queen.log_dlq WHERE partition_id = $1", []any{l.id}, &reason, &name, &payload, &message)
			if reason != c.want || name != txn(1) || payload != nil || (message != nil) != c.id {
				t.Errorf("letter %q %q %q %v", reason, name, payload, message)
			}
		})
	}
}

func TestOneFrameDeadForTwoGroupsIsTwoLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 2)
	for _, group := range []string{"a", "b"} {
		c := w.claim(group, l)
		w.pop(c)
		g := w.group(l, c.Worker.String(), known(0, wire.AckDLQ))
		g.Group = group
		w.ack(g)
	}
	var n int
	w.scan("SELECT count(DISTINCT consumer_group) FROM queen.log_dlq WHERE partition_id = $1 AND offset_ = 0", []any{l.id}, &n)
	if n != 2 {
		t.Errorf("%d letters, want 2", n)
	}
}

func TestARepeatedTransactionIDMeansItsLowestMessageInTheSpan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.pushNamed(l, time.Time{}, "x", "y", "x", "z", "x")
	lease, _ := w.lease(l, 5)
	x := AckItem{Hash: segment.HashID("x"), Status: wire.AckCompleted, Offset: -1}
	for _, want := range []int64{0, 2, 4} {
		if v := w.ack(w.group(l, lease, x))[0]; v.Committed != want || v.Items[0].Noop {
			t.Fatalf("cursor %d noop %v, want %d", v.Committed, v.Items[0].Noop, want)
		}
	}
	lease = ""
	if v := w.ack(w.group(l, lease, x))[0]; !v.Items[0].Noop {
		t.Errorf("the fourth ack: %+v", v)
	}
}

func TestAWideSearchIsAnsweredAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wide, narrow := w.lane("wide"), w.lane("narrow")
	const step = 8192
	for range ackWidth/step + 1 {
		w.push(wide, step)
	}
	w.push(narrow, 2)
	lease, _ := w.lease(narrow, 2)
	if err := w.store.seedCursors(w.ctx, []int64{wide.id}, []string{wire.QueueModeGroup}); err != nil {
		t.Fatal(err)
	}
	vs := w.ack(w.group(wide, "", said(ackWidth+5, wire.AckCompleted), said(1<<40, wire.AckCompleted)), w.group(narrow, lease, said(1, wire.AckCompleted)))
	if got := describe(vs[0].Items); got != "ok unresolvable:" || vs[0].Committed != ackWidth+5 {
		t.Errorf("wide: %s at %d", got, vs[0].Committed)
	}
	if !vs[1].LeaseReleased {
		t.Errorf("narrow: %+v", vs[1])
	}
	// Behind the cursor as well, newest first.
	v := w.ack(w.group(wide, "", said(3, wire.AckCompleted), said(3, wire.AckFailed), said(1<<40, wire.AckCompleted)))[0]
	if got := describe(v.Items); got != "noop already unresolvable:" {
		t.Errorf("behind: %s", got)
	}
}

// Acks of overlapping sets of groups in any order must neither deadlock nor lose a move.
func TestConcurrentAcksOfTheSameGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n, sessions = 12, 8
	ls := make([]lane, n)
	leases := make([]string, n)
	for i := range ls {
		ls[i] = w.lane(fmt.Sprint(i))
		w.push(ls[i], sessions+1)
		leases[i], _ = w.lease(ls[i], sessions+1)
	}
	var wg sync.WaitGroup
	for s := range sessions {
		wg.Go(func() {
			var groups []AckGroup
			for _, i := range rand.Perm(n) {
				groups = append(groups, w.group(ls[i], leases[i], known(int64(s), wire.AckCompleted)))
			}
			if _, err := w.store.AckBundle(w.ctx, groups); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, l := range ls {
		if c := w.cursor(l, wire.QueueModeGroup); c.Committed != sessions-1 || c.BatchEnd == nil {
			t.Errorf("partition %d: %v", l.id, c)
		}
	}
}
