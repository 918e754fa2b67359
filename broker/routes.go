package broker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// exchange is one request and its answer.
type exchange struct {
	ctx       *fasthttp.RequestCtx
	begin     time.Time
	requestID string
	route     *wire.Route
	params    wire.Params
	who       identity
	span      tracing.Span
	gone      bool   // the client hung up: there is nobody to answer
	parked    bool   // it has been detached, and another call of serve will answer
	preface   []byte // members, each with its comma, that stand before those of an error body
}

// statusGone is logged for a client that hung up; it never goes over the wire.
const statusGone = 499

// handlers has one entry per Op of wire.Routes; a test holds the two together.
var handlers = map[wire.Op]func(*Broker, *exchange) error{
	wire.OpPush:         (*Broker).push,
	wire.OpPop:          (*Broker).pop,
	wire.OpPopPartition: (*Broker).pop,
	wire.OpPopDiscover:  (*Broker).pop,

	wire.OpFetch:             (*Broker).fetch,
	wire.OpPartitionsChanged: (*Broker).partitionsChanged,
	wire.OpPartitionLiveness: (*Broker).partitionLiveness,

	wire.OpAck:         (*Broker).ack,
	wire.OpAckBatch:    (*Broker).ack,
	wire.OpExtend:      (*Broker).extend,
	wire.OpConfigure:   (*Broker).configure,
	wire.OpListQueues:  (*Broker).listQueues,
	wire.OpGetQueue:    (*Broker).queueDetail,
	wire.OpDeleteQueue: (*Broker).deleteQueue,
	wire.OpHealth:      (*Broker).health,
	wire.OpLivez:       (*Broker).livez,
	wire.OpReadyz:      (*Broker).readyz,
	wire.OpMetrics:     (*Broker).serveMetrics,
	wire.OpTenantUsage: (*Broker).tenantUsage,
	wire.OpTenantNames: (*Broker).tenantNames,
	wire.OpWipeTenant:  (*Broker).wipeTenant,

	wire.OpListMessages:         (*Broker).listMessages,
	wire.OpGetMessage:           (*Broker).getMessage,
	wire.OpDeleteMessage:        (*Broker).deleteMessage,
	wire.OpRetryMessage:         (*Broker).retryMessage,
	wire.OpDeadLetterMessage:    (*Broker).deadLetterMessage,
	wire.OpListDeadLetters:      (*Broker).listDeadLetters,
	wire.OpPurgeDeadLetters:     (*Broker).purgeDeadLetters,
	wire.OpReplayDeadLetter:     (*Broker).replayDeadLetter,
	wire.OpRedrive:              (*Broker).startRedrive,
	wire.OpListRedrives:         (*Broker).listRedrives,
	wire.OpRedriveStatus:        (*Broker).redriveStatus,
	wire.OpCancelRedrive:        (*Broker).cancelRedrive,
	wire.OpDeadLetterSignatures: (*Broker).deadLetterSignatures,

	wire.OpTransaction: (*Broker).transaction,

	wire.OpAddTrace:        (*Broker).addTrace,
	wire.OpTraceNames:      (*Broker).traceNames,
	wire.OpTracesByName:    (*Broker).tracesByName,
	wire.OpTracesOfMessage: (*Broker).tracesOfMessage,

	wire.OpStatus:            (*Broker).status,
	wire.OpStatusQueues:      (*Broker).statusQueues,
	wire.OpStatusQueue:       (*Broker).statusQueue,
	wire.OpStatusAnalytics:   (*Broker).statusAnalytics,
	wire.OpStatusBuffers:     (*Broker).statusBuffers,
	wire.OpQueueLag:          (*Broker).queueLag,
	wire.OpQueueOps:          (*Broker).queueOps,
	wire.OpParkedReplicas:    (*Broker).parkedReplicas,
	wire.OpWorkload:          (*Broker).workload,
	wire.OpSystemMetrics:     (*Broker).systemMetrics,
	wire.OpWorkerMetrics:     (*Broker).workerMetrics,
	wire.OpPostgresStats:     (*Broker).postgresStats,
	wire.OpRefreshStats:      (*Broker).refreshStats,
	wire.OpMaintenance:       (*Broker).maintenance,
	wire.OpSetMaintenance:    (*Broker).setMaintenance,
	wire.OpPopMaintenance:    (*Broker).popMaintenance,
	wire.OpSetPopMaintenance: (*Broker).popMaintenance,
	wire.OpSharedState:       (*Broker).sharedState,
	wire.OpMetricsJSON:       (*Broker).metricsJSON,
	wire.OpOpenAPI:           (*Broker).openAPI,

	wire.OpRetentionHistory: (*Broker).retentionHistory,

	wire.OpOverview:         (*Broker).overview,
	wire.OpNamespaces:       (*Broker).namespaces,
	wire.OpTasks:            (*Broker).tasks,
	wire.OpListPartitions:   (*Broker).listPartitions,
	wire.OpQueueDepth:       (*Broker).queueDepth,
	wire.OpClearQueue:       (*Broker).clearQueue,
	wire.OpListGroups:       (*Broker).listGroups,
	wire.OpLaggingGroups:    (*Broker).laggingGroups,
	wire.OpGetGroup:         (*Broker).groupDetail,
	wire.OpSetSubscription:  (*Broker).setSubscription,
	wire.OpSeekQueue:        (*Broker).seek,
	wire.OpSeekPartition:    (*Broker).seek,
	wire.OpDeleteGroup:      (*Broker).deleteGroup,
	wire.OpDeleteGroupQueue: (*Broker).deleteGroup,
}

