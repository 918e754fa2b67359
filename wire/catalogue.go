package wire

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Code is the machine-readable name of a failure. Codes are API: add one, never rename or reuse one.
type Code string

// Every failure the product can answer. The status, the retry advice and the default text of each stand in catalogue.
const (
	InvalidRequest       Code = "invalid_request"
	TenantRequired       Code = "tenant_required"
	TenantAmbiguous      Code = "tenant_ambiguous"
	Unauthorized         Code = "unauthorized"
	KeyExpired           Code = "key_expired"
	Forbidden            Code = "forbidden"
	ClusterSuspended     Code = "cluster_suspended"
	PushBlocked          Code = "push_blocked"
	StorageQuotaExceeded Code = "storage_quota_exceeded"
	QuotaExceeded        Code = "quota_exceeded"
	FeatureGated         Code = "feature_gated"
	RouteBlocked         Code = "route_blocked"
	NoSuchRoute          Code = "no_such_route"
	NotFound             Code = "not_found"
	MethodNotAllowed     Code = "method_not_allowed"
	SlowBody             Code = "slow_body"
	PayloadTooLarge      Code = "payload_too_large"
	BatchExceedsBurst    Code = "batch_exceeds_burst"
	HeadersTooLarge      Code = "request_headers_too_large"
	TargetTooLong        Code = "request_target_too_long"
	ClusterUnknown       Code = "cluster_unknown"
	RateLimited          Code = "rate_limited"
	Internal             Code = "internal"
	BadGateway           Code = "bad_gateway"
	UpstreamTimeout      Code = "upstream_timeout"
	GatewayOverloaded    Code = "gateway_overloaded"
	BrokerOverloaded     Code = "broker_overloaded"
	BrokerUnavailable    Code = "broker_unavailable"
	DatabaseUnavailable  Code = "database_unavailable"
	Draining             Code = "draining"
	Maintenance          Code = "maintenance"
	KeysUnavailable      Code = "keys_unavailable"
	EncryptionKeyMissing Code = "encryption_key_missing"
	MessageCorrupt       Code = "message_corrupt"
	QueueChanging        Code = "queue_changing"
	ExportOnly           Code = "export_only"
)

// Retry says what a caller may hope for from repeating a request as it is.
type Retry uint8

const (
	Never      Retry = iota // a human, a bigger plan or a deletion must act first
	RetryAfter              // time alone cures it: the answer carries Retry-After
	Backoff                 // a fault on our side: try again with backoff, minding Outcome
)

type spec struct {
	status int
	retry  Retry
	text   string
}

// catalogue is the only place where a code meets a status. Texts of 4xx must not contain the words timeout or
// connection: published SDKs search the text before they look at the status and would poll without pause.
var catalogue = map[Code]spec{
	InvalidRequest:       {400, Never, "the request is malformed"},
	TenantRequired:       {400, Never, "the request states no tenant"},
	TenantAmbiguous:      {400, Never, "the request states more than one tenant"},
	Unauthorized:         {401, Never, "a valid API key or token is required"},
	KeyExpired:           {401, Never, "the API key has expired"},
	Forbidden:            {403, Never, "the credential does not allow this"},
	ClusterSuspended:     {403, Never, "the cluster is suspended"},
	PushBlocked:          {403, Never, "pushes to the cluster are blocked by its billing state"},
	StorageQuotaExceeded: {403, Never, "the cluster's retained bytes are used up"},
	QuotaExceeded:        {403, Never, "a hard limit of the plan is reached"},
	FeatureGated:         {403, Never, "the plan does not include this feature"},
	RouteBlocked:         {404, Never, "this route is not served"},
	NoSuchRoute:          {404, Never, "Not Found"},
	NotFound:             {404, Never, "not found"},
	MethodNotAllowed:     {405, Never, "the method is not allowed on this path"},
	SlowBody:             {408, Never, "the body arrives too slowly"},
	PayloadTooLarge:      {413, Never, "the request is larger than allowed"},
	BatchExceedsBurst:    {413, Never, "the batch can never fit the message burst of the plan"},
	HeadersTooLarge:      {431, Never, "the request head is larger than allowed"},
	TargetTooLong:        {414, Never, "the request target is longer than allowed"},
	ClusterUnknown:       {421, Never, "the host names no cluster"},
	RateLimited:          {429, RetryAfter, "the cluster's rate is used up"},
	Internal:             {500, Backoff, "internal error"},
	BadGateway:           {502, Backoff, "the broker could not be reached"},
	UpstreamTimeout:      {504, Backoff, "the broker did not answer in time"},
	GatewayOverloaded:    {503, RetryAfter, "the gateway is full"},
	BrokerOverloaded:     {503, RetryAfter, "the broker is full"},
	BrokerUnavailable:    {503, RetryAfter, "no broker of the cell is ready"},
	DatabaseUnavailable:  {503, RetryAfter, "the database is away"},
	Draining:             {503, RetryAfter, "the process is shutting down"},
	Maintenance:          {503, RetryAfter, "an operator has stopped pushes for maintenance"},
	KeysUnavailable:      {500, Backoff, "the keys of tokens are not available"},
	EncryptionKeyMissing: {503, RetryAfter, "the queue is encrypted and the broker lacks the key"},
	MessageCorrupt:       {500, Backoff, "the message is not what was stored"},
	QueueChanging:        {503, RetryAfter, "the queue is being deleted or configured"},
	ExportOnly:           {403, Never, "the cluster is open for export only: nothing is written to it"},
}

