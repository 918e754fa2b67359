package store

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// compare checks every row of the tenant against the model, then what the statistics say of it.
func (e *engine) compare() {
	e.compareLog()
	e.compareCursors()
	e.compareLetters()
	e.compareStatistics()
}

// compareLog: offsets without a hole, watermarks, stored bytes.
func (e *engine) compareLog() {
	got, want := []string{}, []string{}
	var all []string
	e.scan(`SELECT coalesce(array_agg(line ORDER BY line), '{}') FROM (
SELECT format('%s: %s..%s from %s, hashes from %s, %s segments, %s bytes', p.name, s.first, p.last_offset, p.log_start, p.txns_start, p.segments, p.retained_bytes)
       || CASE WHEN s.gaps > 0 THEN ' with a gap' ELSE '' END AS line
  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
 CROSS JOIN LATERAL (
       SELECT coalesce(min(x.base_offset), p.last_offset + 1) AS first, count(*) FILTER (WHERE x.base_offset <> x.before + 1) AS gaps
         FROM (SELECT g.base_offset, lag(g.end_offset, 1, p.log_start - 1) OVER (ORDER BY g.base_offset) AS before
                 FROM queen.log_segments g WHERE g.partition_id = p.id) x) s
 WHERE q.tenant_id = $1) l`, []any{e.tenant}, &all)
	got = append(got, all...)
	for _, l := range e.m.sorted() {
		want = append(want, fmt.Sprintf("%s: %d..%d from %d, hashes from %d, %d segments, %d bytes",
			l.name, l.start, l.last, l.start, l.txnsStart, len(l.live()), l.retained()))
	}
	e.check("the log", got, want)
}

func (e *engine) compareCursors() {
	rows, err := e.pool.Query(e.ctx, `SELECT p.name, k.consumer_group, k.committed, coalesce(k.batch_end, -1), coalesce(k.worker_id, $2::uuid),
  coalesce(k.lease_expires_at <= clock_timestamp(), false), k.batch_retry_count, coalesce(k.attempt_offset, -1), k.attempt_count, k.total_consumed,
  (k.batch_end IS NULL) = (k.lease_expires_at IS NULL AND k.lease_acquired_at IS NULL AND k.worker_id IS NULL)
   AND k.committed <= p.last_offset AND coalesce(k.batch_end, -1) <= p.last_offset
FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id JOIN queen.log_consumers k ON k.partition_id = p.id
WHERE q.tenant_id = $1`, e.tenant, uuid.Nil)
	e.must(err)
	defer rows.Close()
	got, want := map[string]string{}, map[string]string{}
	for rows.Next() {
		var name, group string
		var k modelCursor
		var sound bool
		e.must(rows.Scan(&name, &group, &k.committed, &k.batchEnd, &k.worker, &k.expired, &k.retries, &k.attemptOffset, &k.attempts, &k.consumed, &sound))
		if !sound {
			e.rt.Fatalf("the cursor of %s in %s says two things at once: %+v", group, name, k)
		}
		got[name+" "+group] = fmt.Sprintf("%+v", k)
	}
	e.must(rows.Err())
	for _, l := range e.m.lanes {
		for group, k := range l.cursors {
			want[l.name+" "+group] = fmt.Sprintf("%+v", *k)
		}
	}
	e.check("the cursors", got, want)
}

func (e *engine) compareLetters() {
	var got []string
	e.scan(`SELECT coalesce(array_agg(partition_name || '/' || offset_ || '/' || consumer_group || '/' || retry_count || CASE WHEN payload IS NULL THEN ' gone' ELSE '' END), '{}')
FROM queen.log_dlq WHERE tenant_id = $1`, []any{e.tenant}, &got)
	want := []string{}
	for _, x := range e.m.letters {
		line := fmt.Sprintf("%s/%d/%s/%d", x.lane.name, x.offset, x.group, x.retries)
		if !x.text {
			line += " gone"
		}
		want = append(want, line)
	}
	slices.Sort(got)
	slices.Sort(want)
	e.check("the dead letters", got, want)
}