// serve answers one request: route, identity, use case, and one place for errors, metrics and the log line. A pop that has
// to wait it leaves unanswered, detached; it is called again when the wait is over.
func (b *Broker) serve(ctx *fasthttp.RequestCtx) {
	p, resumed := httpkit.Resumed(ctx).(*popping)
	var x *exchange
	if resumed {
		b.detached.Add(-1)
		x = p.x
		x.ctx, x.parked = ctx, false
		httpkit.SetRequestID(&ctx.Response.Header, x.requestID)
	} else {
		b.metrics.inFlight.Add(1)
		x = newExchange(ctx)
	}
	defer func() {
		if !x.parked {
			b.metrics.inFlight.Add(-1)
		}
	}()
	var err error
	if resumed {
		err = p.goOn()
	} else {
		err = b.dispatch(x)
	}
	if x.parked {
		return
	}
	var e *wire.Error
	if err != nil {
		e = wire.AsError(err)
		httpkit.WriteError(ctx, e, x.requestID)
		x.prefaceBody()
	}
	if b.draining.Load() {
		ctx.SetConnectionClose() // the client finds a broker that stays
		ctx.Response.Header.Set(wire.HeaderDraining, "true")
	}
	b.conclude(x, e)
}

func newExchange(ctx *fasthttp.RequestCtx) *exchange {
	x := &exchange{ctx: ctx, begin: time.Now(), requestID: httpkit.TakeRequestID(ctx.Request.Header.Peek(wire.HeaderRequestID))}
	httpkit.SetRequestID(&ctx.Response.Header, x.requestID)
	return x
}

func (b *Broker) dispatch(x *exchange) error {
	h := &x.ctx.Request.Header
	if len(h.Peek(fasthttp.HeaderTrailer)) > 0 || len(h.PeekTrailerKeys()) > 0 {
		// A trailer can move a header of ours behind the body.
		return &wire.Error{Code: wire.InvalidRequest, Detail: "trailers are not accepted", Close: true}
	}
	// The verdict on the credential comes before that on the path: only who may look around is told what is not there.
	path := x.ctx.URI().PathOriginal()
	var missing, denied error
	x.route, x.params, missing = wire.Match(string(h.Method()), path)
	if x.who, denied = b.verifier.identify(h, path, x.route, x.begin); denied != nil {
		return denied
	}
	if missing != nil {
		return missing
	}
	if b.tracer != nil && x.route.Tenant {
		// With tenancy the caller has just proved that it is a gateway of the cell.
		x.span = b.tracer.Serve(x.route.Name(), x.begin, h.Peek("Traceparent"), b.cfg.Tenancy)
	}
	return handlers[x.route.Op](b, x)
}

// conclude counts and logs a request that has been answered.
func (b *Broker) conclude(x *exchange, e *wire.Error) {
	now := time.Now()
	a := httpkit.Access{
		RequestID: x.requestID, Cluster: x.who.cluster, Status: x.ctx.Response.StatusCode(),
		At: now, Duration: now.Sub(x.begin), BytesIn: len(x.ctx.Request.Body()), BytesOut: len(x.ctx.Response.Body()),
		Principal: x.who.subject, Echo: b.cfg.Tenancy,
	}
	if x.gone {
		a.Status = statusGone
	}
	if x.route != nil {
		a.Method, a.Route = x.route.Method, x.route.Pattern
		a.Probe = x.route.Op == wire.OpLivez || x.route.Op == wire.OpReadyz
		if x.who.tenant != uuid.Nil && b.log.Enabled(context.Background(), slog.LevelInfo) {
			a.Tenant = x.who.tenant.String()
		}
	} else {
		a.Method = string(x.ctx.Method())
	}
	if e != nil {
		b.metrics.refusal(e)
		a.Code = string(e.Code)
		if e.Limit != nil {
			a.Limit = e.Limit.Name
		}
		a.Err = e.Unwrap()
	}
	if e != nil && (e.Code == wire.DatabaseUnavailable || e.Code == wire.Internal) {
		b.metrics.work.dbErrors.Add(1)
	}
	if x.route != nil && x.route.Tenant {
		b.metrics.work.requests.Add(1)
	}
	b.metrics.request(a.Route, a.Status, a.Duration)
	a.EndSpan(x.span)
	a.Log(b.log)
}

// refuseHead answers what could not be read as a request.
func (b *Broker) refuseHead(ctx *fasthttp.RequestCtx, err error) {
	x := &exchange{ctx: ctx, begin: time.Now(), requestID: httpkit.NewRequestID()}
	e := httpkit.HeadError(err)
	if e.Code == wire.SlowBody && b.draining.Load() {
		e = &wire.Error{Code: wire.Draining, RetryAfter: time.Second, Outcome: wire.OutcomeNone, Close: true} // not its fault: see conns.hurry
	}
	httpkit.WriteError(ctx, e, x.requestID)
	b.conclude(x, e)
}

// prefaceBody puts the members that a route owes its refusals in front of an error body.
func (x *exchange) prefaceBody() {
	if len(x.preface) == 0 {
		return
	}
	rest := x.ctx.Response.Body()[1:]
	body := make([]byte, 0, 1+len(x.preface)+len(rest))
	body = append(append(append(body, '{'), x.preface...), rest...)
	x.ctx.Response.SetBodyRaw(body)
}

// reply answers status with the JSON that fill appends; the buffer is the pooled one of the response.
func (x *exchange) reply(status int, fill func(dst []byte) []byte) {
	r := &x.ctx.Response
	r.SetStatusCode(status)
	r.Header.SetContentType(httpkit.ContentTypeJSON)
	r.SwapBody(fill(r.SwapBody(nil)[:0]))
}

// away reports an error that says the database could not be asked.
func away(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Code == wire.DatabaseUnavailable
}
