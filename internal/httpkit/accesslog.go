package httpkit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/queengate/queengate/internal/obs"
)

// RequestLine is the message of every access line.
const RequestLine = "request"

// Access is the one log line of a request. It has no room for payloads, tokens or the values of a query.
type Access struct {
	RequestID string
	Tenant    string
	Cluster   string
	Method    string
	Route     string // the pattern, "" when no route matched
	Status    int
	Code      string    // of the error catalogue; of a 2xx: it stands for that error
	Limit     string    // name of the limit that refused
	Shadow    string    // name of the limit that would have, were it enforced
	At        time.Time // when it was answered
	Duration  time.Duration
	BytesIn   int    // of the body
	BytesOut  int    // of the body
	Principal string // public id of the key, or the user
	Err       error  // the cause behind a 5xx or a degraded answer, never shown to the caller
	TraceID   string // of a trace that is sampled, with the span of this process in it
	SpanID    string
	Echo      bool // another process logs the same request under the same id: a success is only worth a Debug line
	Probe     bool // a question about the state of the process, asked all the time: the state's changes are logged, its answers are not
}

// Log writes the line at Info, a 5xx and what stands for one at Warn, and a probe at Debug. Empty facts are left out.
func (a *Access) Log(log *slog.Logger) {
	level := slog.LevelInfo
	switch {
	case a.Probe:
		level = slog.LevelDebug
	case a.Status >= 500, a.Status < 400 && a.Code != "":
		level = slog.LevelWarn
	case a.Echo && a.Status < 400:
		level = slog.LevelDebug
	}
	ctx := context.Background()
	if !log.Enabled(ctx, level) {
		return
	}
	if line := obs.Begin(log, a.At, level, RequestLine); line != nil {
		tell(a, line)
		line.Send()
		return
	}
	attrs := attrLists.Get().(*attrList)
	tell(a, attrs)
	// The record is made here since the logger would look up, for every request, where in the code it was called.
	r := slog.NewRecord(a.At, level, RequestLine, 0)
	r.AddAttrs(*attrs...)
	attrs.free()
	_ = log.Handler().Handle(ctx, r) // as the logger: there is nobody to tell
}

// form is what a line is made of: an *obs.Line or an *attrList.
type form[T any] interface {
	Str(key, v string) T
	Int(key string, v int) T
	Float64(key string, v float64) T
}

// tell adds the facts to a line, in their order.
func tell[T form[T]](a *Access, to T) {
	text := func(key, v string) {
		if v != "" {
			to.Str(key, v)
		}
	}
	text("request_id", a.RequestID)
	text("tenant", a.Tenant)
	text("cluster", a.Cluster)
	text("method", a.Method)
	text("route", a.Route)
	to.Int("status", a.Status)
	text("code", a.Code)
	text("limit", a.Limit)
	text("shadow", a.Shadow)
	to.Float64("dur_ms", float64(a.Duration.Microseconds())/1000)
	to.Int("bytes_in", a.BytesIn)
	to.Int("bytes_out", a.BytesOut)
	text("principal", a.Principal)
	text("trace_id", a.TraceID)
	text("span_id", a.SpanID)
	if a.Err != nil {
		to.Str("err", a.Err.Error())
	}
}

// attrList is the line as attributes, for the handlers of log/slog.
type attrList []slog.Attr

var attrLists = sync.Pool{New: func() any { return new(attrList) }}

// free gives a list back, which a record has copied.
func (l *attrList) free() {
	clear(*l)
	*l = (*l)[:0]
	attrLists.Put(l)
}

func (l *attrList) add(a slog.Attr) *attrList {
	*l = append(*l, a)
	return l
}

func (l *attrList) Str(key, v string) *attrList             { return l.add(slog.String(key, v)) }
func (l *attrList) Int(key string, v int) *attrList         { return l.add(slog.Int(key, v)) }
func (l *attrList) Float64(key string, v float64) *attrList { return l.add(slog.Float64(key, v)) }
