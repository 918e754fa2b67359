package wl

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// Stage is where the threads of a run play: whom they may ask, from which seed, and how far the run has come.
type Stage struct {
	Rec     *hist.Writer
	Nodes   []Node // whom clients ask: brokers, or gateways in front of them
	Brokers []Node // all of whom must say the same in the end
	Seed    uint64
	// Tenants are those of the workloads' clusters, by their name, and Fleet is the system they play on. Both are for
	// workloads behind gateways.
	Tenants map[string]*lab.Tenant
	Fleet   *lab.Lab
	// Polls is how many empty polls of a second in a row end a consumer, and then once more after a lease.
	Polls int

	loading context.Context
	unload  context.CancelFunc
}

// NewStage returns a stage in the phase of load.
func NewStage(rec *hist.Writer, seed uint64, nodes, brokers []Node, polls int) *Stage {
	s := &Stage{Rec: rec, Nodes: nodes, Brokers: brokers, Seed: seed, Polls: polls}
	s.loading, s.unload = context.WithCancel(context.Background())
	return s
}

// Drain ends the load: producers stop, consumers empty their queues and stop.
func (s *Stage) Drain() { s.unload() }

// Loading reports whether the load goes on.
func (s *Stage) Loading() bool { return s.loading.Err() == nil }

// Workload is a set of queues and the threads that use them.
type Workload struct {
	Name     string // W1…
	Queues   []hist.Queue
	Clusters []hist.Cluster                      // behind gateways
	Prepare  func(context.Context, *Stage) error // what the system needs before, nil for nothing
	Threads  []func(context.Context, *Actor)
}

// Run plays all threads of workloads and returns when the last has ended: after Drain, or soon after ctx has ended.
func (s *Stage) Run(ctx context.Context, workloads []Workload) {
	var all sync.WaitGroup
	for _, w := range workloads {
		for i, thread := range w.Threads {
			all.Go(func() { thread(ctx, s.actor(w.Name, i+1)) })
		}
	}
	all.Wait()
}

// actor is the thread of a workload, with the randomness that belongs to it.
func (s *Stage) actor(w string, thread int) *Actor {
	h := fnv.New64a()
	_, _ = h.Write([]byte(w))
	return &Actor{
		Client: Client{rec: s.Rec, w: w, thread: thread}, stage: s,
		dice: rand.New(rand.NewPCG(s.Seed, h.Sum64()+uint64(thread))),
	}
}

// knownTime bounds the wait for gateways to hear of tenants.
const knownTime = 30 * time.Second

// Known waits until every gateway knows every tenant.
func (s *Stage) Known(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, knownTime)
	defer cancel()
	for _, n := range s.Nodes {
		for _, t := range s.Tenants {
			n.Header = "Authorization: Bearer " + t.Key + "\r\n"
			for {
				v := do(ctx, n, http.MethodGet, lists, nil, 0)
				if v.Status == http.StatusOK || v.Status == http.StatusTooManyRequests {
					break
				}
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
					return fmt.Errorf("%s does not get to know %s: status %d: %w", n.Name, t.Name, v.Status, ctx.Err())
				}
			}
		}
	}
	return nil
}

// Setup configures the queues of workloads, each on another node, and makes their partitions and groups be there.
func (s *Stage) Setup(ctx context.Context, workloads []Workload) error {
	for i, w := range workloads {
		if w.Prepare != nil {
			if err := w.Prepare(ctx, s); err != nil {
				return fmt.Errorf("prepare %s: %w", w.Name, err)
			}
		}
		a := s.actor(w.Name, 0)
		for j := range w.Queues {
			if err := a.configure(ctx, s.Nodes[(i+j)%len(s.Nodes)], &w.Queues[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Actor is one thread at work. It is for one goroutine.
type Actor struct {
	Client
	stage *Stage
	dice  *rand.Rand
	seq   int64
}

// anyone picks a node.
func (a *Actor) anyone() Node { return a.stage.Nodes[a.dice.IntN(len(a.stage.Nodes))] }

// mine is the thread's own node.
func (a *Actor) mine() Node { return a.stage.Nodes[a.thread%len(a.stage.Nodes)] }

// gateway picks a gateway and states the tenant's key, or another credential of it.
func (a *Actor) gateway(t *lab.Tenant, credential string) Node {
	n := a.anyone()
	if credential == "" {
		credential = t.Key
	}
	n.Header = "Authorization: Bearer " + credential + "\r\n"
	return n
}

// chance is true once in n times.
func (a *Actor) chance(percent int) bool { return a.dice.IntN(100) < percent }

// pause waits a time around d, and reports whether there is reason to go on.
func (a *Actor) pause(ctx context.Context, d time.Duration) bool {
	d = d/2 + time.Duration(a.dice.Int64N(int64(d)))
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// rest waits exactly d, and reports whether there is reason to go on.
func (a *Actor) rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// whileLoading is a context that ends when the load does.
func (a *Actor) whileLoading(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.stage.loading, cancel)
	return ctx, func() { stop(); cancel() }
}

// remark notes something for people.
func (a *Actor) remark(format string, args ...any) {
	a.rec.Note(hist.Remark, &hist.RemarkNote{Text: fmt.Sprintf(format, args...)})
}

// produce calls one over and over, every d or so, until the load ends.
func (a *Actor) produce(ctx context.Context, d time.Duration, one func()) {
	for a.stage.Loading() && a.pause(ctx, d) {
		one()
	}
}

// consume calls one over and over until the queue is drained: when the load has ended and Polls calls in a row reported
// nothing, one waits for a lease and then for as many again, since until then a message may be hidden by a claim whose
// answer was lost. one gets how long it may wait.
func (a *Actor) consume(ctx context.Context, lease time.Duration, one func(draining bool) (some bool)) {
	for empty, round := 0, 0; ctx.Err() == nil; {
		draining := !a.stage.Loading()
		switch {
		case one(draining) || !draining:
			empty = 0
		default:
			empty++
		}
		if empty < a.stage.Polls {
			continue
		}
		if round++; round == 2 {
			return
		}
		empty = 0
		select {
		case <-time.After(lease + 500*time.Millisecond):
		case <-ctx.Done():
		}
	}
}
