package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// scene is a proxy and how it is set up. Whatever is measured is measured on processes that were started for it.
type scene struct {
	proxy string // gateway or the name of a rival; "": none, the load goes straight to the upstream
	plain bool   // no TLS
	mode  string // of the gateway's quotas; "" is local
	spent bool   // the tenant has no request left
	procs int    // goroutines that the gateway runs at once; 0: as it likes
}

// stage is a scene that stands.
type stage struct {
	target                 *target
	proxy, upstream, redis []int               // processes
	held                   func() (int, error) // polls at the upstream
	deaf                   bool                // the proxy does not hear clients hang up
	profile                func(d time.Duration) (finish func() error)
	stops                  []func() error
}

// on runs f on a stage of its own.
func (w *world) on(s scene, f func(ctx context.Context, st *stage, d time.Duration) (sample, error)) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (out sample, err error) {
		st := &stage{}
		defer func() {
			for _, stop := range slices.Backward(st.stops) {
				err = errors.Join(err, stop())
			}
		}()
		if err := w.build(ctx, s, st); err != nil {
			return out, err
		}
		return f(ctx, st, d)
	}
}

func (w *world) build(ctx context.Context, s scene, st *stage) error {
	certs := filepath.Dir(w.up.Credentials.CAFile)
	cert, key := filepath.Join(certs, "localhost.pem"), filepath.Join(certs, "localhost.key")
	u, err := startUpstream(cert, key)
	if err != nil {
		return err
	}
	st.stops = append(st.stops, u.stop)
	st.upstream = []int{u.pid()}
	st.held = u.polls
	st.profile = unprofiled
	tenant := w.tenants.busy
	if s.spent {
		tenant = w.tenants.spent
	}
	t := &target{w: w, tls: w.rivalTLS()}
	if s.plain {
		t.tls, cert, key = nil, "", ""
	}
	st.target = t
	switch s.proxy {
	case "":
		if t.addr = u.secure; s.plain {
			t.addr = u.plain
		}
	case "gateway":
		g, err := w.stageGateway(ctx, s, st, u)
		if err != nil {
			return err
		}
		if t.addr = g.addr; s.plain {
			t.addr = g.plain
		}
	default:
		c, addr, err := rivals[s.proxy].start(front{Upstream: u.plain, Cert: cert, Key: key, Spent: s.spent})
		if err != nil {
			return err
		}
		st.stops = append(st.stops, c.stop)
		st.target.addr, st.deaf = addr, rivals[s.proxy].self
		if err := st.serves(ctx, c); err != nil {
			return err
		}
		// nginx listens before it has started its workers.
		for st.proxy = family(c.pid()); len(st.proxy) <= rivals[s.proxy].workers; st.proxy = family(c.pid()) {
			if err := settle(ctx, time.Millisecond); err != nil {
				return err
			}
		}
	}
	t.head = "Host: " + t.addr + "\r\n" + tenant
	return nil
}

// unprofiled is for a proxy that has no profile.
func unprofiled(time.Duration) (finish func() error) { return func() error { return nil } }

// stageGateway starts a gateway before the upstream, with a Redis of its own when its mode wants one.
func (w *world) stageGateway(ctx context.Context, s scene, st *stage, u *upstreamProcess) (*lone, error) {
	mode := s.mode
	if mode == "" {
		mode = "local"
	}
	variables := []string{"QUEENGATE_QUOTA_MODE=" + mode}
	if s.procs > 0 {
		variables = append(variables, fmt.Sprint("GOMAXPROCS=", s.procs))
	}
	if mode != "local" {
		c, socket, err := startRedis()
		if err != nil {
			return nil, err
		}
		st.stops = append(st.stops, c.stop)
		st.redis = []int{c.pid()}
		if err := reached(ctx, c, "unix", socket); err != nil {
			return nil, err
		}
		variables = append(variables, "QUEENGATE_REDIS_URL=unix://"+socket)
	}
	g, err := w.startGateway("http://"+u.plain, variables...)
	if err != nil {
		return nil, err
	}
	st.stops = append(st.stops, g.stop)
	st.proxy = []int{g.cmd.Process.Pid}
	st.profile = func(d time.Duration) func() error { return w.profile("http://"+g.ops, d) }
	return g, g.green(ctx)
}

