package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// target is where a load goes: straight to the broker, or through the gateway.
type target struct {
	client *fasthttp.HostClient
	base   string
	head   func(*fasthttp.Request) // credentials
}

const payloadBytes = 256

var payload = func() string {
	s := `{"order":"0123456789","note":"`
	return s + strings.Repeat("n", payloadBytes-len(s)-2) + `"}`
}()

var messageSerial atomic.Int64

// appendBody appends a push body of n messages with fresh transaction ids.
func appendBody(dst []byte, queue, partition string, n int) []byte {
	dst = append(dst, `{"items":[`...)
	id := messageSerial.Add(int64(n)) - int64(n)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"queue":"`...)
		dst = append(dst, queue...)
		dst = append(dst, `","partition":"`...)
		dst = append(dst, partition...)
		dst = append(dst, `","transactionId":"order-0198f000-`...)
		dst = strconv.AppendInt(dst, id+int64(i), 10)
		dst = append(dst, `","payload":`...)
		dst = append(dst, payload...)
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// push runs producers that each send batches one after the other to a partition of their own.
func (t *target) push(queue string, producers, batch int) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		var wg sync.WaitGroup
		var sent atomic.Int64
		var fault atomic.Pointer[error]
		lat := make([][]time.Duration, producers)
		began := time.Now()
		for p := range producers {
			wg.Go(func() {
				req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
				defer fasthttp.ReleaseRequest(req)
				defer fasthttp.ReleaseResponse(resp)
				t.head(req)
				req.SetRequestURI(t.base + "/api/v1/push")
				req.Header.SetMethod("POST")
				part := "p" + strconv.Itoa(p)
				var body []byte
				for ctx.Err() == nil {
					body = appendBody(body[:0], queue, part, batch)
					req.SetBodyRaw(body)
					at := time.Now()
					if err := t.client.Do(req, resp); err != nil || resp.StatusCode() != 201 {
						err = fmt.Errorf("push: %d %s: %v", resp.StatusCode(), resp.Body(), err)
						fault.Store(&err)
						cancel()
						return
					}
					lat[p] = append(lat[p], time.Since(at))
					sent.Add(int64(batch))
				}
			})
		}
		wg.Wait()
		if e := fault.Load(); e != nil {
			return sample{}, *e
		}
		s := sample{rate: float64(sent.Load()) / time.Since(began).Seconds()}
		s.p50, s.p99 = percentiles(slices.Concat(lat...))
		return s, nil
	}
}

func percentiles(all []time.Duration) (p50, p99 time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)*99/100]
}

type popped struct {
	LeaseID  string `json:"leaseId"`
	Messages []struct {
		TransactionID string `json:"transactionId"`
		PartitionID   string `json:"partitionId"`
		Data          struct {
			At int64 `json:"at"` // when it was sent, in nanoseconds
			N  int   `json:"n"`
		} `json:"data"`
	} `json:"messages"`
}

// consumer pops and acknowledges until stop says so, and calls each with every answer.
func (t *target) consumer(ctx context.Context, query string, each func(*popped) (stop bool)) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	var body []byte
	for ctx.Err() == nil {
		req.Reset()
		t.head(req)
		req.SetRequestURI(t.base + "/api/v1/pop/queue/" + query)
		req.Header.SetMethod("GET")
		if err := t.client.Do(req, resp); err != nil {
			return err
		}
		var a popped
		switch resp.StatusCode() {
		case 204:
		case 200:
			if err := json.Unmarshal(resp.Body(), &a); err != nil {
				return err
			}
		default:
			return fmt.Errorf("pop: %d %s", resp.StatusCode(), resp.Body())
		}
		if len(a.Messages) > 0 {
			body = append(body[:0], `{"acknowledgments":[`...)
			for i := range a.Messages {
				if i > 0 {
					body = append(body, ',')
				}
				body = fmt.Appendf(body, `{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"}`, a.Messages[i].TransactionID, a.Messages[i].PartitionID, a.LeaseID)
			}
			body = append(body, `]}`...)
			req.Reset()
			t.head(req)
			req.SetRequestURI(t.base + "/api/v1/ack/batch")
			req.Header.SetMethod("POST")
			req.SetBodyRaw(body)
			if err := t.client.Do(req, resp); err != nil || resp.StatusCode() != 200 {
				return fmt.Errorf("ack: %d %s: %v", resp.StatusCode(), resp.Body(), err)
			}
		}
		if each(&a) {
			return nil
		}
	}
	return nil
}

