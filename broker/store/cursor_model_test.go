package store

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/wire"
)

// modelCursor is what a (partition, group) should hold, told without SQL.
type modelCursor struct {
	committed, batchEnd int64 // batchEnd -1: nothing is out
	worker              uuid.UUID
	expired             bool
	retries             int
	attemptOffset       int64 // -1: none
	attempts            int
	consumed            int64
}

type modelKey struct {
	lane  int64
	group string
}

// modelSegment is where a push began, and its stamp.
type modelSegment struct {
	base  int64
	stamp time.Time
}

// model is a queue of a few partitions in plain maps.
type model struct {
	lanes    []lane
	last     map[int64]int64
	segments map[int64][]modelSegment
	cursors  map[modelKey]*modelCursor
	letters  []string // "partition/offset/group/retries"
	limit    int
	files    bool
}

var modelGroups = []string{wire.QueueModeGroup, "billing"}

// pop is the claim of one worker: the verdict per candidate as text.
func (m *model) pop(c Claim) (want []string) {
	left, parts := int64(c.Budget), 0
	for _, id := range c.Candidates {
		k := m.cursors[modelKey{id, c.Group}]
		switch {
		case parts == 1 && c.MaxPartitions == 1 && !c.AutoAck && want[0] != "leased" && want[0] != "empty":
			want = append(want, "skipped") // the first one was enough: no other was looked at
			continue
		case k.batchEnd >= 0 && !k.expired:
			want = append(want, "leased")
			continue
		case m.last[id] <= k.committed:
			want = append(want, "empty")
			continue
		case left == 0 || (c.MaxPartitions > 0 && parts == c.MaxPartitions):
			want = append(want, "skipped")
			continue
		}
		through := min(m.last[id], k.committed+left)
		left -= through - k.committed
		parts++
		attempt := 1
		start := k.committed + 1
		if c.AutoAck {
			k.consumed += through - k.committed
			*k = modelCursor{committed: through, batchEnd: -1, attemptOffset: -1, consumed: k.consumed}
		} else {
			if k.attemptOffset == start {
				attempt = k.attempts + 1
			}
			k.batchEnd, k.worker, k.expired, k.attemptOffset, k.attempts = through, c.Worker, false, start, attempt
		}
		want = append(want, fmt.Sprintf("took %d..%d attempt %d", start, through, attempt))
	}
	return want
}

func (k *modelCursor) release() { k.batchEnd, k.worker, k.expired = -1, uuid.Nil, false }
func (k *modelCursor) reset()   { k.retries, k.attemptOffset, k.attempts = 0, -1, 0 }

// ack decides a call, one verdict word per item.
func (m *model) ack(l lane, group, lease string, at []int64, status []wire.AckStatus) (want []string, released bool) {
	k := m.cursors[modelKey{l.id, group}]
	all := func(word string) []string {
		for range at {
			want = append(want, word)
		}
		return want
	}
	if lease != "" && (k.batchEnd < 0 || k.expired || k.worker.String() != lease) {
		return all("invalid"), false
	}
	end := k.batchEnd
	if end < 0 {
		end = m.last[l.id]
	}
	top, sig, kind := int64(-1), int64(-1), wire.AckCompleted
	for i, o := range at {
		if o <= k.committed || o > end {
			continue
		}
		if status[i] == wire.AckCompleted {
			top = max(top, o)
		} else if sig < 0 || o < sig || (o == sig && status[i] > kind) {
			sig, kind = o, status[i]
		}
	}
	filed := int64(-1)
	before := *k
	prefix := top
	if sig >= 0 {
		prefix = min(prefix, sig-1)
	}
	to := max(k.committed, prefix)
	switch {
	case sig < 0 || before.batchEnd < 0:
		if before.batchEnd >= 0 {
			if to >= before.batchEnd {
				k.release()
				k.reset()
				released = !before.expired
			} else if to > before.committed {
				k.attemptOffset = to + 1
			}
		}
	case kind == wire.AckRetry:
		k.release()
	case kind == wire.AckFailed && before.retries < m.limit:
		k.release()
		k.retries++
	default:
		to = sig
		k.release()
		k.reset()
		if kind == wire.AckDLQ || m.files {
			filed = sig
			m.letters = append(m.letters, fmt.Sprintf("%d/%d/%s/%d", l.id, sig, group, before.retries))
		}
	}
	if sig >= 0 && before.batchEnd >= 0 {
		released = !before.expired
	}
	k.committed = to
	k.consumed += to - before.committed
	for i, o := range at {
		switch {
		case o > end:
			want = append(want, "unresolvable:")
		case o <= before.committed && status[i] == wire.AckCompleted:
			want = append(want, "noop")
		case o <= before.committed:
			want = append(want, "already")
		case o == filed:
			want = append(want, "dlq")
		default:
			want = append(want, "ok")
		}
	}
	return want, released
}