func startRedis() (c *child, socket string, err error) {
	bin, err := program("redis-server")
	if err != nil {
		return nil, "", err
	}
	dir, err := os.MkdirTemp("", "queengate-bench-redis-")
	if err != nil {
		return nil, "", err
	}
	socket = filepath.Join(dir, "redis.sock")
	c, err = startChild(exec.Command(bin, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir), dir)
	if err != nil {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return c, socket, err
}

// serves waits until the proxy takes connections of the target.
func (st *stage) serves(ctx context.Context, c *child) error {
	if err := reached(ctx, c, "tcp", st.target.addr); err != nil {
		return err
	}
	conn, err := st.target.dial()
	if err != nil {
		return err
	}
	return conn.Close()
}

// clocks are the processor times of those who take part.
type clocks struct{ proxy, upstream, redis, loader time.Duration }

func (st *stage) clocks() clocks {
	sum := func(pids []int) (all time.Duration) {
		for _, pid := range pids {
			all += runTime(pid)
		}
		return all
	}
	return clocks{sum(st.proxy), sum(st.upstream), sum(st.redis), runTime(os.Getpid())}
}

// settleIn is how long a load runs before it counts: connections, caches and heaps have found their sizes then.
const settleIn = 500 * time.Millisecond

// calls is a load of calls from workers side by side, each of which calls again when it has its answer.
type calls struct {
	workers   int
	perSecond int // at an even rate, whatever the answers do; 0: as fast as they come
	call      func(worker int) error
}

// measure runs the load for d, and a little before that.
func (st *stage) measure(ctx context.Context, d time.Duration, c calls) (s sample, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	began := time.Now()
	from := began.Add(settleIn)
	until := from.Add(d)
	var before, after clocks
	clocked := make(chan error, 1)
	go func() {
		err := sleepUntil(ctx, from)
		finish := st.profile(d)
		before = st.clocks()
		err = errors.Join(err, sleepUntil(ctx, until))
		after = st.clocks()
		clocked <- errors.Join(err, finish())
	}()
	watched, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	var m *machine
	if c.perSecond > 0 {
		m = watchMachine(watched)
	}
	flights := make([][]flight, c.workers)
	err = workers(c.workers, func(i int) error {
		for n := i; ctx.Err() == nil; n += c.workers {
			at := time.Now()
			if c.perSecond > 0 {
				// Who comes too late because of the answer before counts from when the call was due; who was woken late,
				// from then on, since that is the loader's clock.
				if due := began.Add(time.Duration(n) * time.Second / time.Duration(c.perSecond)); due.Before(at) {
					at = due
				} else {
					if err := sleepUntil(ctx, due); err != nil {
						return err
					}
					at = time.Now()
				}
			}
			if !at.Before(until) {
				return nil
			}
			if err := c.call(i); err != nil {
				end(err)
				return err
			}
			// Of an even rate everything counts that was due, however late its answer was.
			if now := time.Now(); !at.Before(from) && (c.perSecond > 0 || !now.After(until)) {
				flights[i] = append(flights[i], flight{at, now.Sub(at)})
			}
		}
		return ctx.Err()
	})
	if err = errors.Join(err, <-clocked); ctx.Err() != nil {
		return s, context.Cause(ctx) // and nothing that follows from it
	} else if err != nil {
		return s, err
	}
	all := slices.Concat(flights...)
	if len(all) == 0 {
		return s, errors.New("nothing was answered")
	}
	per := func(d time.Duration) time.Duration { return d / time.Duration(len(all)) }
	s.rate = float64(len(all)) / d.Seconds()
	s.p50, s.p99 = percentiles(undisturbed(all, nil))
	if stopWatch(); m != nil {
		calm := undisturbed(all, m.slow())
		s.calm = float64(len(calm)) / float64(len(all))
		s.calm50, s.calm99 = percentiles(calm)
	}
	s.ours, s.upstream = per(after.proxy-before.proxy), per(after.upstream-before.upstream)
	s.redis, s.loader = per(after.redis-before.redis), per(after.loader-before.loader)
	return s, nil
}

// requests is a load of the same request on connections that stay.
func (st *stage) requests(ctx context.Context, d time.Duration, n, perSecond int, request []byte, status int) (sample, error) {
	conns, hangUp, err := st.target.connect(n)
	if err != nil {
		return sample{}, err
	}
	defer hangUp()
	return st.measure(ctx, d, calls{workers: n, perSecond: perSecond, call: func(i int) error {
		return conns[i].expect(status, "request", request)
	}})
}

// polls asks an upstream how many it holds.
func (u *upstreamProcess) polls() (n int, err error) {
	t := &target{addr: u.plain}
	c, err := t.dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_, text, err := c.do(t.get(heldPath))
	if err == nil {
		_, err = fmt.Sscan(string(text), &n)
	}
	return n, err
}
