package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/queengate/queengate/internal/bootstrap"
)

// Sizes of the cases about proxies, those of the targets.
const (
	proxyConns     = 64
	proxyBody      = 1 << 10
	evenRate       = 1000 // requests per second
	evenConns      = 16
	handshakeConns = 16
)

// proxies is rows a1 to a5, a9 and d2 of the targets: a gateway beside proxies of others, all before the same upstream.
// The gateway knows tenants, counts items and keeps every limit of a plan; nginx and HAProxy keep a rate per credential,
// and Caddy keeps none.
func (w *world) proxies() group {
	g := group{
		name: "proxies", alone: true, requests: true, prepare: w.hire, about: releases,
		cases: []kase{
			{"push-direct", "pushes of 1 KB on 64 connections over TLS, straight to the upstream", w.pushes1KB(scene{})},
			{"push-gateway", "through the gateway", w.pushes1KB(scene{proxy: "gateway"})},
			{"push-narrow", "through the gateway with no more goroutines at once than there are CPUs", w.pushes1KB(scene{proxy: "gateway", procs: runtime.NumCPU()})},
			{"push-nginx", "through nginx with limit_req", w.pushes1KB(scene{proxy: "nginx"})},
			{"push-haproxy", "through HAProxy with a stick table", w.pushes1KB(scene{proxy: "haproxy"})},
			{"push-bare", "through fasthttp and nothing else: no tenant, no limit, not a look at the body", w.pushes1KB(scene{proxy: "bare"})},
			{"push-caddy", "through Caddy", w.pushes1KB(scene{proxy: "caddy"})},
			{"push-leased", "through the gateway that leases its quotas from Redis", w.pushes1KB(scene{proxy: "gateway", mode: "leased"})},
			{"push-exact", "through the gateway that asks Redis every time", w.pushes1KB(scene{proxy: "gateway", mode: "exact"})},

			{"http-gateway", "the same without TLS, through the gateway", w.pushes1KB(scene{proxy: "gateway", plain: true})},
			{"http-nginx", "through nginx with limit_req", w.pushes1KB(scene{proxy: "nginx", plain: true})},
			{"http-haproxy", "through HAProxy with a stick table", w.pushes1KB(scene{proxy: "haproxy", plain: true})},
			{"http-leased", "through the gateway that leases its quotas from Redis", w.pushes1KB(scene{proxy: "gateway", plain: true, mode: "leased"})},
			{"http-exact", "through the gateway that asks Redis every time", w.pushes1KB(scene{proxy: "gateway", plain: true, mode: "exact"})},

			{"even-direct", "1,000 pushes of 1 KB a second over TLS, straight to the upstream", w.evenly(scene{})},
			{"even-gateway", "through the gateway", w.evenly(scene{proxy: "gateway"})},
			{"even-nginx", "through nginx with limit_req", w.evenly(scene{proxy: "nginx"})},
			{"even-haproxy", "through HAProxy with a stick table", w.evenly(scene{proxy: "haproxy"})},

			{"handshake-gateway", "full TLS handshakes with the gateway", w.handshakes(scene{proxy: "gateway"})},
			{"handshake-nginx", "with nginx", w.handshakes(scene{proxy: "nginx"})},
			{"handshake-haproxy", "with HAProxy", w.handshakes(scene{proxy: "haproxy"})},

			{"refuse-gateway", "pushes of 1 KB beyond the rate over TLS, refused by the gateway", w.refusing(scene{proxy: "gateway", spent: true})},
			{"refuse-nginx", "by nginx", w.refusing(scene{proxy: "nginx", spent: true})},
			{"refuse-haproxy", "by HAProxy", w.refusing(scene{proxy: "haproxy", spent: true})},

			{"parked-gateway", "polls over TLS that wait at the gateway", w.parked(scene{proxy: "gateway"})},
			{"parked-nginx", "at nginx", w.parked(scene{proxy: "nginx"})},
			{"parked-haproxy", "at HAProxy", w.parked(scene{proxy: "haproxy"})},
		},
		ratios: []ratio{
			{"a1: pushes a second over TLS, gateway / nginx", "push-gateway", "push-nginx", 0.80, 1},
			{"a5: gateway / Caddy", "push-gateway", "push-caddy", 2, 2.5},
			{"gateway / with no more goroutines at once than CPUs", "push-gateway", "push-narrow", 0, 0},
			{"fasthttp and nothing else / nginx", "push-bare", "push-nginx", 0, 0},
			{"gateway / fasthttp and nothing else", "push-gateway", "push-bare", 0, 0},
			{"gateway / HAProxy", "push-gateway", "push-haproxy", 0, 0},
			{"gateway / straight to the upstream", "push-gateway", "push-direct", 0, 0},
			{"leased / local", "push-leased", "push-gateway", 0, 0},
			{"exact / local", "push-exact", "push-gateway", 0, 0},
			{"without TLS, gateway / nginx", "http-gateway", "http-nginx", 0, 0},
			{"without TLS, gateway / HAProxy", "http-gateway", "http-haproxy", 0, 0},
			{"handshakes a second, gateway / nginx", "handshake-gateway", "handshake-nginx", 0, 0},
			{"refusals a second, gateway / nginx", "refuse-gateway", "refuse-nginx", 0, 0},
			{"refusals a second, gateway / HAProxy", "refuse-gateway", "refuse-haproxy", 0, 0},
		},
	}
	cpu := func(s sample) float64 { return us(s.ours) }
	// A machine that others use tells less by its rate than by the work of loader, proxy and upstream together.
	work := func(s sample) float64 { return us(s.ours + s.upstream + s.redis + s.loader) }
	p50, p99 := func(s sample) float64 { return ms(s.p50) }, func(s sample) float64 { return ms(s.p99) }
	calm99 := func(s sample) float64 { return ms(s.calm99) }
	bytes := func(s sample) float64 { return s.figures[0].value }
	g.comparisons = []comparison{
		times("a2: CPU of a push at saturation, gateway / nginx", "push-gateway", "push-nginx", cpu, 1.5, 1.1),
		times("the same, gateway / HAProxy", "push-gateway", "push-haproxy", cpu, 0, 0),
		times("the same, gateway / fasthttp and nothing else", "push-gateway", "push-bare", cpu, 0, 0),
		times("the same with loader and upstream, gateway / nginx", "push-gateway", "push-nginx", work, 0, 0),
		added("a3: added p50 at 1,000 a second, gateway, ms", "even-gateway", p50, 0.25, 0.14),
		added("added p50, nginx, ms", "even-nginx", p50, 0, 0),
		added("added p50, HAProxy, ms", "even-haproxy", p50, 0, 0),
		addedTimes("a3: added p50, gateway / nginx", p50, 0, 1.6),
		added("a3: added p99, gateway, ms", "even-gateway", p99, 1, 0.35),
		added("added p99, nginx, ms", "even-nginx", p99, 0, 0),
		added("added p99, HAProxy, ms", "even-haproxy", p99, 0, 0),
		addedTimes("a3: added p99, gateway / nginx", p99, 0, 2),
		added("added p99, gateway, without the stretches in which the machine itself was slow, ms", "even-gateway", calm99, 1, 0.35),
		addedTimes("the same, gateway / nginx", calm99, 0, 2),
		single("a4: CPU of a push at 1,000 a second, gateway, µs", "even-gateway", cpu, 160, 120),
		times("the same, gateway / nginx", "even-gateway", "even-nginx", cpu, 0, 0),
		times("a9: CPU of a handshake, gateway / nginx", "handshake-gateway", "handshake-nginx", cpu, 1.3, 1.05),
		single("CPU of a refusal, gateway, µs", "refuse-gateway", cpu, 50, 50),
		times("CPU of a refusal, gateway / nginx", "refuse-gateway", "refuse-nginx", cpu, 0, 0),
		times("CPU of a refusal, gateway / HAProxy", "refuse-gateway", "refuse-haproxy", cpu, 0, 0),
		times("d2: bytes per parked poll, gateway / nginx", "parked-gateway", "parked-nginx", bytes, 1.32, 1),
		times("the same, gateway / HAProxy", "parked-gateway", "parked-haproxy", bytes, 0, 0),
	}
	return g
}