// Random histories of pops, acks, nacks, expiries, extensions and seeks against the model, every row compared after each step.
func TestCursorsBehaveAsTheModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rapid.Check(t, func(rt *rapid.T) {
		w := *w
		name := uuid.NewString()
		queue := w.newQueue(w.tenant, name)
		m := &model{
			last: map[int64]int64{}, segments: map[int64][]modelSegment{}, cursors: map[modelKey]*modelCursor{},
			limit: rapid.IntRange(0, 2).Draw(rt, "limit"), files: rapid.Bool().Draw(rt, "files"),
		}
		w.exec("UPDATE queen.queues SET retry_limit = $2, dead_letter_queue = $3, dlq_after_max_retries = false WHERE id = $1", queue, m.limit, m.files)
		var ids []int64
		var groups []string
		for i := range 3 {
			l := w.laneOf(queue, fmt.Sprint(i))
			m.lanes, m.last[l.id] = append(m.lanes, l), -1
			for _, g := range modelGroups {
				m.cursors[modelKey{l.id, g}] = &modelCursor{committed: -1, batchEnd: -1, attemptOffset: -1}
				ids, groups = append(ids, l.id), append(groups, g)
			}
		}
		for _, g := range modelGroups {
			w.readsAll(g, m.lanes...)
		}
		if err := w.store.seedCursors(w.ctx, ids, groups); err != nil {
			rt.Fatal(err)
		}
		aLane := rapid.SampledFrom(m.lanes)
		aGroup := rapid.SampledFrom(modelGroups)
		rt.Repeat(map[string]func(*rapid.T){
			"push": func(rt *rapid.T) {
				l, n := aLane.Draw(rt, "lane"), rapid.IntRange(1, 5).Draw(rt, "n")
				w.push(l, n)
				var stamp time.Time
				w.scan("SELECT last_created_at FROM queen.log_partitions WHERE id = $1", []any{l.id}, &stamp)
				m.segments[l.id] = append(m.segments[l.id], modelSegment{m.last[l.id] + 1, stamp})
				m.last[l.id] += int64(n)
			},
			"pop": func(rt *rapid.T) {
				c := Claim{
					Group: aGroup.Draw(rt, "group"), Worker: uuid.New(), Lease: time.Hour, Budget: rapid.IntRange(1, 8).Draw(rt, "budget"),
					MaxPartitions: rapid.IntRange(0, 2).Draw(rt, "partitions"), AutoAck: rapid.IntRange(0, 3).Draw(rt, "auto") == 0,
				}
				for _, l := range rapid.Permutation(m.lanes).Draw(rt, "order")[:rapid.IntRange(1, 3).Draw(rt, "candidates")] {
					c.Candidates = append(c.Candidates, l.id)
				}
				rs, err := w.store.ClaimBundle(w.ctx, []Claim{c})
				if err != nil {
					rt.Fatal(err)
				}
				var got []string
				for _, r := range rs[0] {
					if r.Status == ClaimTook {
						got = append(got, fmt.Sprintf("took %d..%d attempt %d", r.After+1, r.Through, r.Attempt))
						checkSegments(rt, r)
					} else {
						got = append(got, say([]Claimed{r}))
					}
				}
				if want := m.pop(c); !slices.Equal(got, want) {
					rt.Fatalf("pop: got %v, want %v", got, want)
				}
			},
			"ack": func(rt *rapid.T) {
				l, group := aLane.Draw(rt, "lane"), aGroup.Draw(rt, "group")
				k := m.cursors[modelKey{l.id, group}]
				lease := rapid.SampledFrom([]string{k.worker.String(), k.worker.String(), "", uuid.NewString()}).Draw(rt, "lease")
				g := AckGroup{Tenant: w.tenant, Partition: l.uid, Group: group, Lease: lease}
				low := max(0, k.committed-1)
				var at []int64
				var status []wire.AckStatus
				for range rapid.IntRange(1, 4).Draw(rt, "items") {
					o := rapid.Int64Range(low, max(low, k.batchEnd, min(k.committed+4, m.last[l.id]))+1).Draw(rt, "offset")
					s := rapid.SampledFrom([]wire.AckStatus{wire.AckCompleted, wire.AckCompleted, wire.AckCompleted, wire.AckRetry, wire.AckFailed, wire.AckDLQ}).Draw(rt, "status")
					it := said(o, s)
					if rapid.Bool().Draw(rt, "known") && o <= m.last[l.id] {
						it.Offset = o
					}
					at, status, g.Items = append(at, o), append(status, s), append(g.Items, it)
				}
				vs, err := w.store.AckBundle(w.ctx, []AckGroup{g})
				if err != nil {
					rt.Fatal(err)
				}
				want, released := m.ack(l, group, lease, at, status)
				got := describe(vs[0].Items)
				if got != fmt.Sprint(joined(want)) || vs[0].LeaseReleased != released {
					rt.Fatalf("ack %v %v lease %q: got %s released %v, want %s released %v", at, status, lease, got, vs[0].LeaseReleased, joined(want), released)
				}
			},
			"expire": func(rt *rapid.T) {
				l, group := aLane.Draw(rt, "lane"), aGroup.Draw(rt, "group")
				w.exec("UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE partition_id = $1 AND consumer_group = $2 AND worker_id IS NOT NULL", l.id, group)
				if k := m.cursors[modelKey{l.id, group}]; k.batchEnd >= 0 {
					k.expired = true
				}
			},
			"extend": func(rt *rapid.T) {
				k := m.cursors[modelKey{aLane.Draw(rt, "lane").id, aGroup.Draw(rt, "group")}]
				want := 0
				for _, o := range m.cursors {
					if o.batchEnd >= 0 && !o.expired && o.worker == k.worker {
						want++
					}
				}
				n, _, err := w.store.Extend(w.ctx, w.tenant, k.worker.String(), 7200)
				if err != nil || n != want {
					rt.Fatalf("extend renewed %d, want %d: %v", n, want, err)
				}
			},
			"seek": func(rt *rapid.T) {
				group, to, lanes, partition := aGroup.Draw(rt, "group"), wire.Seek{ToEnd: true}, m.lanes, ""
				target := func(l lane) int64 { return m.last[l.id] }
				switch rapid.IntRange(0, 2).Draw(rt, "form") {
				case 0: // the whole queue to its beginning
					to, target = wire.Seek{At: time.Unix(0, 0)}, func(lane) int64 { return -1 }
				case 1: // one partition to a segment of it
					i := rapid.IntRange(0, len(m.lanes)-1).Draw(rt, "lane")
					l := m.lanes[i]
					lanes, partition = []lane{l}, fmt.Sprint(i)
					if s := m.segments[l.id]; len(s) > 0 {
						at := rapid.SampledFrom(s).Draw(rt, "segment")
						to, target = wire.Seek{At: at.stamp}, func(lane) int64 { return at.base - 1 }
					}
				}
				n, err := w.store.Seek(w.ctx, w.tenant, group, name, partition, to)
				if err != nil || int(n) != len(lanes) {
					rt.Fatalf("seek moved %d, want %d: %v", n, len(lanes), err)
				}
				for _, l := range lanes {
					k := m.cursors[modelKey{l.id, group}]
					*k = modelCursor{committed: target(l), batchEnd: -1, attemptOffset: -1, consumed: k.consumed}
				}
			},
			"": func(rt *rapid.T) { w.compare(rt, m, ids) },
		})
	})
}

