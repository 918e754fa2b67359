package store

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queengate/queengate/wire"
)

// ackJob is what is decided at once: a group, or several that only complete under the same lease.
type ackJob struct {
	members []int // groups, in input order
	hashed  bool  // offsets are unknown or were not believed
	alone   bool
	done    bool
	rounds  int
	wants   bool    // the message at sig must be read before it can be filed
	offsets []int64 // of the items, as resolved by hash; -1 for what the span does not hold
	frame   *frame

	low, high       int64 // of the offsets named
	top, sig        int64 // highest completed, lowest signal; -1 for none
	kind            wire.AckStatus
	lease           uuid.UUID
	named, readable bool // a lease was named; and it can be one
}

type ackKey struct {
	partition uuid.UUID
	group     string
}

type ackBundle struct {
	groups   []AckGroup
	verdicts []AckVerdict
	jobs     []ackJob
	used     map[ackKey]struct{} // of the round
	missed   []missed
}

// missed is an item whose message the span does not hold: it is behind the cursor or nowhere.
type missed struct {
	group, item int
	before      int64
}

func newAckBundle(groups []AckGroup) *ackBundle {
	b := &ackBundle{groups: groups, verdicts: make([]AckVerdict, len(groups)), jobs: make([]ackJob, 0, len(groups)), used: make(map[ackKey]struct{}, len(groups))}
	total := 0
	for i := range groups {
		total += len(groups[i].Items)
	}
	items := make([]AckItemVerdict, total)
	last := make(map[ackKey]int, len(groups)) // the newest job of the key
	for i := range groups {
		g := &groups[i]
		n := len(g.Items)
		b.verdicts[i].Items, items = items[:n:n], items[n:]
		key := ackKey{g.Partition, g.Group}
		if j, ok := last[key]; ok && b.jobs[j].folds(g, &groups[b.jobs[j].members[0]]) {
			b.jobs[j].add(i, g)
			continue
		}
		if n == 0 {
			continue
		}
		if storable(g.Group) != g.Group {
			b.failGroup(i, AckNoConsumer) // no cursor can have that name
			continue
		}
		j := ackJob{named: g.Lease != "", low: math.MaxInt64, high: -1, top: -1, sig: -1}
		j.lease, j.readable = parseLease(g.Lease)
		j.hashed = !j.named
		j.add(i, g)
		last[key] = len(b.jobs)
		b.jobs = append(b.jobs, j)
	}
	return b
}

// folds reports whether g, which comes after the job's groups on the same cursor, may be decided with them: nothing but
// completions under one lease commutes.
func (j *ackJob) folds(g, first *AckGroup) bool {
	return j.sig < 0 && j.onlyCompletes(first) && j.onlyCompletes(g) && g.Lease == first.Lease && g.Tenant == first.Tenant
}

func (j *ackJob) onlyCompletes(g *AckGroup) bool {
	return !slices.ContainsFunc(g.Items, func(it AckItem) bool { return it.Status != wire.AckCompleted })
}

// add counts group i in. A signal counts by the lowest offset and, there, by its strength.
func (j *ackJob) add(i int, g *AckGroup) {
	j.members = append(j.members, i)
	for k := range g.Items {
		it := &g.Items[k]
		if it.Offset < 0 {
			j.hashed = true
			continue
		}
		j.low, j.high = min(j.low, it.Offset), max(j.high, it.Offset)
		switch {
		case it.Status == wire.AckCompleted:
			j.top = max(j.top, it.Offset)
		case j.sig < 0 || it.Offset < j.sig:
			j.sig, j.kind = it.Offset, it.Status
		case it.Offset == j.sig:
			j.kind = max(j.kind, it.Status)
		}
	}
}

// items calls each for every item of the job in order, with the offset it is known or resolved to.
func (b *ackBundle) items(j *ackJob, each func(group, item int, it *AckItem, at int64)) {
	n := 0
	for _, g := range j.members {
		for i := range b.groups[g].Items {
			it := &b.groups[g].Items[i]
			at := it.Offset
			if j.hashed && n < len(j.offsets) {
				at = j.offsets[n]
			}
			n++
			each(g, i, it, at)
		}
	}
}

