package broker

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

// BenchmarkPushOne pushes one message of 256 bytes per request from 64 producers over loopback, each with a partition
// of its own: broker, database and producers share the machine.
func BenchmarkPushOne(b *testing.B) { benchmarkPush(b, setup(b, nil)) }

// BenchmarkPushOneEncrypted is BenchmarkPushOne to an encrypted queue.
func BenchmarkPushOneEncrypted(b *testing.B) {
	w := setup(b, with(testKey(b, 1)))
	w.encrypt("bench", true)
	benchmarkPush(b, w)
}

func benchmarkPush(b *testing.B, w *world) {
	const producers = 64
	client := &fasthttp.Client{MaxConnsPerHost: producers}
	payload := make([]byte, 240)
	for i := range payload {
		payload[i] = 'x'
	}
	requests := make(chan struct{}, producers)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			req.SetRequestURI("http://" + w.addr + "/api/v1/push")
			req.Header.SetMethod("POST")
			req.SetBodyString(`{"items":[{"queue":"bench","partition":"p` + strconv.Itoa(p) + `","payload":"` + string(payload) + `"}]}`)
			for range requests {
				if err := client.Do(req, resp); err != nil || resp.StatusCode() != 201 {
					b.Errorf("%v %d %s", err, resp.StatusCode(), resp.Body())
					return
				}
			}
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		requests <- struct{}{}
	}
	close(requests)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkSealed measures what encryption adds to a request of so many messages of 256 bytes before it is offered: the
// plain one passes through untouched.
func BenchmarkSealed(b *testing.B) {
	w := &Broker{cfg: Config{Encryption: seal.NewRing(testKey(b, 1))}}
	w.metrics = newMetrics(prometheus.NewRegistry(), w)
	for _, n := range []int{1, 100} {
		frames := make([]segment.Frame, n)
		for i := range frames {
			frames[i] = segment.Frame{TransactionID: "0195c1b2-7f3a-7000-8000-0123456789ab", Payload: make([]byte, 256)}
		}
		for _, encrypted := range []bool{false, true} {
			to := store.Partition{ID: 1, Queue: "bench", Encrypted: encrypted}
			b.Run(fmt.Sprintf("%d/encrypted=%t", n, encrypted), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := w.sealed(&to, frames); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkParkedPoll measures the memory of a parked poll: its connection, handler, ticket and hang-up watch.
func BenchmarkParkedPoll(b *testing.B) {
	w := setup(b, nil)
	const polls = 2000
	for b.Loop() {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		conns := make([]interface{ Close() error }, polls)
		for i := range conns {
			conns[i] = w.dialPoll("q?wait=true&timeout=60000")
		}
		w.until("parked", func() bool { return w.b.park.Waiting() == polls })
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/polls, "B/poll")
		for _, c := range conns {
			if err := c.Close(); err != nil {
				b.Fatal(err)
			}
		}
		w.until("unparked", func() bool { return w.b.park.Waiting() == 0 })
	}
}