func joined(words []string) (text string) {
	for i, word := range words {
		if i > 0 {
			text += " "
		}
		text += word
	}
	return text
}

// checkSegments: the segments of a claim cover its span without a hole and hold what they should.
func checkSegments(rt *rapid.T, r Claimed) {
	at := r.After + 1
	for _, s := range r.Segments {
		if s.Base > at || s.End < at {
			rt.Fatalf("segment %d..%d does not continue at %d", s.Base, s.End, at)
		}
		if name, _, err := openFrame(s.Blob, int(at-s.Base)); err != nil || name != txn(at) {
			rt.Fatalf("message %d is %q, %v", at, name, err)
		}
		at = s.End + 1
	}
	if at <= r.Through {
		rt.Fatalf("the segments end before %d", r.Through)
	}
}

// compare checks every row against the model, and what no row may ever show.
func (w *world) compare(rt *rapid.T, m *model, ids []int64) {
	rows, err := w.pool.Query(w.ctx, `SELECT partition_id, consumer_group, committed, coalesce(batch_end, -1), worker_id,
  lease_expires_at <= clock_timestamp(), batch_retry_count, coalesce(attempt_offset, -1), attempt_count, total_consumed,
  lease_expires_at IS NULL AND lease_acquired_at IS NULL
FROM queen.log_consumers WHERE partition_id = ANY ($1)`, ids)
	if err != nil {
		rt.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		n++
		var key modelKey
		var got modelCursor
		var worker *uuid.UUID
		var expired *bool
		var bare bool
		if err := rows.Scan(&key.lane, &key.group, &got.committed, &got.batchEnd, &worker, &expired, &got.retries, &got.attemptOffset, &got.attempts, &got.consumed, &bare); err != nil {
			rt.Fatal(err)
		}
		if worker != nil {
			got.worker = *worker
		}
		got.expired = expired != nil && *expired
		if (got.batchEnd < 0) != (worker == nil) || (got.batchEnd < 0) != bare {
			rt.Fatalf("%v: a batch is out exactly while there is a lease: %+v", key, got)
		}
		if diff := gocmp.Diff(*m.cursors[key], got, gocmp.AllowUnexported(modelCursor{})); diff != "" {
			rt.Fatalf("%v (-want +got):\n%s", key, diff)
		}
	}
	if err := rows.Err(); err != nil || n != len(m.cursors) {
		rt.Fatalf("%d cursors, want %d: %v", n, len(m.cursors), err)
	}
	var letters []string
	w.scan(`SELECT coalesce(array_agg(partition_id || '/' || offset_ || '/' || consumer_group || '/' || retry_count), '{}')
FROM queen.log_dlq WHERE partition_id = ANY ($1)`, []any{ids}, &letters)
	want := slices.Clone(m.letters)
	slices.SortFunc(letters, cmp.Compare[string])
	slices.SortFunc(want, cmp.Compare[string])
	if !slices.Equal(letters, want) {
		rt.Fatalf("dead letters %v, want %v", letters, want)
	}
}
