package proxy

import (
	"io"
	"math/bits"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

const (
	smallestBody = 4 << 10
	// firstRead is how much is reserved for a long body before its bytes come: what a client merely announces must
	// not fill the budget.
	firstRead = 256 << 10
	// prefetched is how much of a body fasthttp has read before a handler runs.
	prefetched = 8 << 10
	// maxIgnoredBody is the cap of a body that the route has no use for.
	maxIgnoredBody = 64 << 10
)

// bodies pools buffers of smallestBody << class bytes, by what points to them: a slice would be copied to the heap each time.
var bodies [24]sync.Pool

// bodyBuffer is a request body in memory, charged to the byte budget by the size of its buffer.
type bodyBuffer struct {
	b      []byte // what was read
	room   *[]byte
	class  int
	budget *byteBudget
	load   *clusterLoad
}

func classOf(n int64) int {
	if n <= smallestBody {
		return 0
	}
	return bits.Len64(uint64(n-1) / smallestBody)
}

func takeBody(class int) *[]byte {
	if room, ok := bodies[class].Get().(*[]byte); ok {
		return room
	}
	room := make([]byte, smallestBody<<class)
	return &room
}

func putBody(class int, room *[]byte) { bodies[class].Put(room) }

// newBodyBuffer returns nil when the budget is used up.
func newBodyBuffer(budget *byteBudget, load *clusterLoad, size int64) *bodyBuffer {
	class := classOf(size)
	if !budget.take(load, smallestBody<<class) {
		return nil
	}
	room := takeBody(class)
	return &bodyBuffer{b: (*room)[:0], room: room, class: class, budget: budget, load: load}
}

// grow doubles the buffer, or reports that the budget is used up.
func (b *bodyBuffer) grow() bool {
	if b.class+1 >= len(bodies) || !b.budget.take(b.load, smallestBody<<(b.class+1)) {
		return false
	}
	bigger := takeBody(b.class + 1)
	b.b = append((*bigger)[:0], b.b...)
	putBody(b.class, b.room)
	b.budget.give(b.load, smallestBody<<b.class)
	b.room = bigger
	b.class++
	return true
}

// release returns the buffer and its bytes of the budget. The body must not be used afterwards. nil is allowed.
func (b *bodyBuffer) release() {
	if b == nil {
		return
	}
	putBody(b.class, b.room)
	b.budget.give(b.load, smallestBody<<b.class)
	b.b, b.room = nil, nil
}

// usesBody reports whether a broker reads the body of an operation. Any other is read and dropped.
func usesBody(op wire.Op) bool {
	switch op {
	case wire.OpPush, wire.OpConfigure, wire.OpExtend, wire.OpTransaction, wire.OpFetch, wire.OpRetryMessage, wire.OpReplayDeadLetter,
		wire.OpRedrive:
		return true
	}
	return checks[op] != nil
}

// checks has the scanners of bodies that cost nothing beyond their request: a gateway only makes sure that the broker
// will understand them as it does.
var checks = map[wire.Op]func(ex *exchange, body []byte) error{
	wire.OpAck:               func(ex *exchange, b []byte) error { return checkAck(ex, b, false) },
	wire.OpAckBatch:          func(ex *exchange, b []byte) error { return checkAck(ex, b, true) },
	wire.OpPartitionsChanged: checkChanged,
	wire.OpAddTrace:          only(wire.ScanTrace),
	wire.OpSeekQueue:         only(wire.ScanSeek),
	wire.OpSeekPartition:     only(wire.ScanSeek),
	wire.OpSetSubscription:   only(wire.ScanSubscription),
	wire.OpDeadLetterMessage: only(wire.ScanDeadLetter),
}

// only is the check of a body that says nothing a gateway needs.
func only[T any](scan func([]byte) (T, error)) func(*exchange, []byte) error {
	return func(_ *exchange, b []byte) error { _, err := scan(b); return err }
}

func checkAck(ex *exchange, body []byte, batch bool) error {
	r, err := wire.ScanAck(body, batch)
	if err == nil && len(r.Items) > 0 {
		ex.aimAtAck(&r.Items[0])
	}
	return err
}

func checkChanged(ex *exchange, body []byte) error {
	entries, err := wire.ScanChanged(body)
	if err == nil && len(entries) > 0 {
		ex.aimAtQueue(entries[0].Queue)
	}
	return err
}

// bodyLimit is the cap of a body.
type bodyLimit struct {
	bytes   int64
	planned bool // the plan's; otherwise the gateway's own
}

// bodyLimit returns the cap of the body of a route for a cluster.
func (g *Gateway) bodyLimit(route *wire.Route, cluster *plans.Cluster) bodyLimit {
	if !usesBody(route.Op) {
		return bodyLimit{bytes: maxIgnoredBody}
	}
	l := &cluster.Limits
	if l.MaxBodyBytes != nil && l.Mode(plans.LimitBody) == plans.Enforce && *l.MaxBodyBytes < g.cfg.MaxBodyBytes {
		return bodyLimit{bytes: *l.MaxBodyBytes, planned: true}
	}
	return bodyLimit{bytes: g.cfg.MaxBodyBytes}
}

// blocks reports whether the plan allows no body at all.
func (l bodyLimit) blocks() bool { return l.planned && l.bytes <= 0 }

// refuse is the refusal of a body of which size bytes are announced or read. A cap of zero is a block, like that of any
// other limit; the rest is 413. The plan's cap is named, the gateway's own is no limit of the cluster.
func (l bodyLimit) refuse(size int64) *wire.Error {
	e := wire.Errorf(wire.PayloadTooLarge, "the request body is larger than %d bytes", l.bytes)
	if l.blocks() {
		e = wire.Errorf(wire.QuotaExceeded, "the plan allows no request bodies")
	}
	e.Close = true
	if l.planned {
		e.Limit = &wire.Limit{Name: plans.LimitBody, Limit: float64(l.bytes), Used: float64(size), Unit: "bytes"}
	}
	return e
}

// refuseBody refuses and counts a body of which size bytes are announced or read.
func (g *Gateway) refuseBody(ex *exchange, limit bodyLimit, size int64) *wire.Error {
	if limit.planned {
		g.gate.BodyOver(ex.cluster)
	}
	return limit.refuse(size)
}

func overloaded(detail string) *wire.Error {
	return &wire.Error{Code: wire.GatewayOverloaded, Detail: detail, RetryAfter: time.Second, Close: true}
}

// readBody reads the body of an accepted head, under the byte caps, the shared budget and the pace. Its faults leave
// the rest unread and close the connection. The caller releases the buffer, which is nil for a request without a body.
func (g *Gateway) readBody(ctx *fasthttp.RequestCtx, c *clientConn) (*bodyBuffer, *wire.Error) {
	ex := &c.ex
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return nil, nil
	}
	limit := g.bodyLimit(ex.route, ex.cluster)
	declared := int64(ctx.Request.Header.ContentLength()) // -1: chunked
	buf := newBodyBuffer(g.budget, ex.load, min(max(declared, smallestBody), firstRead))
	if buf == nil {
		return nil, overloaded("the gateway's memory for request bodies is used up")
	}
	fail := func(e *wire.Error) (*bodyBuffer, *wire.Error) {
		ex.bytesIn = len(buf.b)
		buf.release()
		return nil, e
	}
	for {
		if len(buf.b) == cap(buf.b) && !buf.grow() {
			return fail(overloaded("the gateway's memory for request bodies is used up"))
		}
		if declared < 0 || declared > prefetched {
			if c.Conn.SetReadDeadline(g.bodyDeadline(ex.start, max(declared, int64(len(buf.b))), int64(len(buf.b)))) != nil {
				return fail(malformed("the request body is incomplete"))
			}
		}
		n, err := stream.Read(buf.b[len(buf.b):cap(buf.b)])
		buf.b = buf.b[:len(buf.b)+n]
		if size := int64(len(buf.b)); size > limit.bytes {
			return fail(g.refuseBody(ex, limit, size))
		}
		switch {
		case err == nil:
		case err == io.EOF && (declared < 0 || int64(len(buf.b)) == declared):
			if len(ctx.Request.Header.PeekTrailerKeys()) > 0 {
				return fail(malformed("trailers are not accepted"))
			}
			ex.bytesIn = len(buf.b)
			return buf, nil
		case isTimeout(err):
			return fail(&wire.Error{Code: wire.SlowBody, Close: true})
		case isHangUp(err):
			return fail(malformed("the request body is incomplete"))
		default:
			return fail(malformed("the request body is malformed"))
		}
	}
}

// bodyDeadline is until when the next bytes of a body must have come: the whole has its time, and once the grace is
// over the average may not fall under the pace.
func (g *Gateway) bodyDeadline(start time.Time, size, read int64) time.Time {
	whole := start.Add(g.cfg.BodyTime + time.Duration(size>>20)*time.Second)
	pace := start.Add(g.cfg.BodyGrace + time.Duration(float64(read)/float64(g.cfg.BodyPace)*float64(time.Second)))
	return earliest(whole, pace)
}

// drainBody reads the rest of a small body whose request is refused, so that the connection can be kept. It reports
// whether the body's end was reached in time.
func drainBody(stream io.Reader) bool {
	if stream == nil {
		return true
	}
	n, err := io.Copy(io.Discard, io.LimitReader(stream, maxIgnoredBody+1))
	return err == nil && n <= maxIgnoredBody
}
