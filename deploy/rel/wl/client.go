package wl

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Node is who can be asked: a broker or a gateway.
type Node struct {
	Name   string // as in the history's topology
	Addr   string // host:port
	Header string // whole header lines that every request carries, each with its CRLF
	Secure string // where it listens for TLS, "" when it does not
	TLS    bool   // it is asked there
	Keep   bool   // the client says nothing of closing the connection after its answer
}

// patience is how long a client waits for an answer, beyond what it has asked to wait.
const patience = 8 * time.Second

// Client does the operations of one thread and records them. It is for one goroutine.
type Client struct {
	rec    *hist.Writer
	w      string
	thread int
}

// seen is an answer, or what there was instead.
type seen struct {
	hist.Seen
	body   []byte
	header http.Header
	err    error
	code   string // of a refusal
}

// do sends one request on a connection of its own, and reads the whole answer.
func do(ctx context.Context, at Node, method, path string, body []byte, wait time.Duration) seen {
	c, s := exchange(ctx, at, method, path, body, wait)
	if c != nil {
		_ = c.Close()
	}
	return s
}

// exchange is do which leaves the connection open, if there was one.
func exchange(ctx context.Context, at Node, method, path string, body []byte, wait time.Duration) (conn net.Conn, s seen) {
	ctx, cancel := context.WithTimeout(ctx, patience+wait)
	defer cancel()
	addr := at.Addr
	if at.TLS {
		addr = at.Secure
	}
	conn, s.err = (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", addr)
	if s.err != nil {
		return nil, s
	}
	c := conn
	if at.TLS {
		c = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the certificate is made for the run, and nothing hangs on it
	}
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	var req bytes.Buffer
	fmt.Fprintf(&req, "%s %s HTTP/1.1\r\nHost: %s\r\n%s", method, path, at.Addr, at.Header)
	if !at.Keep {
		req.WriteString("Connection: close\r\n")
	}
	if method != http.MethodGet {
		fmt.Fprintf(&req, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	req.WriteString("\r\n")
	req.Write(body)
	s.Sent = true
	if _, err := c.Write(req.Bytes()); err != nil {
		s.err = err
		return conn, s
	}
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		s.err = err
		return conn, s
	}
	s.body, err = io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		s.err = fmt.Errorf("status %d, and then: %w", res.StatusCode, err)
		return conn, s
	}
	s.Status, s.header = res.StatusCode, res.Header
	if s.Status > 299 {
		var refusal struct {
			Outcome string `json:"outcome"`
			Code    string `json:"code"`
			Error   string `json:"error"`
		}
		if json.Unmarshal(s.body, &refusal) == nil {
			s.Outcome, s.code = refusal.Outcome, refusal.Code
			s.err = fmt.Errorf("%s: %s", refusal.Code, refusal.Error)
		}
	}
	return conn, s
}

// call does one recorded operation. into takes the answer of a 2xx with a body; refused looks into it.
func (c *Client) call(ctx context.Context, at Node, f hist.Func, args any, method, path string, body []byte, wait time.Duration, into any, refused func() bool) hist.Kind {
	op := c.rec.Invoke(hist.Call{W: c.w, Client: c.thread, Node: at.Name, F: f}, args)
	s := do(ctx, at, method, path, body, wait)
	var answer any
	switch ok := s.Status >= 200 && s.Status <= 299; {
	case ok && s.Status == http.StatusNoContent:
		answer = into
	case ok && into != nil:
		if err := json.Unmarshal(s.body, into); err != nil {
			// An answer that nobody can read is none.
			s.err = fmt.Errorf("status %d with a body that is none: %w", s.Status, err)
			s.Status = 0
		} else {
			answer = into
			s.Refused = refused != nil && refused()
		}
	}
	kind := hist.Outcome(s.Seen)
	op.Complete(kind, s.Status, answer, s.err)
	return kind
}

// Push is POST /api/v1/push. Without an answer the results are nil.
func (c *Client) Push(ctx context.Context, at Node, items ...hist.PushItem) (hist.PushAnswer, hist.Kind) {
	args := hist.PushArgs{Items: items}
	var answer hist.PushAnswer
	kind := c.call(ctx, at, hist.Push, &args, http.MethodPost, "/api/v1/push", encode(&args), 0, &answer, nil)
	return answer, kind
}

// Pop is GET /api/v1/pop. Without messages there is no lease.
func (c *Client) Pop(ctx context.Context, at Node, a hist.PopArgs) (hist.PopAnswer, hist.Kind) {
	path := "/api/v1/pop/queue/" + a.Queue
	if a.Partition != "" {
		path += "/partition/" + a.Partition
	}
	q := newQuery(path)
	q.text("consumerGroup", a.Group)
	q.number("batch", a.Batch)
	q.number("partitions", a.Partitions)
	q.flag("autoAck", a.AutoAck)
	q.flag("wait", a.Wait)
	q.number("timeout", a.TimeoutMs)
	q.number("leaseSeconds", a.LeaseSeconds)
	q.text("subscriptionMode", a.Subscription)
	wait := time.Duration(0)
	if a.Wait {
		wait = time.Duration(a.TimeoutMs) * time.Millisecond
	}
	var answer hist.PopAnswer
	kind := c.call(ctx, at, hist.Pop, &a, http.MethodGet, q.String(), nil, wait, &answer, nil)
	return answer, kind
}

// Ack is POST /api/v1/ack/batch.
func (c *Client) Ack(ctx context.Context, at Node, group string, items ...hist.AckItem) (hist.AckAnswer, hist.Kind) {
	args := hist.AckArgs{Group: group, Items: items}
	var answer hist.AckAnswer
	kind := c.call(ctx, at, hist.Ack, &args, http.MethodPost, "/api/v1/ack/batch", encode(&args), 0, &answer, nil)
	return answer, kind
}

// Extend is POST /api/v1/lease/:lease/extend.
func (c *Client) Extend(ctx context.Context, at Node, lease string, seconds int) hist.Kind {
	args := hist.ExtendArgs{LeaseID: lease, Seconds: seconds}
	var answer hist.ExtendAnswer
	body := fmt.Appendf(nil, `{"seconds":%d}`, seconds)
	return c.call(ctx, at, hist.Extend, &args, http.MethodPost, "/api/v1/lease/"+lease+"/extend", body, 0, &answer,
		func() bool { return !answer.Success })
}

// Transact is POST /api/v1/transaction.
func (c *Client) Transact(ctx context.Context, at Node, a hist.TransactionArgs) (hist.TransactionAnswer, hist.Kind) {
	type pushes struct {
		Type  string          `json:"type"`
		Items []hist.PushItem `json:"items"`
	}
	type ack struct {
		Type string `json:"type"`
		hist.TransactionAck
	}
	body := struct {
		Operations []any    `json:"operations"`
		Leases     []string `json:"requiredLeases,omitempty"`
	}{Leases: a.Leases}
	if len(a.Pushes) > 0 {
		body.Operations = append(body.Operations, pushes{"push", a.Pushes})
	}
	for _, x := range a.Acks {
		body.Operations = append(body.Operations, ack{"ack", x})
	}
	var answer hist.TransactionAnswer
	kind := c.call(ctx, at, hist.Transaction, &a, http.MethodPost, "/api/v1/transaction", encode(&body), 0, &answer,
		func() bool { return !answer.Success })
	return answer, kind
}

// Fetch is POST /api/v1/fetch.
func (c *Client) Fetch(ctx context.Context, at Node, a hist.FetchArgs) (hist.FetchAnswer, hist.Kind) {
	var answer hist.FetchAnswer
	kind := c.call(ctx, at, hist.Fetch, &a, http.MethodPost, "/api/v1/fetch", encode(&a), time.Duration(a.MaxWaitMs)*time.Millisecond, &answer, nil)
	return answer, kind
}

// DeadLetters is GET /api/v1/dlq, one page.
func (c *Client) DeadLetters(ctx context.Context, at Node, a hist.DeadLettersArgs) (hist.DeadLettersAnswer, hist.Kind) {
	q := newQuery("/api/v1/dlq")
	q.text("queue", a.Queue)
	q.text("consumerGroup", a.Group)
	q.text("cursor", a.Cursor)
	q.number("limit", 500)
	answer := letters{}
	kind := c.call(ctx, at, hist.DeadLetters, &a, http.MethodGet, q.String(), nil, 0, &answer, nil)
	return hist.DeadLettersAnswer(answer), kind
}

// queueMode is how the wire names the group of pops that name none.
const queueMode = "__QUEUE_MODE__"

// letters decodes a page of dead letters, in which queue mode has no name.
type letters hist.DeadLettersAnswer

func (l *letters) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, (*hist.DeadLettersAnswer)(l)); err != nil {
		return err
	}
	for i := range l.Messages {
		if l.Messages[i].Group == queueMode {
			l.Messages[i].Group = ""
		}
	}
	return nil
}

