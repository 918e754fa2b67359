package check

import (
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// farthest is how far behind the last known offset another may lie before it is taken for nonsense.
const farthest = 1 << 24

// fetched takes a fetch that came back: O1, O2, O6, R2.
func (j *judge) fetched(o *operation, e *hist.Event, a *hist.FetchArgs, v *hist.FetchAnswer) {
	for i := range v.Entries {
		r, asked := &v.Entries[i], a.Entries[i].Offset
		l := j.lane(o.event.Tenant, a.Entries[i].Queue, a.Entries[i].Partition)
		if r.Queue != l.key.queue || r.Partition != l.key.partition {
			j.bad(X4, []int64{e.Op}, "a fetch of %s was answered for %s/%s", l.key, r.Queue, r.Partition)
			continue
		}
		if r.Error == "UNKNOWN_TOPIC_OR_PARTITION" {
			if least := o.marks[i]; least.highest > 0 {
				j.bad(O6, []int64{e.Op, least.op}, "%s is unknown, but had %d offsets", l.key, least.highest)
			}
			continue
		}
		j.watermark(l, o.marks[i], r, e)
		l.began(int64(e.T), r.LogStartOffset, e.Op)
		if r.LogStartOffset > 0 && !l.deletes() {
			j.bad(O1, []int64{e.Op}, "%s begins at %d, and nothing may be deleted", l.key, r.LogStartOffset)
		}
		if r.Error == "" {
			j.contiguous(l, asked, r, e)
		}
		for k := range r.Records {
			m := &r.Records[k]
			j.counts.Reads++
			j.read(l, m.Offset, j.tx(m.TransactionID), record{hash: j.hash(m.Payload), created: m.TS.UnixNano(), final: o.final}, e)
		}
		if o.final {
			l.cover(e.Node, asked, r)
		}
	}
}

// watermark compares a high watermark with what had been known when the fetch was sent.
func (j *judge) watermark(l *lane, least watermark, r *hist.FetchResult, e *hist.Event) {
	j.rules[O6].checked++
	if r.HighWatermark < least.highest {
		j.bad(O6, []int64{e.Op, least.op}, "the high watermark of %s is %d on %s, but offset %d was known before the fetch was sent",
			l.key, r.HighWatermark, e.Node, least.highest-1)
	}
	if r.HighWatermark > l.highest {
		l.highest, l.highOp = r.HighWatermark, e.Op
		l.marks = append(l.marks, r.HighWatermark) // rising; one that goes back is O6's business
	}
}

// contiguous judges the offsets of one answer. Without deletions a hole is O1's, with them R2's.
func (j *judge) contiguous(l *lane, asked int64, r *hist.FetchResult, e *hist.Event) {
	rule := O1
	if l.deletes() {
		rule = R2
	}
	j.rules[rule].checked++
	next := asked
	for k := range r.Records {
		if o := r.Records[k].Offset; o != next {
			j.bad(rule, []int64{e.Op}, "%s: offset %d is where %d must be (asked for %d)", l.key, o, next, asked)
			return
		}
		next++
	}
	switch {
	case next > r.HighWatermark:
		j.bad(rule, []int64{e.Op}, "%s: offset %d is at or above the high watermark %d", l.key, next-1, r.HighWatermark)
	case len(r.Records) == 0 && asked < r.HighWatermark && asked >= r.LogStartOffset:
		j.bad(rule, []int64{e.Op}, "%s: nothing is at %d, and the high watermark is %d", l.key, asked, r.HighWatermark)
	}
}

// deletes reports whether messages may vanish from the lane.
func (l *lane) deletes() bool { return l.queue != nil && l.queue.Deletes() }

// began notes a first offset.
func (l *lane) began(at, offset, op int64) {
	if offset > l.first() {
		l.starts = append(l.starts, start{at, offset, op})
	}
}

// cover notes how far the final reads of a broker have come without a hole.
func (l *lane) cover(node string, asked int64, r *hist.FetchResult) {
	through, begun := l.covered[node]
	if !begun || through < r.LogStartOffset {
		through = r.LogStartOffset
	}
	if asked <= through && r.Error == "" {
		through = max(through, asked+int64(len(r.Records)))
	}
	l.covered[node] = through
}

// read notes that a reader saw a message: O2, X4. got has its hash, created, message, precise and final.
func (j *judge) read(l *lane, offset int64, tx txid, got record, e *hist.Event) {
	if home := j.homes[tx]; home != nil && home != l {
		j.bad(X4, []int64{e.Op}, "%s has %s at %d, which belongs to %s", l.key, j.names[tx], offset, home.key)
		return
	}
	j.rules[X4].checked++
	if offset < 0 || offset > l.end()+farthest {
		j.bad(O1, []int64{e.Op}, "%s: %d is no offset", l.key, offset)
		return
	}
	for int64(len(l.records)) <= offset {
		l.records = append(l.records, record{})
	}
	r := &l.records[offset]
	if !r.known {
		got.known, got.tx, got.op, got.read = true, tx, e.Op, int64(e.T)
		*r = got
		return
	}
	j.rules[O2].checked++
	switch {
	case r.tx != tx:
		j.bad(O2, []int64{r.op, e.Op}, "%s: offset %d was %s and is %s", l.key, offset, j.names[r.tx], j.names[tx])
	case r.hash != got.hash:
		j.bad(O2, []int64{r.op, e.Op}, "%s: the payload of offset %d has changed", l.key, offset)
	case !sameTime(r, &got):
		j.bad(O2, []int64{r.op, e.Op}, "%s: offset %d was created at %s and is at %s", l.key, offset, stamp(r.created), stamp(got.created))
	case r.message != 0 && got.message != 0 && r.message != got.message:
		j.bad(O2, []int64{r.op, e.Op}, "%s: the message id of offset %d has changed", l.key, offset)
	}
	if !r.precise && got.precise {
		r.created, r.precise = got.created, true
	}
	if r.message == 0 {
		r.message = got.message
	}
	r.final = r.final || got.final
}

const (
	milli  = int64(time.Millisecond)
	second = int64(time.Second)
)

// sameTime compares two creation times at the precision that both have.
func sameTime(a, b *record) bool {
	if a.precise && b.precise {
		return a.created == b.created
	}
	return a.created/milli == b.created/milli
}

func stamp(ns int64) string { return time.Unix(0, ns).UTC().Format("15:04:05.000000") }

// times judges O3.
func (j *judge) times(l *lane) {
	var last *record
	for o := range l.records {
		r := &l.records[o]
		if !r.known {
			continue
		}
		if last != nil {
			j.rules[O3].checked++
			back := r.created < last.created
			if !r.precise || !last.precise {
				back = r.created/milli < last.created/milli
			}
			if back {
				j.bad(O3, []int64{r.op, last.op}, "%s: offset %d was created at %s, before the one in front of it (%s)",
					l.key, o, stamp(r.created), stamp(last.created))
			}
		}
		last = r
	}
}
