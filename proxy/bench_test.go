package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// silence keeps a benchmark's own log out of its numbers.
func silence(w *world) {
	w.gateway.log = slog.New(slog.DiscardHandler)
}

// minimalBroker answers every request with the same 201, reading heads and lengths only.
func minimalBroker(b *testing.B) (address string) {
	b.Helper()
	return minimalBrokerOn(b, "tcp", "127.0.0.1:0")
}

func minimalBrokerOn(b *testing.B, network, at string) (address string) {
	b.Helper()
	ln, err := net.Listen(network, at)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	answer := []byte("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n[{\"index\":0}]")
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReaderSize(c, 16<<10)
				for {
					length := 0
					for {
						line, err := br.ReadSlice('\n')
						if err != nil {
							return
						}
						if len(line) <= 2 {
							break
						}
						if rest, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
							length, _ = strconv.Atoi(strings.TrimSpace(rest))
						}
					}
					if _, err := br.Discard(length); err != nil {
						return
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// BenchmarkRoundTrip is what a request of 700 bytes to a broker costs by the loopback and by a socket, both sides in the
// numbers, with as many under way as there are connections.
func BenchmarkRoundTrip(b *testing.B) {
	for network, at := range map[string]string{"tcp": "127.0.0.1:0", "unix": socketPath(b)} {
		b.Run(network, func(b *testing.B) {
			d := &upstreamDialer{connectTime: patience, maxIdle: 64}
			to := &broker{address: minimalBrokerOn(b, network, at)}
			to.conns.max = d.maxIdle
			b.Cleanup(to.conns.closeAll)
			request := []byte("POST /api/v1/push HTTP/1.1\r\nHost: broker\r\nContent-Length: 600\r\n\r\n" + strings.Repeat("x", 600))
			b.SetParallelism(max(1, d.maxIdle/runtime.GOMAXPROCS(0)))
			began := processTime(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					a, _, err := d.do(to, nil, request, nil, time.Now().Add(patience))
					if err != nil {
						b.Error(err)
						return
					}
					a.discard()
				}
			})
			b.ReportMetric(float64((processTime(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// processTime is the CPU that the process has used.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPush is a 1 KB push through the gateway on keep-alive connections; client and broker are in the process and
// in the numbers.
func BenchmarkPush(b *testing.B) {
	w := setup(b, options{address: minimalBroker(b), facts: func(w *world) {
		w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(1e9), one(1e9)
		w.cluster.Limits.MessagesPerSecond, w.cluster.Limits.MessagesBurst = one(1e9), one(1e9)
	}})
	silence(w)
	body := `{"items":[{"queue":"orders","partition":"p1","transactionId":"0198f0aa-0000-7000-8000-000000000000","payload":{"text":"` + strings.Repeat("x", 900) + `"}}]}`
	request := []byte(w.push(body, "Content-Type: application/json", "Accept: */*", "User-Agent: bench"))
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", w.plain)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		br := bufio.NewReader(c)
		for pb.Next() {
			if _, err := c.Write(request); err != nil {
				b.Error(err)
				return
			}
			length := 0
			for {
				line, err := br.ReadSlice('\n')
				if err != nil {
					b.Error(err)
					return
				}
				if len(line) <= 2 {
					break
				}
				if rest, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
					length, _ = strconv.Atoi(strings.TrimSpace(rest))
				}
			}
			if _, err := io.CopyN(io.Discard, br, int64(length)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkJudge is the policy on a head: walls, route, credential, cluster, request bucket.
func BenchmarkJudge(b *testing.B) {
	w := setup(b, options{address: minimalBroker(b), facts: func(w *world) {
		w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(1e9), one(1e9)
	}})
	silence(w)
	var h fasthttp.RequestHeader
	if err := h.Read(bufio.NewReader(strings.NewReader(w.push(aPush, "Content-Type: application/json", "Accept: */*", "User-Agent: bench")))); err != nil {
		b.Fatal(err)
	}
	var ctx fasthttp.RequestCtx
	h.CopyTo(&ctx.Request.Header)
	c := &clientConn{gateway: w.gateway}
	b.ReportAllocs()
	for b.Loop() {
		c.ex = exchange{judged: true, id: "r"}
		if e := w.gateway.judgeHead(&h, c); e != nil {
			b.Fatal(e)
		}
	}
}

// BenchmarkPolicy is everything that a push costs because there are tenants: walls, route, credential, cluster, the scan of
// its items, all limits of a plan and the settlement; neither reading nor forwarding. Messages have 1 KB; a token has been
// seen before, as a client's has.
func BenchmarkPolicy(b *testing.B) {
	// Names and retained bytes are known as in a cluster that has been in use: the broker has none of either.
	empty := func(ctx *fasthttp.RequestCtx) {
		var q wire.UsageQuestion
		if json.Unmarshal(ctx.PostBody(), &q) != nil {
			ctx.SetBodyString(`{"names":[]}`)
			return
		}
		for _, tenant := range q.Tenants {
			fmt.Fprintf(ctx, `{"tenants":[{"tenant":%q,"computed_at":%q}]}`, tenant, time.Now().Format(time.RFC3339Nano))
		}
	}
	w := setup(b, options{broker: empty, facts: func(w *world) {
		w.cluster.Limits = plans.Limits{
			RequestsPerSecond: one(1e9), RequestsBurst: one(1e9), MessagesPerSecond: one(1e9), MessagesBurst: one(1e9),
			MaxQueues: one(int64(10)), MaxPartitionsPerQueue: one(int64(100)), MaxPayloadBytes: one(int64(1 << 20)),
			MaxBatchItems: one(int64(1000)), MaxRetainedBytes: one(int64(1 << 60)),
		}
	}})
	silence(w)
	const around = `{"queue":"orders","partition":"p1","transactionId":"0198f0aa-0000-7000-8000-000000000000","payload":{"text":"%s"}}`
	message := fmt.Sprintf(around, strings.Repeat("x", 1<<10-len(around)-len(`{"items":[]}`)+len("%s")))
	for _, credential := range []struct{ name, text string }{{"key", w.key}, {"token", w.token(w.cluster.ID)}} {
		for _, messages := range []int{1, 64} {
			body := []byte(`{"items":[` + strings.Repeat(message+",", messages-1) + message + `]}`)
			b.Run(fmt.Sprintf("%s/%dKB", credential.name, messages), func(b *testing.B) {
				text := fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: acme.example.com\r\nAuthorization: Bearer %s\r\n"+
					"Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: bench\r\nContent-Length: %d\r\n\r\n", credential.text, len(body))
				var h fasthttp.RequestHeader
				if err := h.Read(bufio.NewReader(strings.NewReader(text))); err != nil {
					b.Fatal(err)
				}
				c := &clientConn{gateway: w.gateway}
				b.ReportAllocs()
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					c.ex = exchange{judged: true, start: time.Now(), id: "r"}
					if e := w.gateway.judgeHead(&h, c); e != nil {
						b.Fatal(e)
					}
					ask, e := measure(&c.ex, body)
					if e != nil {
						b.Fatal(e)
					}
					if c.ex.admission, _, e = w.gateway.admit(&c.ex, &ask); e != nil {
						b.Fatal(e)
					}
					w.gateway.settle(&c.ex, quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes})
				}
			})
		}
	}
}

// BenchmarkMeasure is the scan of a 1 KB push.
func BenchmarkMeasure(b *testing.B) {
	body := []byte(`{"items":[{"queue":"orders","partition":"p1","payload":{"text":"` + strings.Repeat("x", 950) + `"}}]}`)
	ex := &exchange{route: &wire.Routes[0], cluster: &plans.Cluster{}}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, e := measure(ex, body); e != nil {
			b.Fatal(e)
		}
	}
}