// drain fills a queue and measures how fast consumers pop and acknowledge it empty.
func (t *target) drain(queue string, consumers, take, partitions, messages int) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, _ time.Duration) (sample, error) {
		if err := t.fill(ctx, queue, partitions, messages); err != nil {
			return sample{}, err
		}
		var wg sync.WaitGroup
		var done atomic.Int64
		errs := make(chan error, consumers)
		began := time.Now()
		for range consumers {
			wg.Go(func() {
				errs <- t.consumer(ctx, fmt.Sprintf("%s?batch=%d", queue, take), func(a *popped) bool {
					return done.Add(int64(len(a.Messages))) >= int64(messages)
				})
			})
		}
		wg.Wait()
		took := time.Since(began)
		close(errs)
		for err := range errs {
			if err != nil {
				return sample{}, err
			}
		}
		return sample{rate: float64(messages) / took.Seconds()}, nil
	}
}

func (t *target) fill(ctx context.Context, queue string, partitions, messages int) error {
	var wg sync.WaitGroup
	errs := make(chan error, partitions)
	for p := range partitions {
		wg.Go(func() {
			req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			defer fasthttp.ReleaseRequest(req)
			defer fasthttp.ReleaseResponse(resp)
			t.head(req)
			req.SetRequestURI(t.base + "/api/v1/push")
			req.Header.SetMethod("POST")
			for left := messages / partitions; left > 0 && ctx.Err() == nil; left -= 100 {
				req.SetBody(appendBody(nil, queue, "p"+strconv.Itoa(p), min(left, 100)))
				if err := t.client.Do(req, resp); err != nil || resp.StatusCode() != 201 {
					errs <- fmt.Errorf("fill: %d %s: %v", resp.StatusCode(), resp.Body(), err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// warmUp is how long the latency case runs before it counts: each new database session compiles its routines once,
// which is the cost of a start and not of a message.
const warmUp = 2 * time.Second

// latency sends single messages at an even rate, whatever the answers do, and measures each from its push to its pop:
// over all of them, and over those that passed while the machine was not slowed from outside.
func (t *target) latency(queue string, perSecond, partitions, consumers int) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var mu sync.Mutex
		var flights []flight
		watch, stopWatch := context.WithCancel(ctx)
		defer stopWatch()
		m := watchMachine(watch)
		cold := int(warmUp.Seconds() * float64(perSecond))
		total := cold + int(d.Seconds()*float64(perSecond))
		arrived := 0
		errs := make(chan error, consumers+total)
		var wg sync.WaitGroup
		for range consumers {
			wg.Go(func() {
				err := t.consumer(ctx, queue+"?batch=100&wait=true&timeout=3000", func(a *popped) bool {
					now := time.Now()
					mu.Lock()
					defer mu.Unlock()
					for _, msg := range a.Messages {
						if arrived++; msg.Data.N >= cold {
							sent := time.Unix(0, msg.Data.At)
							flights = append(flights, flight{sent, now.Sub(sent)})
						}
					}
					return arrived >= total
				})
				if err != nil && ctx.Err() == nil {
					errs <- err
				}
			})
		}
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		var pushes sync.WaitGroup
		for i := range total {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return sample{}, ctx.Err()
			}
			pushes.Go(func() {
				req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
				defer fasthttp.ReleaseRequest(req)
				defer fasthttp.ReleaseResponse(resp)
				t.head(req)
				req.SetRequestURI(t.base + "/api/v1/push")
				req.Header.SetMethod("POST")
				req.SetBodyString(fmt.Sprintf(`{"items":[{"queue":%q,"partition":"p%d","payload":{"n":%d,"at":%d,"note":%q}}]}`, queue, i%partitions, i, time.Now().UnixNano(), payload[40:200]))
				if err := t.client.Do(req, resp); err != nil || resp.StatusCode() != 201 {
					errs <- fmt.Errorf("push: %d %s: %v", resp.StatusCode(), resp.Body(), err)
				}
			})
		}
		pushes.Wait()
		finished := make(chan struct{})
		go func() { wg.Wait(); close(finished) }()
		select {
		case <-finished:
		case err := <-errs:
			return sample{}, err
		case <-time.After(20 * time.Second):
			mu.Lock()
			defer mu.Unlock()
			return sample{}, fmt.Errorf("only %d of %d messages arrived", arrived, total)
		}
		stopWatch()
		s := sample{rate: float64(perSecond)}
		s.p50, s.p99 = percentiles(undisturbed(flights, nil))
		calm := undisturbed(flights, m.slow())
		s.calm = float64(len(calm)) / float64(len(flights))
		s.calm50, s.calm99 = percentiles(calm)
		return s, nil
	}
}