// single is a figure of one case.
func single(name, of string, figure func(sample) float64, floor, target float64) comparison {
	return comparison{name, []string{of}, func(s []sample) float64 { return figure(s[0]) }, floor, target}
}

// times is a figure of one case over the same of another.
func times(name, over, under string, figure func(sample) float64, floor, target float64) comparison {
	return comparison{name, []string{over, under}, func(s []sample) float64 { return figure(s[0]) / figure(s[1]) }, floor, target}
}

// added is what a proxy adds to a latency.
func added(name, of string, latency func(sample) float64, floor, target float64) comparison {
	return comparison{name, []string{of, "even-direct"}, func(s []sample) float64 { return latency(s[0]) - latency(s[1]) }, floor, target}
}

// addedTimes is what the gateway adds to a latency over what nginx adds.
func addedTimes(name string, latency func(sample) float64, floor, target float64) comparison {
	return comparison{name, []string{"even-gateway", "even-nginx", "even-direct"}, func(s []sample) float64 {
		return (latency(s[0]) - latency(s[2])) / max(latency(s[1])-latency(s[2]), 0.01) // less is none that can be measured
	}, floor, target}
}

// releases says whom the gateway stands beside.
func releases() string {
	var there []string
	for _, name := range []string{"nginx", "haproxy", "caddy", "bare"} {
		if r := rivals[name].release(); r != "" {
			there = append(there, r)
		}
	}
	return "Beside " + strings.Join(there, ", ") + "."
}

// tenants are the header lines with the credentials of two clusters on the plan `pro`: the rate of one is never reached,
// that of the other is.
type tenants struct{ busy, spent string }

