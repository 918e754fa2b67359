package check

import (
	"cmp"
	"slices"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// pushed takes a push that came back, or never did.
func (j *judge) pushed(o *operation, e *hist.Event, a *hist.PushArgs, v *hist.PushAnswer) {
	for i := range a.Items {
		in := &a.Items[i]
		it := item{label: hist.ItemOutcome(e.Kind, "", ""), offset: -1}
		if e.Kind == hist.OK {
			r := &(*v)[i]
			it.label, it.message = hist.ItemOutcome(e.Kind, r.Status, r.Outcome), j.hashString(r.MessageID)
			if r.Offset != nil {
				it.offset = *r.Offset
			}
			if it.label == hist.ItemBuffered {
				it.message = 0 // the drain may mint another
			}
		}
		j.attempt(o, e, in, i, it)
	}
}

// attempt notes that a message was sent, with its label, offset and message id, and returns it.
func (j *judge) attempt(o *operation, e *hist.Event, in *hist.PushItem, index int, it item) {
	l := j.lane(o.event.Tenant, in.Queue, in.Partition)
	it.tx, it.hash = j.tx(in.TransactionID), j.hash(in.Payload)
	it.inv, it.ret, it.op = o.inv, int64(e.T), e.Op
	it.index, it.node, it.client = uint16(index), j.node(o.event.Node), int32(o.event.Client)
	l.items = append(l.items, it)
	switch it.label {
	case hist.ItemQueued:
		j.counts.Pushes++
		if it.offset > l.acked {
			l.acked, l.ackedOp = it.offset, it.op
		}
	case hist.ItemDuplicate:
		j.counts.Duplicates++
	case hist.ItemBuffered:
		j.counts.Buffered++
	}
}

// whole reports whether the final reads of every broker cover the lane, and says so if not.
func (j *judge) whole(l *lane) bool {
	brokers := j.header.Topology.Brokers
	if len(brokers) == 0 && len(l.covered) == 0 {
		brokers = []string{""}
	}
	for _, b := range brokers {
		through, read := l.covered[b]
		if read && through >= l.highest {
			continue
		}
		for _, r := range []Rule{O1, D1, D4} {
			if read {
				j.unknown(r, "the final reads of %s on %s end at offset %d of %d", l.key, b, through, l.highest)
			} else {
				j.unknown(r, "%s was not read to the end on %s", l.key, b)
			}
		}
		return false
	}
	return true
}

// tally is what became of one message (a transaction id with one payload).
type tally struct {
	attempts                                           []int32 // items, by index
	queued, buffered, unknown, duplicate, failed, gone int
	stored, final                                      int
	bundles                                            int // of the queued, those that a transaction brought: T1 asks for them
	rolledBack                                         int // of the failed, likewise
}

func (t *tally) op(l *lane, label hist.Item) int64 {
	for _, i := range t.attempts {
		if l.items[i].label == label {
			return l.items[i].op
		}
	}
	return 0
}

// accounts compares what was sent with what is there: D1 D2 D3 D4, O5, X1, and of X2 that a duplicate stores nothing.
func (j *judge) accounts(l *lane) {
	if len(l.items) == 0 && len(l.records) == 0 {
		return
	}
	if l.queue == nil {
		j.noise = append(j.noise, "the header does not name the queue "+l.key.queue)
		return
	}
	l.whole = j.whole(l)
	byTx := make([]int32, len(l.items))
	for i := range byTx {
		byTx[i] = int32(i)
	}
	slices.SortFunc(byTx, func(a, b int32) int {
		x, y := &l.items[a], &l.items[b]
		return cmp.Or(compare(x.tx, y.tx), compare(x.hash, y.hash), compare(a, b))
	})
	k := 0 // in l.sorted
	for i := 0; i < len(byTx) || k < len(l.sorted); {
		tx := txid(1<<32 - 1)
		if i < len(byTx) {
			tx = l.items[byTx[i]].tx
		}
		if k < len(l.sorted) {
			tx = min(tx, l.records[l.sorted[k]].tx)
		}
		from, first := i, k
		for i < len(byTx) && l.items[byTx[i]].tx == tx {
			i++
		}
		for k < len(l.sorted) && l.records[l.sorted[k]].tx == tx {
			k++
		}
		j.account(l, byTx[from:i], l.sorted[first:k])
	}
}

// account judges one transaction id: attempts and stored are sorted by payload.
func (j *judge) account(l *lane, attempts, stored []int32) {
	j.apart(l, len(attempts), stored)
	a, s := 0, 0
	for a < len(attempts) || s < len(stored) {
		hash := ^uint64(0)
		if a < len(attempts) {
			hash = l.items[attempts[a]].hash
		}
		if s < len(stored) {
			hash = min(hash, l.records[stored[s]].hash)
		}
		var t tally
		from, first := a, s
		for ; a < len(attempts) && l.items[attempts[a]].hash == hash; a++ {
			t.count(l, &l.items[attempts[a]])
		}
		t.attempts = attempts[from:a]
		for ; s < len(stored) && l.records[stored[s]].hash == hash; s++ {
			t.stored++
			if l.records[stored[s]].final {
				t.final++
			}
		}
		j.balance(l, &t, stored[first:s], len(stored))
	}
}

func (t *tally) count(l *lane, it *item) {
	switch it.label {
	case hist.ItemQueued:
		t.queued++
		switch {
		case it.bundle:
			t.bundles++
		case it.offset >= 0 && it.offset < l.first():
			t.gone++ // deleted since: O1 and R1 say whether it may
		}
	case hist.ItemBuffered:
		t.buffered++
	case hist.ItemDuplicate:
		t.duplicate++
	case hist.ItemFailed:
		t.failed++
		if it.bundle {
			t.rolledBack++
		}
	default:
		t.unknown++
	}
}

// balance judges one message. stored are its offsets, siblings how many records have its transaction id.
func (j *judge) balance(l *lane, t *tally, stored []int32, siblings int) {
	show := func(label hist.Item) []int64 {
		ops := []int64{t.op(l, label)}
		for _, o := range stored {
			ops = append(ops, l.records[o].op)
		}
		return ops
	}
	name := func() string {
		if len(t.attempts) > 0 {
			return j.names[l.items[t.attempts[0]].tx]
		}
		return j.names[l.records[stored[0]].tx]
	}
	if t.queued > 0 {
		j.rules[D1].checked++
	}
	if t.buffered > 0 {
		j.rules[D4].checked++
	}
	if t.unknown > 0 {
		j.rules[D3].checked++
	}
	if t.failed > 0 {
		j.rules[D2].checked++
	}
	if t.stored > 0 {
		j.rules[O5].checked++
	}
	if t.queued+t.buffered > 0 {
		for _, o := range stored {
			l.records[o].promised = true
		}
	}
	if t.stored > t.queued+t.buffered+t.unknown {
		switch {
		case t.queued > 0:
			j.bad(D1, show(hist.ItemQueued), "%s: %s was answered queued %d times and is there %d times, at %v", l.key, name(), t.queued, t.stored, stored)
		case t.unknown > 0:
			j.bad(D3, show(hist.ItemUnknown), "%s: %s was sent %d times with unknown outcome and is there %d times, at %v", l.key, name(), t.unknown, t.stored, stored)
		case t.buffered > 0:
			j.bad(D4, show(hist.ItemBuffered), "%s: %s was answered buffered %d times and is there %d times, at %v", l.key, name(), t.buffered, t.stored, stored)
		case t.rolledBack > 0:
			j.bad(T2, show(hist.ItemFailed), "%s: the transaction that pushed %s was rolled back, and it is there, at %v", l.key, name(), stored)
		case t.failed > 0:
			j.bad(D2, show(hist.ItemFailed), "%s: the push of %s failed, and it is there, at %v", l.key, name(), stored)
		case t.duplicate > 0:
			j.bad(X2, show(hist.ItemDuplicate), "%s: the push of %s was answered duplicate, and it is there, at %v", l.key, name(), stored)
		default:
			j.bad(O5, []int64{l.records[stored[0]].op}, "%s: nobody pushed %s with the payload that is at %v", l.key, name(), stored)
		}
	}
	if !l.whole || l.deletes() && t.gone > 0 {
		return
	}
	if must := t.queued - t.bundles; t.final < must {
		j.bad(D1, show(hist.ItemQueued), "%s: %s was answered queued and is not there", l.key, name())
		return
	}
	// A buffered message may turn out to be a duplicate of another one when the spool is drained.
	must := t.queued - t.bundles
	switch {
	case t.buffered > 0 && l.queue.DedupMs == 0:
		must += t.buffered
	case t.buffered > 0 && siblings == 0:
		must = max(must, 1)
	}
	if t.final < must && !l.deletes() {
		j.bad(D4, show(hist.ItemBuffered), "%s: %s was answered buffered and is not there", l.key, name())
	}
}

// apart judges X1: the records of one transaction id.
func (j *judge) apart(l *lane, attempts int, stored []int32) {
	if l.queue.DedupMs == 0 {
		return
	}
	if attempts > 1 {
		j.rules[X1].checked++
	}
	if len(stored) < 2 {
		return
	}
	offsets := slices.Clone(stored)
	slices.Sort(offsets)
	window := int64(l.queue.Dedup())
	for i := 1; i < len(offsets); i++ {
		a, b := &l.records[offsets[i-1]], &l.records[offsets[i]]
		slack := int64(0)
		if !a.precise || !b.precise {
			slack = milli
		}
		if b.created-a.created < window-slack {
			j.bad(X1, []int64{b.op, a.op}, "%s: %s is at %d (%s) and again at %d (%s), less than %s later", l.key, j.names[a.tx],
				offsets[i-1], stamp(a.created), offsets[i], stamp(b.created), l.queue.Dedup())
		}
	}
}

// duplicates judges what answers say: that a queued or duplicate one names the right offset and message (O2, X2), and
// that a duplicate has an original inside the window (X2, X3).
func (j *judge) duplicates(l *lane) {
	if l.queue == nil {
		return
	}
	for i := range l.items {
		it := &l.items[i]
		switch it.label {
		case hist.ItemQueued:
			r := l.at(it.offset)
			if r == nil {
				continue // D1 says whether it is missed
			}
			j.rules[O2].checked++
			if r.tx != it.tx || r.hash != it.hash {
				if l.find(it.tx, it.hash) >= 0 { // else it is lost, which is D1's
					j.bad(O2, []int64{it.op, r.op}, "%s: offset %d was answered to the push of %s and holds %s", l.key, it.offset, j.names[it.tx], j.names[r.tx])
				}
			} else if it.message != 0 && r.message != 0 && it.message != r.message {
				j.bad(O2, []int64{it.op, r.op}, "%s: the message id of offset %d is not the one that the push was answered", l.key, it.offset)
			}
		case hist.ItemDuplicate:
			j.original(l, it)
		}
	}
}

// original judges one answer duplicate.
func (j *judge) original(l *lane, it *item) {
	if it.offset >= 0 && it.offset < l.first() || l.deletes() && it.offset < 0 {
		return // the original has been deleted since
	}
	j.rules[X2].checked++
	if it.offset >= 0 {
		r := l.at(it.offset)
		switch {
		case r == nil:
			if l.whole {
				j.bad(X2, []int64{it.op}, "%s: the push of %s was answered duplicate of offset %d, where nothing is", l.key, j.names[it.tx], it.offset)
			}
			return
		case r.tx != it.tx:
			j.bad(X2, []int64{it.op, r.op}, "%s: the push of %s was answered duplicate of offset %d, which holds %s", l.key, j.names[it.tx], it.offset, j.names[r.tx])
			return
		case it.message != 0 && r.message != 0 && it.message != r.message:
			j.bad(X2, []int64{it.op, r.op}, "%s: the push of %s was answered duplicate of a message with another id than offset %d has", l.key, j.names[it.tx], it.offset)
			return
		}
	}
	all := l.of(it.tx)
	if len(all) == 0 {
		j.bad(X2, []int64{it.op}, "%s: the push of %s was answered duplicate, and no message has that id", l.key, j.names[it.tx])
		return
	}
	// X3: an original that may have been inside the window when the push was sent. One latency around the window is
	// not judged.
	if !j.clock.known || l.deletes() {
		return
	}
	j.rules[X3].checked++
	slack := it.ret - it.inv
	var youngest *record
	for _, o := range all {
		r := &l.records[o]
		if latest := j.clock.latest(r); latest >= it.inv-int64(l.queue.Dedup())-slack {
			return
		}
		if youngest == nil || r.created > youngest.created {
			youngest = r
		}
	}
	j.bad(X3, []int64{it.op, youngest.op}, "%s: the push of %s was answered duplicate, and the youngest message of that id (%s) was older than %s",
		l.key, j.names[it.tx], stamp(youngest.created), l.queue.Dedup())
}

// order judges O4, and B2 for what came through a spool.
func (j *judge) order(l *lane) {
	type sent struct {
		*item
		at int64
	}
	var queued, spooled []sent
	taken := map[int32]bool{} // offsets of the spooled: what repeats a message of the same request has its place
	for i := range l.items {
		it := &l.items[i]
		switch {
		case it.label == hist.ItemQueued && !it.bundle && it.offset >= 0:
			queued = append(queued, sent{it, it.offset})
		case it.label == hist.ItemQueued || it.label == hist.ItemBuffered:
			all := l.of(it.tx)
			if len(all) != 1 || l.records[all[0]].hash != it.hash {
				continue
			}
			if it.label == hist.ItemQueued {
				queued = append(queued, sent{it, int64(all[0])})
			} else if !taken[all[0]] {
				taken[all[0]] = true
				spooled = append(spooled, sent{it, int64(all[0])})
			}
		}
	}
	inOrder := func(list []sent, rule Rule, why string) {
		// Two ways through the same list: by when they were sent, and by when they came back.
		back := slices.Clone(list)
		slices.SortStableFunc(back, func(a, b sent) int { return compare(a.ret, b.ret) })
		slices.SortStableFunc(list, func(a, b sent) int {
			return cmp.Or(compare(a.inv, b.inv), compare(a.op, b.op), cmp.Compare(a.index, b.index))
		})
		highest, k := sent{nil, -1}, 0
		for i, s := range list {
			for ; k < len(back) && back[k].ret < s.inv; k++ {
				if back[k].at > highest.at {
					highest = back[k]
				}
			}
			j.rules[rule].checked++
			if highest.at >= s.at && highest.op != s.op {
				j.bad(rule, []int64{highest.op, s.op}, "%s: %s came back before %s was sent%s, and is behind it: %d and %d", l.key,
					j.names[highest.tx], j.names[s.tx], why, highest.at, s.at)
			} else if i > 0 && list[i-1].op == s.op && list[i-1].at >= s.at {
				j.bad(rule, []int64{s.op}, "%s: item %d of a push is behind item %d: offsets %d and %d", l.key, list[i-1].index, s.index, list[i-1].at, s.at)
			}
		}
	}
	inOrder(queued, O4, "")
	slices.SortStableFunc(spooled, func(a, b sent) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.client, b.client))
	})
	for len(spooled) > 0 {
		n := 1
		for n < len(spooled) && spooled[n].node == spooled[0].node && spooled[n].client == spooled[0].client {
			n++
		}
		inOrder(spooled[:n:n], B2, " by the same producer to the same broker, both through its spool")
		spooled = spooled[n:]
	}
}
