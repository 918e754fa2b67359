package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/wire"
)

// Random programs of everything that moves messages and cursors, run against the database and against the model. After
// each step every row, every answer of a statistic and what must always hold are compared. A program that fails shrinks to
// a few steps. `go test -run TestTheEngineBehavesAsTheModel ./broker/store -rapid.checks=5000` takes a night's worth of
// them. A program that fails is kept in testdata/rapid and comes first from then on.
func TestTheEngineBehavesAsTheModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rapid.Check(t, func(rt *rapid.T) {
		e := newEngine(w, rt)
		steps := map[string]func(*rapid.T){"": func(*rapid.T) { e.compare() }}
		for name, take := range engineSteps {
			steps[name] = func(rt *rapid.T) {
				e.rt = rt
				take(e)
			}
		}
		rt.Repeat(steps)
	})
}

// engine is a run of a program.
type engine struct {
	*world
	rt    *rapid.T
	m     *model
	fresh int // messages named so far
	task  map[string]TaskLease
}

// engineSteps are drawn alike, so what consumers do most is here more than once.
var engineSteps = map[string]func(*engine){
	"push":         (*engine).push,
	"push more":    (*engine).push,
	"pop":          (*engine).popSome,
	"pop more":     (*engine).popSome,
	"ack":          (*engine).ackSome,
	"ack more":     (*engine).ackSome,
	"ack still":    (*engine).ackSome,
	"register":     (*engine).register,
	"expire":       (*engine).expireOne,
	"extend":       (*engine).extend,
	"seek":         (*engine).seek,
	"transact":     (*engine).transactSome,
	"age":          (*engine).age,
	"age more":     (*engine).age,
	"retain":       (*engine).retain,
	"retain more":  (*engine).retain,
	"replay":       (*engine).replay,
	"clear":        (*engine).clear,
	"delete group": (*engine).deleteGroup,
	"delete queue": (*engine).deleteQueue,
}

const (
	enginePartitions = 2 // what the plan allows: few, so that steps meet
	engineQueue      = "orders"
)

func newEngine(w *world, rt *rapid.T) *engine {
	own := *w
	own.tenant, own.queue = uuid.New(), engineQueue
	e := &engine{world: &own, rt: rt, m: &model{lanes: map[string]*modelLane{}}, task: map[string]TaskLease{}}
	e.m.limit = rapid.IntRange(0, 2).Draw(rt, "retry limit")
	e.m.files = rapid.Bool().Draw(rt, "dead letters")
	e.m.window = rapid.SampledFrom([]int{0, 90}).Draw(rt, "dedup window")
	e.m.keepAll = rapid.SampledFrom([]int{0, 90}).Draw(rt, "retention")
	e.m.keepDone = rapid.SampledFrom([]int{0, 30}).Draw(rt, "completed retention")
	e.m.keepWaiting = rapid.SampledFrom([]int{0, 150}).Draw(rt, "max wait")
	for _, name := range []string{TaskRetention, TaskSidecar} {
		e.task[name] = own.task(name)
	}
	return e
}

func (e *engine) draw(what string, n int) int { return rapid.IntRange(0, n-1).Draw(e.rt, what) }

// some is a lane that is there, nil when there is none.
func (e *engine) some() *modelLane {
	lanes := e.m.sorted()
	if len(lanes) == 0 {
		return nil
	}
	return lanes[e.draw("lane", len(lanes))]
}

func (e *engine) group() string { return modelGroups[e.draw("group", len(modelGroups))] }

func (e *engine) must(err error) {
	if err != nil {
		e.rt.Fatal(err)
	}
}

