package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queengate/queengate/wire"
)

// Options are the settings of a [Client]. Only URLs is required.
type Options struct {
	// URLs are the addresses of the cluster's gateways, such as https://orders.eu.example.com, each without a path. A
	// client takes one of them at random and stays with it; when it fails, the others are asked, and it is left alone for
	// 5 seconds.
	URLs []string

	// Key is the API key or token of the cluster.
	Key string

	// Host is the cluster's host name when the URLs do not bear it, for instance behind a port forward.
	Host string

	// HTTPClient sends the requests; nil means one with a pool of connections of its own. Its Timeout, if any, bounds
	// waiting pops too, and its redirect policy is not used: redirects are errors.
	HTTPClient *http.Client

	// Timeout bounds one request, beyond the time that a pop asks to wait. 0 means 30 seconds.
	Timeout time.Duration

	Retry Retry
}

// Client talks to one cluster with one key. It is safe for concurrent use.
type Client struct {
	http      *http.Client
	endpoints *endpoints
	key       string
	host      string
	timeout   time.Duration
	retry     Retry
}

// New returns a client. It sends nothing yet; the error names the option that is wrong.
func New(o Options) (*Client, error) {
	if len(o.URLs) == 0 {
		return nil, errors.New("client: URLs is empty")
	}
	c := &Client{key: o.Key, host: o.Host, timeout: o.Timeout, retry: o.Retry.withDefaults()}
	if c.timeout <= 0 {
		c.timeout = 30 * time.Second
	}
	urls := make([]string, len(o.URLs))
	// Each client begins at another URL and goes on in the same circle.
	first := rand.IntN(len(urls))
	for i := range urls {
		raw := o.URLs[(first+i)%len(urls)]
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			// The text of the URL may hold a password; where it stands is enough.
			return nil, fmt.Errorf("client: URLs[%d]: want http(s)://host[:port]", (first+i)%len(urls))
		}
		urls[i] = u.Scheme + "://" + u.Host
	}
	c.endpoints = &endpoints{urls: urls, down: make([]time.Time, len(urls))}

	var h http.Client
	if o.HTTPClient != nil {
		h = *o.HTTPClient
	} else {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 256
		h.Transport = t
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &h
	return c, nil
}

// Close closes connections that are not in use. Calls in progress are not disturbed.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one use of the API, sent as often as it takes.
type call struct {
	method string
	path   string // escaped, with the query
	body   any    // marshalled once; nil sends none

	// repeatable says that carrying it out twice is harmless, so that it may be repeated after an unknown outcome.
	repeatable bool

	// wait is how long the server may hold the request back; then refusals are waited out for as long as they last.
	wait time.Duration
}

// reply is a success.
type reply struct {
	status int
	header http.Header
	body   []byte
	// unsure says that an earlier attempt of the same call may have been carried out.
	unsure bool
}

// do carries out a call under the policy of the client.
func (c *Client) do(ctx context.Context, k *call) (*reply, error) {
	var body []byte
	if k.body != nil {
		var err error
		if body, err = marshal(k.body); err != nil {
			return nil, err
		}
	}
	unsure := false
	for attempts, faults, refusals := 1, 0, 0; ; attempts++ {
		at := c.endpoints.pick()
		r, e := c.attempt(ctx, c.endpoints.urls[at], k, body)
		if e == nil {
			c.endpoints.answered(at)
			r.unsure = unsure
			return r, nil
		}
		e.Attempts = attempts
		safe := k.repeatable || e.Outcome == wire.OutcomeNone
		if unsure = unsure || e.Outcome != wire.OutcomeNone; unsure {
			e.Outcome = wire.OutcomeUnknown
		}
		if ctx.Err() != nil {
			return nil, e
		}
		var pause time.Duration
		switch {
		case e.Status == http.StatusTooManyRequests:
			// The URL works; the same plan holds at every other.
			refusals++
			endless := k.wait > 0
			if !endless && (c.retry.Refusals > 0 && refusals >= c.retry.Refusals || c.retry.MaxWait > 0 && e.RetryAfter > c.retry.MaxWait) {
				return nil, e
			}
			if pause = spread(e.RetryAfter); e.RetryAfter == 0 {
				pause = c.retry.pause(refusals)
			}
		case e.Temporary():
			other := c.endpoints.failed(at)
			faults++
			if !safe || faults >= c.retry.Attempts {
				return nil, e
			}
			if other {
				continue
			}
			if pause = c.retry.pause(faults); e.RetryAfter > 0 {
				if c.retry.MaxWait > 0 && e.RetryAfter > c.retry.MaxWait {
					return nil, e
				}
				pause = max(pause, spread(e.RetryAfter))
			}
		default:
			return nil, e
		}
		if !sleep(ctx, pause) {
			return nil, e
		}
	}
}