// Replay is POST /api/v1/dlq/:id/replay.
func (c *Client) Replay(ctx context.Context, at Node, l *hist.DeadLetter) (hist.ReplayAnswer, hist.Kind) {
	args := hist.ReplayArgs{ID: l.ID, TransactionID: l.TransactionID, Queue: l.Queue, Partition: l.Partition, Group: l.Group}
	var answer replayed
	kind := c.call(ctx, at, hist.Replay, &args, http.MethodPost, "/api/v1/dlq/"+l.ID+"/replay", []byte("{}"), 0, &answer,
		func() bool { return !answer.Success })
	return hist.ReplayAnswer(answer), kind
}

// replayed decodes the answer to a replay, in which the new id lies one level down.
type replayed hist.ReplayAnswer

func (r *replayed) UnmarshalJSON(b []byte) error {
	var w struct {
		Success    bool   `json:"success"`
		Result     string `json:"result"`
		ReplayedAs struct {
			TransactionID string `json:"transactionId"`
		} `json:"replayedAs"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*r = replayed{Success: w.Success, Result: w.Result, ReplayedAs: w.ReplayedAs.TransactionID}
	return nil
}

// Configure is POST /api/v1/configure with all options that are not the default.
func (c *Client) Configure(ctx context.Context, at Node, queue string, options any) hist.Kind {
	args := hist.ConfigureArgs{Queue: queue, Mode: "replace", Options: encode(options)}
	var answer jsontext.Value
	return c.call(ctx, at, hist.Configure, &args, http.MethodPost, "/api/v1/configure", encode(&args), 0, &answer, nil)
}

// Health is GET /health.
func (c *Client) Health(ctx context.Context, at Node) hist.Kind {
	var answer hist.HealthAnswer
	return c.call(ctx, at, hist.Health, &hist.HealthArgs{}, http.MethodGet, "/health", nil, 0, &answer, nil)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("a %T does not encode: %v", v, err)) // they are plain data
	}
	return b
}

// query builds the target of a request. Names of this harness need no escapes, and cursors get theirs.
type query struct {
	bytes.Buffer
	sign byte
}

func newQuery(path string) *query {
	q := &query{sign: '?'}
	q.WriteString(path)
	return q
}

func (q *query) text(name, value string) {
	if value == "" {
		return
	}
	q.WriteByte(q.sign)
	q.sign = '&'
	q.WriteString(name)
	q.WriteByte('=')
	for i := range len(value) {
		switch b := value[i]; {
		case b >= '0' && b <= '9', b >= 'A' && b <= 'Z', b >= 'a' && b <= 'z', b == '-', b == '_', b == '.':
			q.WriteByte(b)
		default:
			fmt.Fprintf(q, "%%%02X", b)
		}
	}
}

func (q *query) number(name string, n int) {
	if n != 0 {
		q.text(name, strconv.Itoa(n))
	}
}

func (q *query) flag(name string, on bool) {
	if on {
		q.text(name, "true")
	}
}
