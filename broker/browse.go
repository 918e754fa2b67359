package broker

import (
	"container/heap"
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// Browsing reads messages newest first without a cursor of its own. It merges the partitions by the heads of their
// segments, which say when and how many; what a message's status is follows from the cursors of its partition; only the
// segments of the page are fetched and opened.

// Bounds of one request. A page that meets one is partial and has a nextCursor.
const (
	defaultBrowse   = 200
	browseSince     = time.Hour // before now, when the query names no from
	browseLanes     = 1000      // partitions, those written last
	browseHeads     = 20_000    // heads of segments
	browseRefills   = 200       // reads of heads
	browseSegments  = 64        // segments per read, or fewer:
	browseReadBytes = 4 << 20   // of payload per read, but for a single segment
	browsePerRefill = 8         // heads of a partition that the first read takes, at least
)

// Statuses of a message.
const (
	statusPending    = "pending"
	statusProcessing = "processing"
	statusCompleted  = "completed"
	statusDead       = "dead_letter"
	statusAny        = ""
)

// listMessages answers with a page of messages.
func (b *Broker) listMessages(x *exchange) error {
	q := wire.ParseArgs(x.ctx.URI().QueryString(), "queue", "partition", "namespace", "ns", "task", "status", "from", "to", "limit", "offset", "cursor")
	f := store.BrowseFilter{
		Queue: q.Name("queue"), Partition: q.Name("partition"), Namespace: q.Name("namespace"), Task: q.Name("task"),
		From: q.Time("from", x.begin.Add(-browseSince)), Before: throughMinute(q.Time("to", time.Time{})),
	}
	if f.Namespace == "" {
		f.Namespace = q.Name("ns")
	}
	status := q.OneOf("status", statusAny, statusPending, statusProcessing, statusCompleted, statusDead)
	limit, skip := q.Int("limit", defaultBrowse, 1, maxPage), q.Int("offset", 0, 0, maxSkip)
	if err := q.Err(); err != nil {
		return err
	}
	if status == statusDead {
		return b.listDeadMessages(x, &f, q.Text("cursor"), limit, skip)
	}
	after, err := parsePlace(q.Text("cursor"))
	if err != nil {
		return err
	}
	if f.Before.IsZero() {
		f.Before = farFuture
	}
	if !after.created.IsZero() && after.created.Before(f.Before) {
		f.Before = after.created.Add(time.Microsecond)
	}
	br := &browse{b: b, tenant: x.who.tenant, blind: x.who.blind, status: status, after: after, skip: skip, limit: limit}
	ctx, cancel := b.database()
	defer cancel()
	if err := br.run(ctx, f); err != nil {
		return err
	}
	x.reply(fasthttp.StatusOK, br.append)
	return nil
}

// farFuture is a bound that chooses everything.
var farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// browse is one page on its way.
type browse struct {
	b      *Broker
	tenant uuid.UUID
	blind  bool // payloads are withheld
	status string
	after  place // the page begins behind it; zero: with the newest
	skip   int
	limit  int

	lanes   laneHeap
	mode    browseMode
	heads   int // read so far
	refills int
	rows    []browsed
	partial bool // a bound was met before the page was full
	last    place
}

// browsed is one row of the page.
type browsed struct {
	lane  *browseLane
	head  store.SegmentHead
	at    int64
	state standing
	frame segment.Frame
	shown shown
	gone  bool // retention was faster
}

// browseLane is a partition with the heads that are read and not used yet.
type browseLane struct {
	*store.BrowseLane
	reading
	heads []store.SegmentHead // newest first
	next  int64               // the highest offset whose head is not read; below Low: none is left
	chunk int64
	dead  map[int64]store.DeadOffset
}

func (br *browse) run(ctx context.Context, f store.BrowseFilter) error {
	found, err := br.b.db.BrowseLanes(ctx, br.tenant, f, browseLanes)
	if err != nil {
		return err
	}
	need := int64(br.limit + br.skip)
	// The newest messages are in the partitions written last, as many of either.
	br.partial = len(found) == browseLanes && (need > browseLanes || br.status != statusAny || !f.Before.Equal(farFuture))
	br.mode.learn(found)
	var fresh []*browseLane
	for _, l := range found {
		lane := &browseLane{BrowseLane: l, reading: readingOf(l), dead: map[int64]store.DeadOffset{}}
		lane.narrow(br.status)
		lane.next = lane.High
		if lane.next >= lane.Low {
			fresh = append(fresh, lane)
		}
	}
	for _, lane := range fresh {
		lane.chunk = min(need, max(browsePerRefill, min(2*need, browseHeads/2)/int64(len(fresh))))
	}
	if err := br.refill(ctx, fresh); err != nil {
		return err
	}
	for _, lane := range fresh {
		if len(lane.heads) > 0 {
			br.lanes = append(br.lanes, lane)
		}
	}
	heap.Init(&br.lanes)
	if err := br.merge(ctx); err != nil {
		return err
	}
	return br.open(ctx)
}

// merge takes heads in order until the page is full or a bound is met.
func (br *browse) merge(ctx context.Context) error {
	for len(br.lanes) > 0 && len(br.rows) < br.limit {
		lane := br.lanes[0]
		br.take(lane)
		if len(lane.heads) == 0 && lane.next >= lane.Low {
			if br.heads >= browseHeads || br.refills >= browseRefills {
				br.partial = true
				return nil
			}
			lane.chunk = min(2*lane.chunk, browseHeads/4)
			if err := br.refill(ctx, []*browseLane{lane}); err != nil {
				return err
			}
		}
		if len(lane.heads) > 0 {
			heap.Fix(&br.lanes, 0)
		} else {
			heap.Pop(&br.lanes)
		}
	}
	return nil
}

// take uses up the first head of a lane.
func (br *browse) take(lane *browseLane) {
	head := lane.heads[0]
	lane.heads = lane.heads[1:]
	for at := min(head.End, lane.High); at >= max(head.Base, lane.Low); at-- {
		here := place{head.CreatedAt, lane.UID, at}
		if !br.after.created.IsZero() && !br.after.before(here) {
			continue
		}
		br.last = here
		_, dead := lane.dead[at]
		state := lane.standing(at, dead)
		if br.status != statusAny && br.status != state.status {
			continue
		}
		if br.skip > 0 {
			br.skip--
			continue
		}
		br.rows = append(br.rows, browsed{lane: lane, head: head, at: at, state: state})
		if len(br.rows) == br.limit {
			return
		}
	}
}

// refill reads the next heads of lanes, and which of their messages are dead.
func (br *browse) refill(ctx context.Context, lanes []*browseLane) error {
	if len(lanes) == 0 {
		return nil
	}
	br.refills++
	ranges := make([]store.OffsetRange, len(lanes))
	for i, l := range lanes {
		ranges[i] = store.OffsetRange{Partition: l.ID, Low: l.Low, High: l.next, Most: l.chunk}
	}
	heads, err := br.b.db.SegmentHeads(ctx, ranges)
	if err != nil {
		return err
	}
	for i, l := range lanes {
		l.heads = heads[i]
		br.heads += len(l.heads)
		l.next = l.Low - 1
		if n := len(l.heads); n > 0 {
			ranges[i].Low = max(l.Low, l.heads[n-1].Base)
			if int64(n) == l.chunk {
				l.next = l.heads[n-1].Base - 1
			}
		}
	}
	dead, err := br.b.db.DeadOffsets(ctx, br.tenant, ranges)
	if err != nil {
		return err
	}
	for i, l := range lanes {
		clear(l.dead)
		for _, d := range dead[i] {
			l.dead[d.Offset] = d
		}
	}
	return nil
}

// open fetches the segments of the page, a few at a time, and ends the page early when it grows too big.
func (br *browse) open(ctx context.Context) error {
	bytes := 0
	for i := 0; i < len(br.rows); {
		if bytes > maxPageBytes {
			br.cut(i)
			return nil
		}
		var want []store.SegmentAddress
		known := map[store.SegmentAddress]int{}
		j, size := i, int64(0)
		for ; j < len(br.rows); j++ {
			at := br.rows[j].address()
			if _, ok := known[at]; ok {
				continue
			}
			size += br.rows[j].head.RawBytes
			if len(want) == browseSegments || len(want) > 0 && size > browseReadBytes {
				break
			}
			known[at] = len(want)
			want = append(want, at)
		}
		got, err := br.b.db.Segments(ctx, br.rows[i].lane.Life, want) // all lanes were read at once
		if err != nil {
			return err
		}
		for ; i < j; i++ {
			row := &br.rows[i]
			s := &got[known[row.address()]]
			if s.Blob == nil {
				row.gone = true
				continue
			}
			r, err := br.b.segments.open(row.lane.ID, s)
			if err != nil || int64(r.Len()) != s.End-s.Base+1 {
				return fmt.Errorf("segment %d of partition %d cannot be opened: %w", s.Base, row.lane.ID, err)
			}
			row.frame = r.Frame(int(row.at - s.Base))
			row.shown = br.b.show(row.lane.BrowseLane, &row.frame, br.blind)
			if bytes += len(row.shown.payload); bytes > maxPageBytes && i > 0 {
				br.cut(i)
				return nil
			}
		}
	}
	return nil
}

func (r *browsed) address() store.SegmentAddress {
	return store.SegmentAddress{Partition: r.lane.ID, Base: r.head.Base}
}

// cut ends the page before row i.
func (br *browse) cut(i int) {
	br.rows, br.partial = br.rows[:i], true
	br.last = place{br.rows[i-1].head.CreatedAt, br.rows[i-1].lane.UID, br.rows[i-1].at}
}

func (br *browse) append(dst []byte) []byte {
	full := len(br.rows) == br.limit
	dst = append(dst, `{"messages":[`...)
	n := 0
	for i := range br.rows {
		r := &br.rows[i]
		if r.gone {
			continue
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		n++
		m := messageRow{
			lane: r.lane.BrowseLane, state: r.state, transactionID: r.frame.TransactionID, offset: r.at, base: r.head.Base,
			created: r.head.CreatedAt, frame: r.frame, shown: r.shown,
			id: segment.MessageID(r.head.CreatedAt, r.at, r.lane.ID),
		}
		if d, dead := r.lane.dead[r.at]; dead {
			m.retries = d.RetryCount
		}
		dst = append(m.append(dst), '}')
	}
	dst = append(dst, `],"mode":`...)
	dst = br.mode.append(dst)
	dst = appendInt(dst, `,"total":`, int64(n))
	dst = append(dst, `,"partial":`...)
	dst = appendBool(dst, br.partial)
	dst = append(dst, `,"nextCursor":`...)
	if (full || br.partial) && !br.last.created.IsZero() {
		return append(wire.AppendString(dst, br.last.String()), '}')
	}
	return append(dst, `null}`...)
}

// laneHeap has the lane with the newest head in front.
type laneHeap []*browseLane

func (h laneHeap) Len() int      { return len(h) }
func (h laneHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h laneHeap) Less(i, j int) bool {
	return h[i].first().before(h[j].first())
}

func (l *browseLane) first() place { return place{l.heads[0].CreatedAt, l.UID, l.heads[0].End} }

// Push is never called: a browse begins with all its lanes.
func (h *laneHeap) Push(any) { panic("browse: a lane is added") }

func (h *laneHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	*h = old[:len(old)-1]
	return l
}

// messageRow is a message as browsing shows it.
type messageRow struct {
	lane          *store.BrowseLane
	state         standing
	id            uuid.UUID
	transactionID string
	offset, base  int64
	created       time.Time
	frame         segment.Frame
	shown         shown
	retries       int
}

// append appends the row without its closing brace.
func (m *messageRow) append(dst []byte) []byte {
	l, q := m.lane, &m.lane.Queue
	hash := segment.HashID(m.transactionID)
	dst = append(dst, `{"id":`...)
	dst = wire.AppendUUID(dst, m.id)
	dst = append(dst, `,"transactionId":`...)
	dst = appendOptional(dst, m.transactionID)
	dst = append(dst, `,"txnHash":"`...)
	dst = hex.AppendEncode(dst, hash[:])
	dst = append(dst, `","partitionId":`...)
	dst = wire.AppendUUID(dst, l.UID)
	dst = append(dst, `,"queuePath":`...)
	dst = wire.AppendString(dst, q.Name+"/"+l.Name)
	dst = append(dst, `,"queue":`...)
	dst = wire.AppendString(dst, q.Name)
	dst = append(dst, `,"partition":`...)
	dst = wire.AppendString(dst, l.Name)
	dst = append(dst, `,"namespace":`...)
	dst = wire.AppendString(dst, q.Options.Namespace)
	dst = append(dst, `,"task":`...)
	dst = wire.AppendString(dst, q.Options.Task)
	dst = append(dst, `,"status":`...)
	dst = wire.AppendString(dst, m.state.status)
	dst = append(dst, `,"queueStatus":`...)
	dst = appendOptional(dst, m.state.queueStatus)
	dst = appendInt(dst, `,"busStatus":{"consumedBy":`, int64(m.state.consumedBy))
	dst = appendInt(dst, `,"totalGroups":`, int64(m.state.groups))
	dst = append(dst, `},"traceId":`...)
	dst = appendOptional(dst, m.frame.TraceID)
	dst = append(dst, `,"producerSub":`...)
	dst = appendOptional(dst, m.frame.ProducerSub)
	dst = append(dst, `,"payloadAvailable":`...)
	dst = appendBool(dst, m.shown.payload != nil)
	dst = appendInt(dst, `,"segment":{"seq":`, m.base)
	dst = appendInt(dst, `,"frameIdx":`, m.offset-m.base)
	dst = appendInt(dst, `},"offset":`, m.offset)
	dst = append(dst, `,"createdAt":`...)
	dst = appendTime(dst, m.created)
	dst = append(dst, `,"leaseExpiresAt":`...)
	dst = appendTime(dst, m.state.leasedUntil)
	dst = append(dst, `,"data":`...)
	dst = appendJSON(dst, m.shown.payload)
	dst = append(dst, `,"payload":`...)
	dst = appendJSON(dst, m.shown.payload)
	dst = m.shown.append(dst)
	dst = appendInt(dst, `,"retryCount":`, int64(m.retries))
	return appendInt(dst, `,"queuePriority":`, int64(q.Options.Priority))
}
