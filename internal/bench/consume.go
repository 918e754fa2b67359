package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// received is one message of an answer to a pop; its strings are slices of the answer.
type received struct {
	txn, partition []byte
	sent           int64 // when, in nanoseconds
}

// delivery is an answer to a pop, read by its marks: encoding/json would cost the loader as much as the broker spends.
type delivery struct {
	lease    []byte
	messages []received
}

func (d *delivery) read(body []byte) error {
	d.lease, d.messages = nil, d.messages[:0]
	if len(body) == 0 {
		return nil
	}
	cursor := body
	after := func(mark string) bool {
		at := bytes.Index(cursor, []byte(mark))
		if at < 0 {
			return false
		}
		cursor = cursor[at+len(mark):]
		return true
	}
	text := func(mark string) []byte {
		if !after(mark) {
			return nil
		}
		end := bytes.IndexByte(cursor, '"')
		v := cursor[:end]
		cursor = cursor[end:]
		return v
	}
	if d.lease = text(`"leaseId":"`); d.lease == nil {
		return fmt.Errorf("pop: no lease in %.200q", body)
	}
	for {
		var m received
		if m.txn = text(`"transactionId":"`); m.txn == nil {
			return nil
		}
		if !after(`"data":{"at":`) || len(cursor) < stampWidth {
			return fmt.Errorf("pop: a strange payload in %.200q", cursor)
		}
		var err error
		if m.sent, err = strconv.ParseInt(string(cursor[:stampWidth]), 10, 64); err != nil {
			return err
		}
		if m.partition = text(`"partitionId":"`); m.partition == nil {
			return fmt.Errorf("pop: no partition in %.200q", body)
		}
		d.messages = append(d.messages, m)
	}
}

// appendAck appends an acknowledgement of message i.
func (d *delivery) appendAck(dst []byte, i int, group string) []byte {
	m := &d.messages[i]
	dst = append(append(dst, `{"transactionId":"`...), m.txn...)
	dst = append(append(dst, `","partitionId":"`...), m.partition...)
	dst = append(append(dst, `","leaseId":"`...), d.lease...)
	if group != "" {
		dst = append(append(dst, `","consumerGroup":"`...), group...)
	}
	return append(dst, `","status":"completed"}`...)
}

// appendAckBatch appends the body that acknowledges all messages.
func (d *delivery) appendAckBatch(dst []byte, group string) []byte {
	dst = append(dst, `{`...)
	if group != "" {
		dst = fmt.Appendf(dst, `"consumerGroup":%q,`, group)
	}
	dst = append(dst, `"acknowledgments":[`...)
	for i := range d.messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = d.appendAck(dst, i, "")
	}
	return append(dst, `]}`...)
}

// consumer is one worker that pops.
type consumer struct {
	t       *target
	c       *conn
	group   string
	request []byte
	got     delivery
	body    []byte
	out     []byte
	next    *template // for transact
}

// consumer opens a worker that pops with a query, which names the queue; group "" is queue mode.
func (t *target) consumer(queue, query, group string) (*consumer, error) {
	c, err := t.dial()
	if err != nil {
		return nil, err
	}
	path := "/api/v1/pop/queue/" + queue + "?" + query
	if group != "" {
		path += "&consumerGroup=" + group
	}
	return &consumer{t: t, c: c, group: group, request: t.get(path)}, nil
}

// pop fills got; without messages it is empty.
func (w *consumer) pop() error {
	status, body, err := w.c.do(w.request)
	switch {
	case err != nil:
	case status == 200 || status == 204:
		// The messages must outlive the acknowledgement, which reuses the connection's buffer.
		w.body = append(w.body[:0], body...)
		err = w.got.read(w.body)
	default:
		err = fmt.Errorf("%d %s", status, body)
	}
	if err != nil {
		return fmt.Errorf("pop: %w", err)
	}
	return nil
}

// ack acknowledges everything popped in one request.
func (w *consumer) ack() error {
	if len(w.got.messages) == 0 {
		return nil
	}
	return w.post(200, "/api/v1/ack/batch", w.got.appendAckBatch(nil, w.group))
}

// ackOne acknowledges message i.
func (w *consumer) ackOne(i int) error {
	return w.post(200, "/api/v1/ack", w.got.appendAck(nil, i, w.group))
}

// transact acknowledges message i and pushes next, all or nothing.
func (w *consumer) transact(i int) error {
	ack := w.got.appendAck(nil, i, w.group)
	body := append([]byte(`{"operations":[{"type":"ack",`), ack[1:]...)
	body = append(append(body, `,{"type":"push","items":[`...), w.next.next(time.Now())...)
	return w.post(200, "/api/v1/transaction", append(body, `]}]}`...))
}

func (w *consumer) post(status int, path string, body []byte) error {
	w.out = w.t.postTo(w.out[:0], path, body)
	return w.c.expect(status, path, w.out)
}

// drainage is a load of consumers on a queue that was filled before.
type drainage struct {
	consumers int
	query     string
	lanes     int
	messages  int
	settle    func(w *consumer) error // nil: everything popped in one request
}

// drain fills a queue and measures how fast consumers empty it, or get on with it in d when that is shorter.
func (t *target) drain(queue string, r drainage) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		if err := t.fill(queue, r.lanes, r.messages); err != nil {
			return sample{}, err
		}
		return t.empty(ctx, queue, r, d)
	}
}

// empty is drain of what is in the queue already.
func (t *target) empty(ctx context.Context, queue string, r drainage, d time.Duration) (sample, error) {
	settle := (*consumer).ack
	if r.settle != nil {
		settle = r.settle
	}
	var done atomic.Int64
	at := t.w.open()
	end := at.began.Add(d)
	err := workers(r.consumers, func(int) error {
		c, err := t.consumer(queue, r.query, "")
		if err != nil {
			return err
		}
		defer c.c.Close()
		for ctx.Err() == nil && done.Load() < int64(r.messages) && time.Now().Before(end) {
			if err := c.pop(); err != nil {
				return err
			}
			if err := settle(c); err != nil {
				return err
			}
			done.Add(int64(len(c.got.messages)))
		}
		return nil
	})
	return at.close(done.Load()), err
}