// compareStatistics: whatever is told about the queue is what the model counts.
func (e *engine) compareStatistics() {
	var all Counts
	var bytes, segments int64
	leases, consumed := Leases{}, int64(0)
	inParts := []string{}
	for _, l := range e.m.sorted() {
		c := e.m.counts(l)
		inParts = append(inParts, fmt.Sprintf("%s %+v %d %d", l.name, c, l.retained(), len(l.live())))
		all.Total, all.Pending, all.Processing = all.Total+c.Total, all.Pending+c.Pending, all.Processing+c.Processing
		bytes, segments = bytes+l.retained(), segments+int64(len(l.live()))
		held := int64(0)
		for _, k := range l.cursors {
			consumed += k.consumed
			if k.leased() > 0 {
				held = 1
				leases.Active++
				leases.Batch += k.leased()
			}
		}
		leases.Partitions += held
	}
	leases.Consumed = consumed

	if e.m.exists {
		parts, err := e.store.QueuePartitions(e.ctx, &Queue{ID: e.id})
		e.must(err)
		got := []string{}
		for _, p := range parts {
			got = append(got, fmt.Sprintf("%s %+v %d %d", p.Name, p.Counts, p.RetainedBytes, p.Segments))
		}
		e.check("partitions of the queue", got, inParts)

		queues, err := e.store.Queues(e.ctx, e.tenant, ResourceFilter{})
		e.must(err)
		if len(queues) != 1 {
			e.rt.Fatalf("%d queues", len(queues))
		}
		q := queues[0]
		e.check("the queue", []any{q.Partitions, q.Counts, q.RetainedBytes, q.Segments}, []any{int64(len(e.m.lanes)), all, bytes, segments})

		for _, group := range modelGroups {
			d, err := e.store.QueueDepth(e.ctx, &q.Queue, group)
			e.must(err)
			var got, want []string
			for _, p := range d.Partitions {
				got = append(got, fmt.Sprint(p.Partition, " ", p.Pending, " ", p.Processing))
			}
			for _, l := range e.m.sorted() {
				n := e.m.pending(l, group)
				want = append(want, fmt.Sprint(l.name, " ", n, " ", min(n, l.cursors[group].leased())))
			}
			e.check("depth of "+group, got, want)
		}
	}

	gotLeases, _, err := e.store.Leases(e.ctx, e.tenant)
	e.must(err)
	e.check("leases", gotLeases, leases)

	counts, err := e.store.DeadLetterCounts(e.ctx, e.tenant)
	e.must(err)
	e.check("dead letters", counts[engineQueue], int64(len(e.m.letters)))

	o, err := e.store.Overview(e.ctx, e.tenant)
	e.must(err)
	queues := int64(0)
	if e.m.exists {
		queues = 1
	}
	all.DeadLetter = int64(len(e.m.letters))
	e.check("overview", []any{o.Queues, o.Partitions, o.Counts}, []any{queues, int64(len(e.m.lanes)), all})

	used, err := e.store.Usage(e.ctx, []uuid.UUID{e.tenant})
	e.must(err)
	e.check("usage", []int64{used[0].RetainedBytes, used[0].Queues}, []int64{bytes, queues})

	groups, err := e.store.Groups(e.ctx, e.tenant)
	e.must(err)
	got, want := []string{}, []string{}
	for _, g := range groups {
		got = append(got, fmt.Sprintf("%s: %d cursors, %d lagging, %d pending", g.Name, g.Cursors, g.Lagging, g.Pending))
	}
	for _, group := range modelGroups {
		cursors, lagging, pending := 0, 0, int64(0)
		known := group == modelBilling && e.m.registered
		for _, l := range e.m.lanes {
			if l.cursors[group] != nil {
				cursors++
				known = true
			}
		}
		for _, l := range e.m.lanes {
			if n := e.m.pending(l, group); n > 0 && (l.cursors[group] != nil || e.m.knows(group)) {
				lagging++
				pending += n
			}
		}
		if known {
			want = append(want, fmt.Sprintf("%s: %d cursors, %d lagging, %d pending", group, cursors, lagging, pending))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	e.check("groups", got, want)
}
