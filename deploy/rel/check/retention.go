package check

// retention judges R1: that nothing was deleted before its time or before every group had it. The first offset that a
// fetch reports is what was deleted.
func (j *judge) retention(l *lane) {
	if !l.deletes() || len(l.starts) == 0 {
		return
	}
	j.counts.Deleted += int(l.first())
	var least int64 = never // how old a message must be before anything may delete it
	for _, ms := range []int64{l.queue.RetentionMs, l.queue.CompletedRetentionMs, l.queue.MaxWaitMs} {
		if ms > 0 {
			least = min(least, ms*milli)
		}
	}
	for _, s := range l.starts {
		j.rules[R1].checked++
		if r := l.at(s.offset - 1); r != nil && j.clock.known && s.at-j.clock.earliest(r) < least {
			j.bad(R1, []int64{s.op, r.op}, "%s: offset %d was created at %s and had been deleted %s later at most", l.key, s.offset-1,
				stamp(r.created), clockTime(s.at-j.clock.earliest(r)))
		}
	}
	if l.queue.CompletedRetentionMs == 0 || l.queue.RetentionMs > 0 || l.queue.MaxWaitMs > 0 {
		return // something may delete what a group has not had
	}
	for i := range l.queue.Groups {
		c := l.groups[l.queue.Groups[i].Name]
		if c == nil || !c.fromStart() {
			continue
		}
		for _, s := range l.starts {
			j.rules[R1].checked++
			if most := c.possiblyAt(s.at); s.offset > most+1 {
				j.bad(R1, []int64{s.op}, "%s begins at %d, and the group %q cannot have acknowledged more than %d", l.key, s.offset, c.group, most)
			}
		}
	}
}