func (e *engine) check(what string, got, want any) {
	if d := cmp.Diff(want, got); d != "" {
		e.rt.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

// provision finds a lane by name and makes it if the plan allows; nil when it does not.
func (e *engine) provision(name string) *modelLane {
	ps, err := e.store.Provision(e.ctx, e.tenant, []Pair{{engineQueue, name}}, Caps{MaxPartitions: ptr[int64](enginePartitions)})
	known := e.m.lanes[name]
	if known == nil && len(e.m.lanes) == enginePartitions {
		if we := wire.AsError(err); we == nil || we.Code != wire.QuotaExceeded {
			e.rt.Fatalf("one partition more than the plan allows: %v", err)
		}
		return nil
	}
	e.must(err)
	if !e.m.exists {
		e.m.exists = true
		e.exec(`UPDATE queen.queues SET retry_limit = $2, dead_letter_queue = $3, dlq_after_max_retries = false, dedup_window_seconds = $4,
retention_enabled = $5, retention_seconds = $6, completed_retention_seconds = $7, max_wait_time_seconds = $8 WHERE id = $1`,
			ps[0].QueueID, e.m.limit, e.m.files, 60*e.m.window, e.m.keepAll+e.m.keepDone > 0, 60*e.m.keepAll, 60*e.m.keepDone, 60*e.m.keepWaiting)
	}
	e.id = ps[0].QueueID
	if known == nil {
		known = &modelLane{lane: lane{ps[0].ID, ps[0].UID}, name: name, last: -1, cursors: map[string]*modelCursor{}}
		e.m.lanes[name] = known
	} else if known.id != ps[0].ID {
		e.rt.Fatalf("partition %s is %d, was %d", name, ps[0].ID, known.id)
	}
	return known
}

// offer is a segment of fresh messages and maybe one whose name was there before.
func (e *engine) offer(l *modelLane, n int) (Segment, []string) {
	var names []string
	for range n {
		e.fresh++
		names = append(names, fmt.Sprint("m", e.fresh))
	}
	if len(l.names) > 0 && e.draw("again", 3) == 0 {
		names = append(names, l.names[e.draw("which", len(l.names))])
	}
	s := e.segmentOf(l.lane, names...)
	s.DedupWindow = time.Duration(e.m.window) * time.Minute
	return s, names
}

func (e *engine) push() {
	l := e.provision(fmt.Sprint("p", e.draw("partition", enginePartitions+1)))
	if l == nil {
		return
	}
	s, names := e.offer(l, 1+e.draw("messages", 4))
	dups := e.m.duplicates(l, names)
	vs, err := e.store.PushBundle(e.ctx, []Segment{s})
	e.must(err)
	e.pushed("push", l, names, s.RawBytes, dups, vs[0])
}

// pushed compares a verdict and appends to the model what was stored.
func (e *engine) pushed(what string, l *modelLane, names []string, bytes int64, dups []Dup, v PushVerdict) {
	for i := range v.Dups {
		v.Dups[i].CreatedAt = time.Time{}
	}
	e.check(what+": duplicates", v.Dups, dups)
	if dups != nil {
		e.check(what+": status", v.Status, PushDuplicate)
		return
	}
	e.check(what+": status", v.Status, PushStored)
	e.check(what+": first offset", v.Base, l.append(names, bytes))
}

func (e *engine) register() {
	e.must(e.enroll(e.tenant, modelBilling, engineQueue, Seed{Mode: wire.SeedAll}))
	if !e.m.registered {
		for _, l := range e.m.lanes {
			l.seed(modelBilling)
		}
	}
	e.m.registered = true
}

func (e *engine) popSome() {
	lanes := e.m.sorted()
	if len(lanes) == 0 {
		return
	}
	lanes = rapid.Permutation(lanes).Draw(e.rt, "order")[:1+e.draw("candidates", len(lanes))]
	c := Claim{
		Group: e.group(), Worker: uuid.New(), Lease: time.Hour, Budget: 1 + e.draw("budget", 8),
		MaxPartitions: e.draw("partitions", 3), AutoAck: e.draw("auto ack", 4) == 0,
	}
	if !e.m.knows(c.Group) && lanes[0].cursors[c.Group] != nil {
		return // a group whose registration alone is gone
	}
	for _, l := range lanes {
		c.Candidates = append(c.Candidates, l.id)
	}
	if e.m.knows(c.Group) {
		// The first contact is a step of its own, so that every candidate is looked at in one round.
		groups := slices.Repeat([]string{c.Group}, len(lanes))
		e.must(e.store.seedCursors(e.ctx, c.Candidates, groups))
		for _, l := range lanes {
			l.seed(c.Group)
		}
	}
	rs, err := e.store.ClaimBundle(e.ctx, []Claim{c})
	e.must(err)
	var got []string
	for i, r := range rs[0] {
		switch r.Status {
		case ClaimTook:
			got = append(got, fmt.Sprintf("took %d..%d attempt %d", r.After+1, r.Through, r.Attempt))
			e.delivered(lanes[i], r)
		case ClaimUnregistered:
			got = append(got, "unregistered")
		default:
			got = append(got, say([]Claimed{r}))
		}
	}
	e.check("pop", got, e.m.pop(c, lanes))
}

// delivered: the segments of a claim cover its span without a hole and hold what was pushed.
func (e *engine) delivered(l *modelLane, r Claimed) {
	at := r.After + 1
	for _, s := range r.Segments {
		if s.Base > at || s.End < at {
			e.rt.Fatalf("segment %d..%d does not continue at %d", s.Base, s.End, at)
		}
		for ; at <= min(s.End, r.Through); at++ {
			if name, _, err := openFrame(s.Blob, int(at-s.Base)); err != nil || name != l.names[at] {
				e.rt.Fatalf("message %d is %q, want %q: %v", at, name, l.names[at], err)
			}
		}
	}
	if at <= r.Through {
		e.rt.Fatalf("the segments end before %d", r.Through)
	}
}

// items draws acknowledgements of messages around what a cursor stands at. A name that came twice is left alone: by its
// hash it would mean the first of them.
func (e *engine) items(l *modelLane, k *modelCursor, n int) (items []AckItem, at []int64, status []wire.AckStatus) {
	low := max(0, k.committed-1, l.txnsStart)
	high := max(low, k.batchEnd, min(k.committed+4, l.last)) + 1
	for range n {
		o := low + int64(e.draw("offset", int(high-low)+1))
		it := AckItem{Offset: -1, Status: wire.AckStatus(max(0, e.draw("status", 6)-2)), Hash: hashAt(1 << 40)}
		if o <= l.last {
			name := l.names[o]
			if slices.Index(l.names, name) != int(o) || slices.Contains(l.names[o+1:], name) {
				continue
			}
			copy(it.Hash[:], hashOf(name))
			if e.draw("known", 2) == 0 {
				it.Offset = o
			}
		}
		items, at, status = append(items, it), append(at, o), append(status, it.Status)
	}
	return items, at, status
}

func (e *engine) ackSome() {
	l, group := e.some(), e.group()
	if l == nil || l.cursors[group] == nil {
		return
	}
	k := l.cursors[group]
	lease := [...]string{k.worker.String(), k.worker.String(), "", uuid.NewString()}[e.draw("lease", 4)]
	items, at, status := e.items(l, k, 1+e.draw("items", 4))
	if len(items) == 0 {
		return
	}
	vs, err := e.store.AckBundle(e.ctx, []AckGroup{{Tenant: e.tenant, Partition: l.uid, Group: group, Lease: lease, Items: items}})
	e.must(err)
	want, released := e.m.ack(l, group, lease, at, status)
	e.check(fmt.Sprintf("ack %v %v", at, status), describe(vs[0].Items), strings.Join(want, " "))
	e.check("ack: lease released", vs[0].LeaseReleased, released)
}

func (e *engine) expireOne() {
	l, group := e.some(), e.group()
	if l == nil {
		return
	}
	e.exec("UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE partition_id = $1 AND consumer_group = $2 AND worker_id IS NOT NULL", l.id, group)
	if k := l.cursors[group]; k != nil && k.batchEnd >= 0 {
		k.expired = true
	}
}

func (e *engine) extend() {
	l, group := e.some(), e.group()
	if l == nil || l.cursors[group] == nil {
		return
	}
	worker, want := l.cursors[group].worker, 0
	for _, l := range e.m.lanes {
		for _, k := range l.cursors {
			if k.batchEnd >= 0 && !k.expired && k.worker == worker {
				want++
			}
		}
	}
	n, _, err := e.store.Extend(e.ctx, e.tenant, worker.String(), 7200)
	e.must(err)
	e.check("extend", n, want)
}

func (e *engine) seek() {
	group, to, lanes, partition := e.group(), wire.Seek{ToEnd: true}, e.m.sorted(), ""
	if !e.m.knows(group) {
		return
	}
	target := func(l *modelLane) int64 { return l.last }
	switch e.draw("form", 3) {
	case 0: // the whole queue to its beginning
		to, target = wire.Seek{At: time.Unix(0, 0)}, func(l *modelLane) int64 { return l.start - 1 }
	case 1: // one partition to a segment of it
		l := e.some()
		if l == nil {
			return
		}
		lanes, partition = []*modelLane{l}, l.name
		if s := l.live(); len(s) > 0 {
			at := s[e.draw("segment", len(s))]
			to, target = wire.Seek{}, func(*modelLane) int64 { return at.base - 1 }
			e.scan("SELECT created_at FROM queen.log_segments WHERE partition_id = $1 AND base_offset = $2", []any{l.id, at.base}, &to.At)
		}
	}
	n, err := e.store.Seek(e.ctx, e.tenant, group, engineQueue, partition, to)
	e.must(err)
	e.check("seek", int(n), len(lanes))
	for _, l := range lanes {
		l.seed(group)
		*l.cursors[group] = modelCursor{committed: target(l), batchEnd: -1, attemptOffset: -1, consumed: l.cursors[group].consumed}
	}
}

// transactSome pushes to one lane and completes the batch of another, under its lease or under none that is held.
func (e *engine) transactSome() {
	into, from, group := e.some(), e.some(), e.group()
	if into == nil || from.cursors[group] == nil || from.cursors[group].batchEnd < 0 {
		return
	}
	k := from.cursors[group]
	lease := [...]string{k.worker.String(), k.worker.String(), uuid.NewString()}[e.draw("lease", 3)]
	s, names := e.offer(into, 1+e.draw("messages", 2))
	dups := e.m.duplicates(into, names)
	v, err := e.store.Transact(e.ctx, &Transaction{
		Tenant: e.tenant, Pushes: []Segment{s}, Fenced: true, Leases: []string{lease},
		Acks: []AckGroup{{Tenant: e.tenant, Partition: from.uid, Group: group, Lease: lease, Items: []AckItem{{Offset: k.batchEnd, Hash: Hash(hashOf(from.names[k.batchEnd]))}}}},
	})
	e.must(err)
	switch {
	case dups != nil:
		e.check("transaction", v.Status, TransactionDuplicate)
		e.pushed("transaction", into, names, s.RawBytes, dups, v.Pushes[0])
	case k.expired || lease != k.worker.String():
		e.check("transaction", v.Status, TransactionRejected)
	default:
		e.check("transaction", v.Status, TransactionCommitted)
		e.pushed("transaction", into, names, s.RawBytes, nil, v.Pushes[0])
		e.m.ack(from, group, lease, []int64{k.batchEnd}, []wire.AckStatus{wire.AckCompleted})
	}
}

// age makes everything in a partition an hour older.
func (e *engine) age() {
	l := e.some()
	if l == nil {
		return
	}
	(&scene{world: e.world, lane: l.lane}).aged(time.Hour)
	for _, s := range l.segments {
		s.hours++
	}
}

// retain takes a step of retention and one of the sidecar's on every partition, and sweeps behind them.
func (e *engine) retain() {
	var ids []int64
	var want Trimmed
	for _, l := range e.m.sorted() {
		ids = append(ids, l.id)
		a, c, w := e.m.trim(l)
		want.ByAge, want.ByCompletion, want.ByWait = want.ByAge+a, want.ByCompletion+c, want.ByWait+w
		want.Txns += e.m.trimTxns(l)
	}
	tr, err := e.store.Trim(e.ctx, e.task[TaskRetention], ids, 1000, false)
	e.must(err)
	e.check("retention", []int64{tr.ByAge, tr.ByCompletion, tr.ByWait}, []int64{want.ByAge, want.ByCompletion, want.ByWait})
	tr, err = e.store.Trim(e.ctx, e.task[TaskSidecar], ids, 1000, false)
	e.must(err)
	e.check("sidecar", tr.Txns, want.Txns)
	_, err = e.store.SweepTrimmed(e.ctx, e.task[TaskRetention], 1000)
	e.must(err)
}

// replay moves a letter back to the end of its partition.
func (e *engine) replay() {
	if len(e.m.letters) == 0 {
		return
	}
	i := e.draw("letter", len(e.m.letters))
	x := e.m.letters[i]
	l := x.lane
	page, _, err := e.store.Letters(e.ctx, e.tenant, LetterFilter{Queue: engineQueue, Group: x.group, Partition: l.name}, LetterKey{}, 1000, 0, 1<<20)
	e.must(err)
	n := slices.IndexFunc(page, func(p Letter) bool { return p.Offset == x.offset })
	if n < 0 || (page[n].Payload != nil) != x.text {
		e.rt.Fatalf("the letter of %d in %s is not as it should be: %+v", x.offset, l.name, page)
	}
	if !x.text {
		return // nothing to replay
	}
	name := LetterPrefix + page[n].ID.String()
	s := e.segmentOf(l.lane, name)
	v, err := e.store.MoveLetters(e.ctx, &Move{
		Tenant: e.tenant, Letters: []uuid.UUID{page[n].ID}, Partition: Partition{ID: l.id}, RawBytes: s.RawBytes, Blob: s.Blob, Hashes: s.Hashes,
	})
	e.must(err)
	e.check("replay", v.Outcome, MoveDone)
	e.check("replay: offset", v.Base, l.append([]string{name}, s.RawBytes))
	e.m.letters = slices.Delete(e.m.letters, i, i+1)
}

func (e *engine) clear() {
	if e.draw("really", 3) > 0 {
		return
	}
	lanes, partition := e.m.sorted(), ""
	if l := e.some(); l != nil && e.draw("one", 2) == 0 {
		lanes, partition = []*modelLane{l}, l.name
	}
	var messages int64
	for _, l := range lanes {
		messages += l.last - l.start + 1
	}
	c, err := e.store.ClearQueue(e.ctx, e.tenant, engineQueue, partition)
	e.must(err)
	e.check("clear", []any{c.Existed, len(c.Partitions), c.Messages}, []any{e.m.exists, len(lanes), messages})
	e.m.remove(lanes...)
}

func (e *engine) deleteGroup() {
	group, registrations := e.group(), e.draw("registrations", 2) == 0
	cursors, known := int64(0), int64(0)
	for _, l := range e.m.lanes {
		if l.cursors[group] != nil {
			cursors++
		}
		delete(l.cursors, group)
	}
	if group == modelBilling && registrations && e.m.registered {
		known, e.m.registered = 1, false
	}
	d, err := e.store.DeleteGroup(e.ctx, e.tenant, group, "", registrations)
	e.must(err)
	e.check("delete group", []int64{d.Cursors, d.Registrations}, []int64{cursors, known})
}

// deleteQueue forgets everything, the names of messages too.
func (e *engine) deleteQueue() {
	if e.draw("really", 4) > 0 {
		return
	}
	existed, partitions, err := e.store.DeleteQueue(e.ctx, e.tenant, engineQueue)
	e.must(err)
	e.check("delete queue", []any{existed, len(partitions)}, []any{e.m.exists, len(e.m.lanes)})
	if e.m.exists {
		e.m.exists, e.m.registered = false, false // without a queue there is nothing to delete
	}
	e.m.remove(e.m.sorted()...)
}