// next returns the jobs of the next round: the undecided ones in order, one per cursor, a wide one by itself.
func (b *ackBundle) next() (round []*ackJob, alone bool) {
	clear(b.used)
	var wide *ackJob
	for i := range b.jobs {
		j := &b.jobs[i]
		if j.done {
			continue
		}
		if j.rounds == ackRounds {
			b.fail(j, AckUndecided)
			continue
		}
		g := &b.groups[j.members[0]]
		key := ackKey{g.Partition, g.Group}
		if _, taken := b.used[key]; taken {
			continue
		}
		b.used[key] = struct{}{}
		switch {
		case !j.alone:
			round = append(round, j)
		case wide == nil:
			wide = j
		}
	}
	if len(round) == 0 && wide != nil {
		return []*ackJob{wide}, true
	}
	return round, false
}

// write puts the round into c.
func (b *ackBundle) write(c *call, jobs []*ackJob, width int64) {
	n := len(jobs)
	group := func(i int) *AckGroup { return &b.groups[jobs[i].members[0]] }
	known := func(at func(*ackJob) int64) func(int) (int64, bool) {
		return func(i int) (int64, bool) { v := at(jobs[i]); return v, !jobs[i].hashed && v >= 0 }
	}
	c.uuids(n, func(i int) uuid.UUID { return group(i).Tenant })
	c.uuids(n, func(i int) uuid.UUID { return group(i).Partition })
	c.texts(n, func(i int) string { return group(i).Group })
	c.bools(n, func(i int) bool { return jobs[i].named })
	c.nullableUUIDs(n, func(i int) (uuid.UUID, bool) { return jobs[i].lease, jobs[i].readable })
	c.nullableInt8s(n, known(func(j *ackJob) int64 { return j.low }))
	c.nullableInt8s(n, known(func(j *ackJob) int64 { return j.high }))
	c.nullableInt8s(n, known(func(j *ackJob) int64 { return j.top }))
	c.nullableInt8s(n, known(func(j *ackJob) int64 { return j.sig }))
	c.int4s(n, func(i int) int32 { return int32(jobs[i].kind) })

	// The items of hashed jobs lie back to back; first and last are 1-based and inclusive.
	ends := make([]int32, n)
	var hashed []*AckItem
	for i, j := range jobs {
		if j.hashed {
			b.items(j, func(_, _ int, it *AckItem, _ int64) { hashed = append(hashed, it) })
		}
		ends[i] = int32(len(hashed))
	}
	start := func(i int) int32 {
		if i == 0 {
			return 0
		}
		return ends[i-1]
	}
	c.nullableInt4s(n, func(i int) (int32, bool) { return start(i) + 1, jobs[i].hashed })
	c.nullableInt4s(n, func(i int) (int32, bool) { return ends[i], jobs[i].hashed })
	c.byteas(len(hashed), func(i int) []byte { return hashed[i].Hash[:] })
	c.int4s(len(hashed), func(i int) int32 { return int32(hashed[i].Status) })
	c.int8(width)

	var frames []*frame
	c.int4s(n, func(i int) int32 {
		if jobs[i].frame == nil {
			return 0
		}
		frames = append(frames, jobs[i].frame)
		return int32(len(frames))
	})
	m := len(frames)
	c.int8s(m, func(i int) int64 { return frames[i].offset })
	c.uuids(m, func(i int) uuid.UUID { return frames[i].id })
	c.nullableUUIDs(m, func(i int) (uuid.UUID, bool) { return frames[i].message, !frames[i].createdAt.IsZero() })
	c.nullableBytes(pgtype.TextOID, m, func(i int) ([]byte, bool) { return []byte(frames[i].txn), frames[i].txn != "" })
	c.nullableBytes(pgtype.ByteaOID, m, func(i int) ([]byte, bool) { return frames[i].payload, frames[i].flaw == "" })
	c.texts(m, func(i int) string { return frames[i].reason })
	c.nullableTimes(m, func(i int) (time.Time, bool) { return frames[i].createdAt, !frames[i].createdAt.IsZero() })
}

