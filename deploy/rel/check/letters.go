package check

import (
	"cmp"
	"maps"
	"slices"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// replayPrefix begins the transaction ids of dead letters that were sent again; the id of the letter follows.
const replayPrefix = "dlq:"

// letter is a dead letter that somebody saw.
type letter struct {
	hist.DeadLetter
	cursor *cursor
	hash   uint64
	op     int64 // the first reader
	final  bool
}

// letters is everything about dead letters.
type letters struct {
	byID  map[string]*letter
	moved map[string]int64 // letters that a replay moved: by which operation
	maybe map[string]bool  // or may have moved
	read  map[reader]bool  // queues, or groups of them, whose final list was read to its end
}

// listed takes a page of dead letters.
func (d *letters) listed(j *judge, o *operation, e *hist.Event, a *hist.DeadLettersArgs, v *hist.DeadLettersAnswer) {
	d.init()
	if o.final && v.Next == "" {
		d.read[reader{e.Tenant, a.Queue, a.Group}] = true
	}
	for i := range v.Messages {
		m := &v.Messages[i]
		at := d.byID[m.ID]
		if at == nil {
			l := j.lane(e.Tenant, m.Queue, m.Partition)
			at = &letter{DeadLetter: *m, cursor: j.cursor(l, m.Group), hash: j.hash(m.Data), op: e.Op}
			d.byID[m.ID] = at
		}
		if o.final && !at.final {
			at.final = true
			j.counts.DeadLetters++
		}
	}
}

func (d *letters) init() {
	if d.byID == nil {
		d.byID, d.moved, d.maybe, d.read = map[string]*letter{}, map[string]int64{}, map[string]bool{}, map[reader]bool{}
	}
}

// replayed takes a replay of a letter that came back, or never did.
func (d *letters) replayed(j *judge, e *hist.Event, a *hist.ReplayArgs, v *hist.ReplayAnswer) {
	d.init()
	if e.Kind == hist.Fail {
		return
	}
	l := j.lane(e.Tenant, a.Queue, a.Partition)
	it := item{tx: j.tx(replayPrefix + a.ID), offset: -1, inv: int64(e.T), ret: int64(e.T), op: e.Op, client: int32(e.Client), node: j.node(e.Node)}
	if at := d.byID[a.ID]; at != nil {
		it.hash = at.hash
	}
	switch {
	case e.Kind == hist.Info || v == nil:
		d.maybe[a.ID] = true
	case v.Result == "moved":
		it.label = hist.ItemQueued
		if before, again := d.moved[a.ID]; again {
			j.bad(Q7, []int64{before, e.Op}, "the dead letter %s was sent again twice", a.ID)
		}
		d.moved[a.ID] = e.Op
	case v.Result == "duplicate":
		it.label = hist.ItemDuplicate
		d.maybe[a.ID] = true
	default:
		return
	}
	l.items = append(l.items, it)
}

// finish judges Q7.
func (d *letters) finish(j *judge) {
	d.init()
	type place struct {
		cursor *cursor
		offset int64
	}
	dead := map[place]*letter{}
	for _, at := range slices.SortedFunc(maps.Values(d.byID), func(a, b *letter) int {
		return cmp.Or(compare(a.op, b.op), cmp.Compare(a.ID, b.ID))
	}) {
		if _, moved := d.moved[at.ID]; moved && at.final {
			j.bad(Q7, []int64{d.moved[at.ID], at.op}, "the dead letter %s was sent again and is still there", at.ID)
		}
		if !at.final {
			if _, moved := d.moved[at.ID]; !moved && !d.maybe[at.ID] && d.complete(at.cursor) {
				j.bad(Q7, []int64{at.op}, "the dead letter %s (%s at %d) is gone, and nobody took it", at.ID, at.cursor.name(), at.Offset)
				continue
			}
		}
		p := place{at.cursor, at.Offset}
		if before := dead[p]; before != nil {
			j.bad(Q7, []int64{before.op, at.op}, "%s: offset %d is dead twice", at.cursor.name(), at.Offset)
		}
		dead[p] = at
		d.content(j, at)
	}
	for _, l := range j.all {
		if l.queue == nil || !l.queue.DeadLetters || l.queue.Workload != "W7" || l.deletes() {
			continue
		}
		for _, c := range l.cursors() {
			if c.spec == nil || !c.spec.Drains || c.spec.AutoAck {
				continue
			}
			if !d.complete(c) || !l.whole {
				j.unknown(Q7, "the dead letters or the partitions of %s were not read to the end", l.key.queue)
				continue
			}
			for o := range l.records {
				if r := &l.records[o]; r.final && r.promised {
					d.ends(j, c, int64(o), dead[place{c, int64(o)}])
				}
			}
		}
	}
}

// complete reports whether the dead letters of a group were read to their end.
func (d *letters) complete(c *cursor) bool {
	r := c.reader()
	return d.read[r] || d.read[reader{tenant: r.tenant, queue: r.queue}]
}

// content judges a letter against its message.
func (d *letters) content(j *judge, at *letter) {
	l := at.cursor.lane
	r := l.at(at.Offset)
	if r == nil {
		return // deleted, or not read
	}
	switch {
	case j.names[r.tx] != at.TransactionID:
		j.bad(Q7, []int64{at.op, r.op}, "%s: the dead letter of offset %d is %s, and the message is %s", at.cursor.name(), at.Offset, at.TransactionID, j.names[r.tx])
	case r.hash != at.hash:
		j.bad(Q7, []int64{at.op, r.op}, "%s: the dead letter of offset %d has not the payload of the message", at.cursor.name(), at.Offset)
	}
}

// ends judges the end of one message for one group.
func (d *letters) ends(j *judge, c *cursor, o int64, dead *letter) {
	j.rules[Q7].checked++
	r := &c.lane.records[o]
	done, perhaps := c.completed.has(o), c.maybe.has(o)
	switch {
	case dead != nil && done:
		j.bad(Q7, []int64{dead.op, r.op}, "%s: offset %d was completed and is dead", c.name(), o)
	case dead != nil && !c.failed.has(o):
		j.bad(Q7, []int64{dead.op, r.op}, "%s: offset %d is dead, and nobody said that it failed", c.name(), o)
	case dead == nil && !done && !perhaps:
		j.bad(Q7, []int64{r.op}, "%s: offset %d was neither completed nor is it dead", c.name(), o)
	}
}