// Codes returns every code of the catalogue in no particular order.
func Codes() []Code {
	cs := make([]Code, 0, len(catalogue))
	for c := range catalogue {
		cs = append(cs, c)
	}
	return cs
}

// Status returns the HTTP status of the code; a code outside the catalogue is 500.
func (c Code) Status() int {
	if s, ok := catalogue[c]; ok {
		return s.status
	}
	return 500
}

// Retry returns the advice that goes with the code.
func (c Code) Retry() Retry { return catalogue[c].retry }

// Text returns the default human text of the code.
func (c Code) Text() string { return catalogue[c].text }

// Outcome tells a caller whether a refused or failed request may have taken effect all the same.
type Outcome string

const (
	OutcomeNone    Outcome = "none"    // nothing was stored or moved: a repeat cannot double
	OutcomeUnknown Outcome = "unknown" // it may have been committed: repeat only with deterministic ids
)

// Limit is the limit that refused a request, as it stands in the error body.
type Limit struct {
	Name         string  // req, msgs, queues, partitions, payload, batch, body, retention, parked, storage, month, redrives
	Limit        float64 // the plan's number
	Used         float64 // what counted against it, in Unit
	Unit         string  // requests_per_second, messages_per_second, queues, partitions, bytes, items, seconds, polls, messages, redrives
	ResetSeconds float64 // until the refused request would fit; 0 when time does not cure it
}

// Error is a verdict a caller can act on. Any depth may return one; every other error is rendered as Internal with
// no detail. The zero Detail means the code's default text. Values are immutable once returned.
type Error struct {
	Code       Code
	Detail     string        // shown to callers: no SQL, paths, payloads or secrets; 4xx: no "timeout", no "connection"
	RetryAfter time.Duration // rendered in whole seconds, rounded up, at least 1 (zero: a second); used for codes whose Retry is RetryAfter
	Outcome    Outcome       // "" means OutcomeNone
	Limit      *Limit
	Close      bool // the answer must close the connection (the body was left unread)
	Allow      string
	Members    string // more members of the JSON body, rendered: those that a route's own failures have
	cause      error  // for errors.Is and the log only
}

// Errorf returns an Error of the code with a formatted detail.
func Errorf(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Detail: fmt.Sprintf(format, args...)}
}

// Because returns e with a cause for the log; e stays as it is.
func (e *Error) Because(cause error) *Error {
	out := *e
	out.cause = cause
	return &out
}

// Wrap returns an Error of the code that keeps cause for the log; callers never see the cause.
func Wrap(c Code, cause error) *Error { return &Error{Code: c, cause: cause} }

// Error implements error with the code, the detail and the cause: for logs.
func (e *Error) Error() string {
	s := string(e.Code)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap returns the cause, if any.
func (e *Error) Unwrap() error { return e.cause }

// AsError returns err as an *Error; anything that is none becomes Internal with an unknown outcome. nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: Internal, Outcome: OutcomeUnknown, cause: err}
}

// RetryAfterSeconds returns the value of the Retry-After header: whole seconds, rounded up, at least 1; 0 when the
// code carries no such header.
func (e *Error) RetryAfterSeconds() int {
	if e.Code.Retry() != RetryAfter {
		return 0
	}
	return max(1, int(math.Ceil(e.RetryAfter.Seconds())))
}

// Text returns what the caller reads.
func (e *Error) Text() string {
	if e.Detail != "" {
		return e.Detail
	}
	return e.Code.Text()
}

// AppendJSON appends the error body {error, code, request_id, retryable, retry_after_ms, outcome, limit?} to dst.
func (e *Error) AppendJSON(dst []byte, requestID string) []byte {
	dst = append(dst, '{')
	if e.Members != "" {
		dst = append(append(dst, e.Members...), ',')
	}
	dst = append(dst, `"error":`...)
	dst = AppendString(dst, e.Text())
	dst = append(dst, `,"code":`...)
	dst = AppendString(dst, string(e.Code))
	dst = append(dst, `,"request_id":`...)
	dst = AppendString(dst, requestID)
	dst = append(dst, `,"retryable":`...)
	dst = strconv.AppendBool(dst, e.Code.Retry() != Never)
	dst = append(dst, `,"retry_after_ms":`...)
	var ms int64
	if e.Code.Retry() == RetryAfter {
		ms = 1000 // like the header, which has no smaller number
		if e.RetryAfter > 0 {
			ms = int64(math.Ceil(float64(e.RetryAfter) / float64(time.Millisecond)))
		}
	}
	dst = strconv.AppendInt(dst, ms, 10)
	outcome := e.Outcome
	if outcome == "" {
		outcome = OutcomeNone
	}
	dst = append(dst, `,"outcome":`...)
	dst = AppendString(dst, string(outcome))
	if l := e.Limit; l != nil {
		dst = append(dst, `,"limit":{"name":`...)
		dst = AppendString(dst, l.Name)
		dst = append(dst, `,"limit":`...)
		dst = strconv.AppendFloat(dst, l.Limit, 'f', -1, 64)
		dst = append(dst, `,"used":`...)
		dst = strconv.AppendFloat(dst, l.Used, 'f', -1, 64)
		dst = append(dst, `,"unit":`...)
		dst = AppendString(dst, l.Unit)
		dst = append(dst, `,"reset_s":`...)
		dst = strconv.AppendFloat(dst, math.Round(l.ResetSeconds*1000)/1000, 'f', -1, 64)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
