package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queengate/queengate/wire"
)

// Error is a request that was refused or failed, after the repeats that [Retry] allows.
//
// Ask it by its code, as in e.Code == wire.StorageQuotaExceeded, never by its text. Values are not changed once returned.
type Error struct {
	Status    int       // of HTTP; 0: no answer came, and Unwrap tells why
	Code      wire.Code // "" when the answer had none
	Message   string    // for people
	RequestID string    // quote it to whoever runs the service; "" when there is none

	// Outcome is OutcomeUnknown when this attempt or an earlier one of the same call may have taken effect: repeat then
	// only what is harmless twice.
	Outcome wire.Outcome

	// RetryAfter is how long the answer asked to wait, 0 for nothing said.
	RetryAfter time.Duration

	// Limit is the limit of the plan that refused the request, nil when none did.
	Limit *wire.Limit

	Attempts int // requests sent for this call

	cause error
}

// Error returns what failed and why, in one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Status == 0 {
		fmt.Fprintf(&b, "no answer: %v", e.cause)
	} else {
		fmt.Fprintf(&b, "%d", e.Status)
		if e.Code != "" {
			fmt.Fprintf(&b, " %s", e.Code)
		}
		fmt.Fprintf(&b, ": %s", e.Message)
		if e.cause != nil {
			fmt.Fprintf(&b, ": %v", e.cause)
		}
	}
	if e.Limit != nil {
		fmt.Fprintf(&b, " (limit %s: %g of %g %s)", e.Limit.Name, e.Limit.Used, e.Limit.Limit, e.Limit.Unit)
	}
	if e.RequestID != "" {
		fmt.Fprintf(&b, " [request %s]", e.RequestID)
	}
	return b.String()
}

// Unwrap returns what broke the exchange: an error of the network or of the context, or [ErrDegraded]; nil for any other
// complete answer.
func (e *Error) Unwrap() error { return e.cause }

// Temporary reports whether the failure may heal by itself, so that trying later makes sense; see Outcome for whether
// that is safe.
func (e *Error) Temporary() bool {
	return e.Status == 0 || e.Status >= 500 || e.Status == http.StatusTooManyRequests || e.cause == ErrDegraded
}

// ErrDegraded says that nothing was asked for messages, though the answer looks like that of an empty queue: a gateway
// gives it instead of a 5xx. It is found with errors.Is in what a pop that does not wait returns.
var ErrDegraded = errors.New("the cell cannot serve pops at the moment")

// ErrLeaseLost says that a lease had ended before it was used: its messages are delivered again, maybe to others. It is
// found with errors.Is in what settling, extending and committing return.
var ErrLeaseLost = errors.New("the lease is lost")

// ErrClosed is what a closed [Batcher] returns.
var ErrClosed = errors.New("the batcher is closed")

// errorBody is the JSON of a refusal (spec of the error body: wire.Error.AppendJSON).
type errorBody struct {
	Error        string       `json:"error"`
	Code         wire.Code    `json:"code"`
	RequestID    string       `json:"request_id"`
	RetryAfterMs int64        `json:"retry_after_ms"`
	Outcome      wire.Outcome `json:"outcome"`
	Limit        *struct {
		Name  string  `json:"name"`
		Limit float64 `json:"limit"`
		Used  float64 `json:"used"`
		Unit  string  `json:"unit"`
		Reset float64 `json:"reset_s"`
	} `json:"limit"`
}

const shownText = 300 // bytes of a body that is not ours which an error shows

// refusal makes an Error of an answer that is no success.
func refusal(status int, header http.Header, body []byte) *Error {
	e := &Error{Status: status, RequestID: header.Get(wire.HeaderRequestID), Outcome: wire.OutcomeUnknown}
	if status < 500 {
		e.Outcome = wire.OutcomeNone // whoever says so: the request was judged and not carried out
	}
	var b errorBody
	if json.Unmarshal(body, &b) == nil {
		e.Message, e.Code = b.Error, b.Code
		if b.RequestID != "" {
			e.RequestID = b.RequestID
		}
		if b.Outcome != "" {
			e.Outcome = b.Outcome
		}
		if l := b.Limit; l != nil {
			e.Limit = &wire.Limit{Name: l.Name, Limit: l.Limit, Used: l.Used, Unit: l.Unit, ResetSeconds: l.Reset}
		}
	} else {
		e.Message = string(body[:min(len(body), shownText)])
	}
	if e.Message = strings.TrimSpace(e.Message); e.Message == "" {
		e.Message = strings.ToLower(http.StatusText(status))
	}
	e.RetryAfter = retryAfter(header, b.RetryAfterMs, time.Now())
	return e
}

// maxRetryAfter is beyond what anybody means by Retry-After; more would overflow a duration in the end.
const maxRetryAfter = 366 * 24 * time.Hour

// retryAfter reads Retry-After. Seconds are whole and rounded up: they are refined by the milliseconds of the body when
// the two mean the same. A date, which is what some proxies in front of a service send, is compared with the answer's own
// Date, so that a clock that is wrong here does no harm; without one, with now. The past and nonsense are nothing said.
func retryAfter(header http.Header, ms int64, now time.Time) time.Duration {
	text := header.Get(wire.HeaderRetryAfter)
	if at, err := http.ParseTime(text); err == nil {
		if date, err := http.ParseTime(header.Get("Date")); err == nil {
			now = date
		}
		if d := at.Sub(now); d > 0 && d <= maxRetryAfter {
			return d
		}
		return 0
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0 && seconds <= maxRetryAfter.Seconds()) {
		return 0
	}
	told := time.Duration(seconds * float64(time.Second))
	if exact := time.Duration(ms) * time.Millisecond; ms > 0 && exact <= told && told-exact < time.Second {
		return exact
	}
	return told
}
