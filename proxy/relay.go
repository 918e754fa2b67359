package proxy

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// wholeAnswer is the size up to which an answer is read before it is passed on: the broker's connection is free again
// before a slow client has read a byte. Longer ones are streamed, as fast as the client reads.
const wholeAnswer = 64 << 10

// relayedHeaders are the headers of a broker's answer that are the client's business. Everything else about the two
// connections, and whatever a broker says to the gateway with X-Queen headers, stays here.
var relayedHeaders = [][]byte{
	[]byte(fasthttp.HeaderContentType), []byte(fasthttp.HeaderContentEncoding), []byte(fasthttp.HeaderRetryAfter),
	[]byte(fasthttp.HeaderAllow), []byte(fasthttp.HeaderCacheControl), []byte("Etag"), []byte(fasthttp.HeaderLastModified),
	[]byte(fasthttp.HeaderVary),
}

// relay passes a broker's answer to the client: status and body as they are, headers from the allow-list, ours added.
// It ends the answer and finishes the exchange, for a streamed body when its last byte has gone or the client has.
func (g *Gateway) relay(ctx *fasthttp.RequestCtx, c *clientConn, a *answer) {
	ex, h := &c.ex, &ctx.Response.Header
	status := a.status()
	ctx.Response.SetStatusCode(status)
	httpkit.SetRequestID(h, ex.id)
	ex.stateTrace(h)
	setLimitHeaders(h, &ex.report)
	for _, name := range relayedHeaders {
		if v := a.resp.Header.PeekCanonical(name); len(v) > 0 {
			h.SetCanonical(name, v)
		}
	}
	size := a.size()
	switch {
	case status == fasthttp.StatusNoContent || size == 0:
		h.SetNoDefaultContentType(true)
		a.release()
		g.finish(ex, status, codeOfStatus(status), "", 0)
	case size > wholeAnswer || size < 0 && ctx.Request.Header.IsHTTP11():
		ctx.Response.SetBodyStream(&relayStream{gateway: g, conn: c, answer: a, status: status, size: size}, size)
	default:
		n, err := g.copyWhole(&ctx.Response, a, size)
		if err != nil {
			if a.conn.wasCut() {
				err = errBrokerDead
			}
			a.abandon()
			g.broken(ctx, c, err)
			return
		}
		a.release()
		g.finish(ex, status, codeOfAnswer(status, ctx.Response.Body()), "", n)
	}
}

var errTooLongForOldHTTP = errors.New("an answer of unknown length is too long for an HTTP/1.0 client")

// copyWhole reads a body to its end. Its size is unknown only for HTTP/1.0 clients: they cannot read chunks, which
// fasthttp would send them.
func (g *Gateway) copyWhole(into *fasthttp.Response, a *answer, size int) (int, error) {
	if size < 0 {
		all, err := io.ReadAll(io.LimitReader(a.resp.BodyStream(), g.cfg.MaxBodyBytes+1))
		if err == nil && int64(len(all)) > g.cfg.MaxBodyBytes {
			err = errTooLongForOldHTTP
		}
		into.SetBodyRaw(all)
		return len(all), err
	}
	class := classOf(int64(size))
	room := takeBody(class)
	defer putBody(class, room)
	body := (*room)[:size]
	if _, err := io.ReadFull(a.resp.BodyStream(), body); err != nil {
		return 0, err
	}
	into.SetBody(body)
	a.readEnd()
	return size, nil
}

// readEnd lets the body's stream notice its end.
func (a *answer) readEnd() {
	var b [1]byte
	if n, err := a.resp.BodyStream().Read(b[:]); n != 0 || err != io.EOF {
		a.resp.SetConnectionClose() // the framing is off: do not use the connection again
	}
}

// broken answers for a broker whose answer broke off. Its head said what became of the request, but not to the client.
func (g *Gateway) broken(ctx *fasthttp.RequestCtx, c *clientConn, err error) {
	g.metrics.upstreamErrors.WithLabelValues(faultAnswer).Inc()
	ctx.Response.Reset()
	e := unanswered(err)
	if c.ex.pops() {
		g.degrade(ctx, c, e)
		return
	}
	if c.ex.route.Method != fasthttp.MethodGet {
		e.Outcome = wire.OutcomeUnknown
	}
	g.refuse(ctx, c, e)
}

// relayStream is a long answer on its way to a client. fasthttp reads it when the handler has returned, and closes it
// whatever happens.
type relayStream struct {
	gateway *Gateway
	conn    *clientConn
	answer  *answer
	status  int
	size    int // -1: not known
	passed  int
	ended   bool
}

// Read implements io.Reader. The broker has the whole upstream time again for every piece.
func (s *relayStream) Read(p []byte) (int, error) {
	if err := s.answer.conn.SetReadDeadline(time.Now().Add(s.gateway.cfg.UpstreamTime)); err != nil {
		return 0, err
	}
	n, err := s.answer.resp.BodyStream().Read(p)
	s.passed += n
	if err == io.EOF {
		s.ended = s.size < 0 || s.passed == s.size
		if !s.ended {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// Close implements io.Closer: it gives the broker's connection back, or ends it with an answer that was not read whole.
func (s *relayStream) Close() error {
	// fasthttp stops reading when it has the announced size; the stream has not seen its end then.
	if !s.ended && s.size >= 0 && s.passed == s.size {
		s.answer.readEnd()
		s.ended = true
	}
	if s.ended {
		s.answer.release()
	} else {
		s.gateway.metrics.upstreamErrors.WithLabelValues(faultAnswer).Inc()
		s.answer.abandon()
	}
	s.gateway.finish(&s.conn.ex, s.status, codeOfStatus(s.status), "", s.passed)
	return nil
}

// codeOfAnswer names a broker's failure in metrics and logs as its body does. A body that is none of the protocol's, or
// whose code the catalogue does not know, tells nothing but the status.
func codeOfAnswer(status int, body []byte) wire.Code {
	if status < 400 {
		return ""
	}
	var e struct {
		Code wire.Code `json:"code"`
	}
	if json.Unmarshal(body, &e) == nil && e.Code.Text() != "" {
		return e.Code
	}
	return codeOfStatus(status)
}

// codeOfStatus names a broker's failure where only its status is known.
func codeOfStatus(status int) wire.Code {
	if status < 400 {
		return ""
	}
	return wire.Code("broker_" + strconv.Itoa(status))
}