// answerGrace is how long after the end of its wait a pop may be answered.
const answerGrace = 5 * time.Second

// attempt sends one request. Only this function talks HTTP.
func (c *Client) attempt(ctx context.Context, base string, k *call, body []byte) (*reply, *Error) {
	limit := c.timeout
	if k.wait > 0 {
		limit = k.wait + max(answerGrace, min(c.timeout, 2*answerGrace))
	}
	within, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("nothing came within %s: %w", limit, context.DeadlineExceeded))
	defer cancel()

	// Before there is a connection, nothing can have been sent. Transports that do not trace tell nothing.
	var asked, connected atomic.Bool
	traced := httptrace.WithClientTrace(within, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	var rd io.Reader
	if body != nil {
		rd = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(traced, k.method, base+k.path, rd)
	if err != nil {
		return nil, &Error{Outcome: wire.OutcomeNone, cause: err}
	}
	if !k.repeatable && body == nil {
		// On its own net/http repeats what fails on a kept connection: a request with a body if nothing of it was written, a
		// GET even after it was sent. But not one that has a body it cannot rewind, be it empty.
		req.Body = io.NopCloser(strings.NewReader(""))
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.host != "" {
		req.Host = c.host
	}

	broken := func(err error) *Error {
		e := &Error{Outcome: wire.OutcomeUnknown, cause: err}
		if asked.Load() && !connected.Load() {
			e.Outcome = wire.OutcomeNone
		}
		if within.Err() != nil {
			e.cause = context.Cause(within)
		}
		return e
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the URL is of no interest to the caller, and the same every time
		}
		return nil, broken(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		// A refusal counts by its status, even if its text did not come whole.
		return nil, refusal(resp.StatusCode, resp.Header, text)
	}
	if err != nil {
		return nil, broken(fmt.Errorf("the answer broke off: %w", err))
	}
	if k.wait <= 0 && resp.Header.Get(wire.HeaderDegraded) != "" {
		return nil, &Error{
			Status: resp.StatusCode, Message: "degraded", RequestID: resp.Header.Get(wire.HeaderRequestID), Outcome: wire.OutcomeUnknown,
			cause: ErrDegraded,
		}
	}
	return &reply{status: resp.StatusCode, header: resp.Header, body: text}, nil
}

// ask carries out a call and decodes its answer into out.
func (c *Client) ask(ctx context.Context, k *call, out any) (*reply, error) {
	r, err := c.do(ctx, k)
	if err != nil {
		return nil, err
	}
	if err := r.decode(out); err != nil {
		return nil, err
	}
	return r, nil
}

// decode reads the body into out. An answer that cannot be read may well have been a success.
func (r *reply) decode(out any) error {
	if err := json.Unmarshal(r.body, out); err != nil {
		return r.strange(fmt.Errorf("the answer cannot be read: %w", err))
	}
	return nil
}

// strange is an answer that says success and does not make sense.
func (r *reply) strange(err error) *Error {
	return &Error{
		Status: r.status, Message: "not an answer of this API", RequestID: r.header.Get(wire.HeaderRequestID),
		Outcome: wire.OutcomeUnknown, cause: err,
	}
}

// marshal is json.Marshal without escapes for HTML, which only make bodies larger.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
