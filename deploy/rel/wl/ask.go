package wl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// request is what goes over the wire of an ask.
type request struct {
	method, path string
	body         []byte
	foreign      []string // texts of other tenants, which the answer must not have
}

// got is an answer to an ask, for who needs more of it than is judged.
type got struct {
	hist.AskAnswer
	kind   hist.Kind
	status int
	body   []byte
}

// ask does one request to a gateway, and records it. The client goes away after patience if that is not zero.
func (c *Client) ask(ctx context.Context, at Node, a hist.AskArgs, r request, patience time.Duration) got {
	return c.askAndLeave(ctx, at, a, r, patience, leaves["fin"])
}

// askAndLeave is ask with a client that goes away in a certain way, at whose end its connection is closed.
func (c *Client) askAndLeave(ctx context.Context, at Node, a hist.AskArgs, r request, patience time.Duration, leave leave) got {
	op := c.rec.Invoke(hist.Call{W: c.w, Client: c.thread, Node: at.Name, F: hist.Ask}, &a)
	short, cancel := ctx, context.CancelFunc(func() {})
	if patience > 0 {
		short, cancel = context.WithTimeout(ctx, patience)
	}
	conn, s := exchange(short, at, r.method, r.path, r.body, time.Duration(a.WaitMs)*time.Millisecond)
	gone := patience > 0 && s.Status == 0 && ctx.Err() == nil && (short.Err() != nil || errors.Is(s.err, os.ErrDeadlineExceeded))
	cancel()
	stay := func() {}
	if conn != nil && gone {
		s.err, stay = errHungUp, leave(conn.(*net.TCPConn))
	} else if conn != nil {
		_ = conn.Close()
	}
	defer stay()
	answer := hist.AskAnswer{Code: s.code}
	if s.Status != 0 {
		answer.Mode = s.header.Get("X-Queen-Limit-Mode")
		answer.RetryAfter, _ = strconv.Atoi(s.header.Get("Retry-After")) // absent is 0
		answer.Leak = leak(&s, r.foreign)
	}
	if s.Status > 299 {
		var refusal struct {
			RetryMs int64 `json:"retry_after_ms"`
			Limit   struct {
				Name string `json:"name"`
			} `json:"limit"`
		}
		if json.Unmarshal(s.body, &refusal) == nil {
			answer.Limit, answer.RetryMs = refusal.Limit.Name, refusal.RetryMs
		}
	}
	kind := hist.Outcome(s.Seen)
	op.Complete(kind, s.Status, &answer, s.err)
	return got{answer, kind, s.Status, s.body}
}

// errHungUp is written of a client that went away; the judge knows it by its text.
var errHungUp = errors.New("hung up")

// leak finds a text of another tenant in an answer, and returns it with what is around it.
func leak(s *seen, foreign []string) string {
	if len(foreign) == 0 {
		return ""
	}
	var head bytes.Buffer
	_ = s.header.Write(&head) // a buffer takes everything
	for _, text := range []string{head.String(), string(s.body)} {
		for _, f := range foreign {
			if i := strings.Index(text, f); i >= 0 {
				return text[max(0, i-40):min(len(text), i+len(f)+40)]
			}
		}
	}
	return ""
}

func get(path string) request { return request{method: http.MethodGet, path: path} }

func post(path string, body any) request {
	return request{method: http.MethodPost, path: path, body: encode(body)}
}

// lists is a read that costs little.
const lists = "/api/v1/resources/queues"

// poll is a pop that waits.
func poll(queue string, wait time.Duration) request {
	return get(fmt.Sprintf("/api/v1/pop/queue/%s?consumerGroup=g&wait=true&timeout=%d", queue, wait.Milliseconds()))
}

// pushes is a push of some messages of a size.
func pushes(queue, partition string, n, size int) request {
	type item struct {
		Queue     string `json:"queue"`
		Partition string `json:"partition,omitzero"`
		Payload   string `json:"payload"`
	}
	items := make([]item, n)
	for i := range items {
		items[i] = item{queue, partition, strings.Repeat("x", size)}
	}
	return post("/api/v1/push", struct {
		Items []item `json:"items"`
	}{items})
}

// bytesOf are the raw payload bytes of a push of n messages of a size.
func bytesOf(n, size int) int64 { return int64(n * (size + 2)) }