// absorb takes the routine's answer about one job.
func (b *ackBundle) absorb(j *ackJob, r [][]byte) {
	j.rounds++
	if j.hashed {
		j.offsets = asInt8s(r[ackOffsets])
	}
	if r[ackPartition] != nil {
		b.place(j, r)
	}
	switch asInt4(r[ackOutcome]) {
	case outcomeNotOwned:
		b.fail(j, AckNotOwned)
	case outcomeNoConsumer:
		b.fail(j, AckNoConsumer)
	case outcomeStaleLease:
		b.fail(j, AckStaleLease)
	case outcomeResolve:
		j.hashed = true
	case outcomeWide:
		j.alone = true
	case outcomeFrame:
		j.sig, j.wants = asInt8(r[ackSignal]), true
	case outcomeDecided:
		b.decide(j, r)
	}
}

// place says what the verdicts of a job are about.
func (b *ackBundle) place(j *ackJob, r [][]byte) {
	for _, g := range j.members {
		v := &b.verdicts[g]
		v.PartitionID, v.QueueID, v.Queue, v.LastOffset = asInt8(r[ackPartition]), asInt8(r[ackQueueID]), string(r[ackQueue]), asInt8(r[ackLast])
		v.Committed = -1
		if r[ackCommitted] != nil {
			v.Committed = asInt8(r[ackCommitted])
		}
	}
}

// decide turns a decision into the verdicts of its items. Of groups decided together the first says how far the cursor
// went, and the one that acknowledged highest ended the lease.
func (b *ackBundle) decide(j *ackJob, r [][]byte) {
	j.done = true
	before, filed := asInt8(r[ackBefore]), int64(-1)
	if asInt4(r[ackAct]) == actFiled {
		filed = asInt8(r[ackSignal])
	}
	highest, ender := int64(-1), j.members[0]
	b.items(j, func(group, item int, _ *AckItem, at int64) {
		if at < 0 {
			b.missed = append(b.missed, missed{group, item, before})
			return
		}
		if at > highest {
			highest, ender = at, group
		}
		b.verdicts[group].Items[item] = AckItemVerdict{Success: true, DLQ: at == filed}
	})
	b.verdicts[j.members[0]].Advanced = asInt8(r[ackCommitted]) - before
	if r[ackSkipped] != nil {
		b.verdicts[j.members[0]].Conflated = asInt8(r[ackSkipped])
	}
	b.verdicts[ender].LeaseReleased = asBool(r[ackReleased])
}

// wanting returns the jobs whose message must be read before they can be asked again.
func (b *ackBundle) wanting(round []*ackJob) (jobs []*ackJob) {
	for _, j := range round {
		if j.wants {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// wordReason takes the reason of the item that decided, else the first given in the group. The letter of a message that
// could not be read takes the transaction id that was sent.
func (b *ackBundle) wordReason(j *ackJob) {
	var hit, first string
	strongest := wire.AckCompleted
	b.items(j, func(_, _ int, it *AckItem, at int64) {
		if first == "" {
			first = it.Reason
		}
		if at != j.sig || it.Status == wire.AckCompleted {
			return
		}
		if it.Status > strongest || (it.Status == strongest && hit == "") {
			strongest, hit = it.Status, it.Reason
		}
		if j.frame.txn == "" {
			j.frame.txn = storable(it.TransactionID)
		}
	})
	j.frame.reason = storable(cmp.Or(hit, first, reasonExhausted)) + j.frame.flaw
}

// fail answers every item of the job with text: nothing was changed for it.
func (b *ackBundle) fail(j *ackJob, text string) {
	j.done = true
	for _, g := range j.members {
		b.failGroup(g, text)
	}
}

// failAll is fail for jobs whose verdicts may have been filled in by an answer that did not hold.
func (b *ackBundle) failAll(jobs []*ackJob, text string) {
	for _, j := range jobs {
		for _, g := range j.members {
			b.verdicts[g] = AckVerdict{Items: b.verdicts[g].Items}
		}
		b.fail(j, text)
	}
}

// blame says of jobs that have failed why that was.
func (b *ackBundle) blame(jobs []*ackJob, err error) {
	for _, j := range jobs {
		for _, g := range j.members {
			b.verdicts[g].Err = err
		}
	}
}

func (b *ackBundle) failGroup(g int, text string) {
	for i := range b.verdicts[g].Items {
		b.verdicts[g].Items[i] = AckItemVerdict{Error: text}
	}
}