// hire makes the tenants.
func (w *world) hire(ctx context.Context) error {
	for _, t := range []struct {
		slug, limits string
		into         *string
	}{
		{"busy", `{"max_req_per_sec":1000000,"req_burst":1000000,"max_msgs_per_sec":1000000,"msgs_burst":1000000,"max_parked_pops":10000}`, &w.tenants.busy},
		{"spent", `{"max_req_per_sec":0.00001,"req_burst":1}`, &w.tenants.spent},
	} {
		made, err := bootstrap.Bootstrap(ctx, w.db, bootstrap.Request{Tenant: t.slug, Cluster: t.slug, Plan: "pro", Cell: "local", Keys: bootstrap.DefaultKeys()})
		if err != nil {
			return err
		}
		if _, err := w.db.Exec(ctx, `SELECT queengate.set_limit_override($1, $2)`, made.ClusterID, t.limits); err != nil {
			return err
		}
		full := slices.IndexFunc(made.Keys, func(k bootstrap.Key) bool { return k.Name == "full" })
		*t.into = "Authorization: Bearer " + string(made.Keys[full].Plaintext) + "\r\n"
	}
	return nil
}

// rivalTLS is what all of them can do: TLS 1.3 with X25519, every handshake in full.
func (w *world) rivalTLS() *tls.Config {
	c := w.gatewayTLS.tls.Clone()
	c.MinVersion, c.CurvePreferences = tls.VersionTLS13, []tls.CurveID{tls.X25519}
	return c
}

// push1KB is a push of one message whose body has 1 KB.
func (t *target) push1KB() []byte {
	const around = `{"items":[{"queue":"orders","partition":"p1","transactionId":"0198f0aa-0000-7000-8000-000000000000","payload":{"text":"%s"}}]}`
	fill := proxyBody - len(around) + len("%s")
	return t.post("/api/v1/push", fmt.Appendf(nil, around, strings.Repeat("x", fill)))
}

func (w *world) pushes1KB(s scene) func(context.Context, time.Duration) (sample, error) {
	return w.on(s, func(ctx context.Context, st *stage, d time.Duration) (sample, error) {
		return st.requests(ctx, d, proxyConns, 0, st.target.push1KB(), 201)
	})
}

func (w *world) evenly(s scene) func(context.Context, time.Duration) (sample, error) {
	return w.on(s, func(ctx context.Context, st *stage, d time.Duration) (sample, error) {
		return st.requests(ctx, d, evenConns, evenRate, st.target.push1KB(), 201)
	})
}

func (w *world) handshakes(s scene) func(context.Context, time.Duration) (sample, error) {
	return w.on(s, func(ctx context.Context, st *stage, d time.Duration) (sample, error) {
		return st.measure(ctx, d, calls{workers: handshakeConns, call: func(int) error {
			c, err := st.target.dial()
			if err != nil {
				return err
			}
			return c.Close()
		}})
	})
}

// refusing measures at most half a minute: nginx has no rate below one a minute.
func (w *world) refusing(s scene) func(context.Context, time.Duration) (sample, error) {
	return w.on(s, func(ctx context.Context, st *stage, d time.Duration) (sample, error) {
		request := st.target.push1KB()
		c, err := st.target.dial()
		if err != nil {
			return sample{}, err
		}
		defer c.Close()
		// The one request that a rate allows.
		if _, _, err := c.do(request); err != nil {
			return sample{}, err
		}
		return st.requests(ctx, min(d, 30*time.Second), refusedConns, 0, request, 429)
	})
}

// parked measures what a proxy needs for polls that wait.
func (w *world) parked(s scene) func(context.Context, time.Duration) (sample, error) {
	return w.on(s, func(ctx context.Context, st *stage, d time.Duration) (out sample, err error) {
		if err := files(2*(gatewayPolls+firstGatewayPolls) + 1000); err != nil {
			return out, err
		}
		var polls crowd
		defer func() { polls.leave() }()
		memory := func(n int) (float64, error) {
			for len(polls) < n {
				c, err := st.target.dial()
				if err != nil {
					return 0, fmt.Errorf("poll %d: %w", len(polls), err)
				}
				polls = append(polls, c)
				path := fmt.Sprintf("/api/v1/pop/queue/parked-%d?wait=true&timeout=90000&consumerGroup=g", len(polls)%parkedQueues)
				if _, err := c.Write(st.target.get(path)); err != nil {
					return 0, err
				}
			}
			for {
				held, err := st.held()
				if err != nil {
					return 0, err
				}
				if held == n {
					break
				}
				if err := settle(ctx, 20*time.Millisecond); err != nil {
					return 0, fmt.Errorf("the upstream holds %d of %d polls: %w", held, n, err)
				}
			}
			if err := settle(ctx, d); err != nil { // what opening them needed is given back
				return 0, err
			}
			return privateMemory(st.proxy)
		}
		before, err := memory(firstGatewayPolls)
		if err != nil {
			return out, err
		}
		after, err := memory(firstGatewayPolls + gatewayPolls)
		if err != nil {
			return out, err
		}
		out.figures = []figure{
			{"private memory per poll among 4,500", "KB", (after - before) / gatewayPolls / 1024, 0, 0},
			{"private memory with 4,500 polls", "MB", after / (1 << 20), 0, 0},
		}
		return out, nil
	})
}
