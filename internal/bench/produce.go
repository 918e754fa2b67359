package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const payloadBytes = 256

// A message of the loads has places of fixed width, which are overwritten from one request to the next: the lane, the
// transaction id's number and the time it was sent, in nanoseconds.
const (
	laneWidth   = 6
	serialWidth = 12
	stampWidth  = 19
)

var payload = func() string {
	s := `{"at":` + strings.Repeat("1", stampWidth) + `,"note":"`
	return s + strings.Repeat("n", payloadBytes-len(s)-2) + `"}`
}()

func item(queue string) string {
	return `{"queue":"` + queue + `","partition":"p` + strings.Repeat("0", laneWidth) +
		`","transactionId":"order-0198f000-` + strings.Repeat("0", serialWidth) + `","payload":` + payload + `}`
}

var messageSerial atomic.Int64

// template is a request whose messages can be changed in place.
type template struct {
	bytes                 []byte
	lanes, serials, times []int // where they begin
}

// pushRequest is a push of n messages.
func (t *target) pushRequest(queue string, n int) *template {
	body := `{"items":[` + strings.Repeat(item(queue)+",", n-1) + item(queue) + `]}`
	return newTemplate(t.post("/api/v1/push", []byte(body)))
}

func newTemplate(request []byte) *template {
	m := &template{bytes: request}
	all := func(mark string) (at []int) {
		for i := 0; ; {
			k := bytes.Index(request[i:], []byte(mark))
			if k < 0 {
				return at
			}
			i += k + len(mark)
			at = append(at, i)
		}
	}
	m.lanes, m.serials, m.times = all(`"partition":"p`), all(`"order-0198f000-`), all(`"payload":{"at":`)
	return m
}

// next gives the messages fresh transaction ids and the time.
func (m *template) next(at time.Time) []byte {
	id := messageSerial.Add(int64(len(m.serials))) - int64(len(m.serials))
	for i, p := range m.serials {
		digits(m.bytes[p:p+serialWidth], id+int64(i))
	}
	for _, p := range m.times {
		digits(m.bytes[p:p+stampWidth], at.UnixNano())
	}
	return m.bytes
}

// lane puts message i on a partition.
func (m *template) lane(i, lane int) { digits(m.bytes[m.lanes[i]:m.lanes[i]+laneWidth], int64(lane)) }

// digits writes n right-aligned into dst, with leading zeros.
func digits(dst []byte, n int64) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
}

// production is a load of pushes as fast as they are answered.
type production struct {
	producers int
	batch     int
	lanes     int // partitions in all; 0: one per producer. A producer moves through them in steps, a lane per request
}

// push runs producers that each send batches one after the other to one partition at a time. The partitions exist: a
// message was pushed to each before.
func (t *target) push(queue string, p production) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		lanes := p.lanes
		if lanes == 0 {
			lanes = p.producers
		}
		if err := t.fill(queue, lanes, lanes); err != nil {
			return sample{}, err
		}
		return t.pushOn(ctx, queue, p, d)
	}
}

// pushOn is push to partitions that exist.
func (t *target) pushOn(ctx context.Context, queue string, p production, d time.Duration) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	conns, hangUp, err := t.connect(p.producers)
	if err != nil {
		return sample{}, err
	}
	defer hangUp()
	lat := make([][]time.Duration, p.producers)
	at := t.w.open()
	var sent atomic.Int64
	err = workers(p.producers, func(i int) error {
		m := t.pushRequest(queue, p.batch)
		for ctx.Err() == nil {
			lane := i
			if p.lanes > 0 {
				lane = rand.IntN(p.lanes)
			}
			for k := range m.lanes {
				m.lane(k, lane)
			}
			began := time.Now()
			if err := conns[i].expect(201, "push", m.next(began)); err != nil {
				cancel()
				return err
			}
			lat[i] = append(lat[i], time.Since(began))
			sent.Add(int64(p.batch))
		}
		return nil
	})
	s := at.close(sent.Load())
	s.p50, s.p99 = percentiles(slices.Concat(lat...))
	return s, err
}

// fill pushes messages evenly over the lanes of a queue.
func (t *target) fill(queue string, lanes, messages int) error {
	return t.fillBy(queue, lanes, messages, 100)
}

// fillBy is fill with requests that put size messages on one lane, or one on each of many.
func (t *target) fillBy(queue string, lanes, messages, size int) error {
	const producers, batch = 16, 100
	conns, hangUp, err := t.connect(producers)
	if err != nil {
		return err
	}
	defer hangUp()
	var next atomic.Int64
	size = min(size, max(1, messages/lanes))
	return workers(producers, func(i int) error {
		m := t.pushRequest(queue, batch)
		for {
			at := int(next.Add(batch)) - batch
			if at >= messages {
				return nil
			}
			if n := messages - at; n < batch {
				m = t.pushRequest(queue, n)
			}
			for k := range m.lanes {
				m.lane(k, (at+k)/size%lanes)
			}
			if err := conns[i].expect(201, "fill", m.next(time.Now())); err != nil {
				return err
			}
		}
	})
}

// configure creates a queue with options, the text of a JSON object.
func (t *target) configure(queue, options string) error {
	conns, hangUp, err := t.connect(1)
	if err != nil {
		return err
	}
	defer hangUp()
	body := fmt.Sprintf(`{"queue":%q,"options":%s}`, queue, options)
	status, answer, err := conns[0].do(t.post("/api/v1/configure", []byte(body)))
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("configure: %d %s", status, answer)
	}
	return err
}

// connect opens connections; hangUp closes them.
func (t *target) connect(n int) (conns []*conn, hangUp func(), err error) {
	hangUp = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for range n {
		c, err := t.dial()
		if err != nil {
			hangUp()
			return nil, nil, err
		}
		conns = append(conns, c)
	}
	return conns, hangUp, nil
}

// workers runs n of them and returns the first error.
func workers(n int, work func(i int) error) error {
	errs := make(chan error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := work(i); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func percentiles(all []time.Duration) (p50, p99 time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)*99/100]
}
