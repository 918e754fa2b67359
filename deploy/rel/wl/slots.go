package wl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// leave is a way to go away from a request that waits: it tells the other side, or not, and returns what is left to do once
// the client counts as gone.
type leave func(*net.TCPConn) (stay func())

// leaves are the ways to go. Over TLS each of them is an abort: nobody says goodbye there.
var leaves = map[string]leave{
	"fin": func(c *net.TCPConn) func() {
		_ = c.Close()
		return func() {}
	},
	"rst": func(c *net.TCPConn) func() {
		_ = c.SetLinger(0)
		_ = c.Close()
		return func() {}
	},
	// Half a close: the client says nothing more, and would still listen.
	"half-close": func(c *net.TCPConn) func() {
		_ = c.CloseWrite()
		return func() {
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	},
}

const (
	// parkedMost is how many polls the cluster of G2 may have waiting; more than that come.
	parkedMost = 60
	// A round is roundTime of the run's clock. At its begin come the polls of a process, at firstTime the others, and wait for
	// pollTime. Who hangs up waits from leaveFrom to leaveTo, until who was refused has been told and so that there is a time
	// of rest. At secondTime more come for what was left.
	roundTime             = 8 * time.Second
	firstTime             = 600 * time.Millisecond
	pollTime              = 6 * time.Second
	leaveFrom, leaveTo    = 2100 * time.Millisecond, 2900 * time.Millisecond
	secondTime, secondMs  = 5300 * time.Millisecond, 1300
	secondClients         = 20
	killedPolls, killTime = 6, 2500 * time.Millisecond
	slowAnswer, slowCount = 100_000, 60
	storm                 = "g2"
)

// Slots is G2: more polls than a plan has slots wait at all gateways, and go away in every way: to their end, with FIN,
// RST or half a close, over TLS without a word, with the process that they were of; and some clients read their answers
// slowly, or tear a handshake. All come and go together, so that there are times of rest in which the gauges of gateways and
// brokers can be held against the polls that wait. When the load is over, nothing more is held than was before it.
func Slots() Workload {
	w := Workload{
		Name: "G2", Clusters: []hist.Cluster{{Name: storm, Workload: "G2", Limits: hist.Limits{Parked: parkedMost}}},
		Prepare: warmUp,
	}
	for i := range parkedMost + parkedMost/6 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			a.rounds(ctx, firstTime+time.Duration(i)*5*time.Millisecond, a.waits)
		})
	}
	for range secondClients {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			a.rounds(ctx, secondTime, func(ctx context.Context) {
				a.ask(ctx, a.gateway(a.stage.Tenants[storm], ""), hist.AskArgs{Cluster: storm, Does: hist.DoesPoll, WaitMs: secondMs}, poll("empty", secondMs*time.Millisecond), 0)
			})
		})
	}
	w.Threads = append(w.Threads,
		func(ctx context.Context, a *Actor) { a.rounds(ctx, 0, a.killed) },
		func(ctx context.Context, a *Actor) { a.rounds(ctx, firstTime, a.readsSlowly) },
		func(ctx context.Context, a *Actor) {
			a.produce(ctx, 200*time.Millisecond, func() { a.tearsHandshake(ctx) })
		},
		func(ctx context.Context, a *Actor) {
			quiet, cancel := a.whileLoading(ctx)
			defer cancel()
			a.stage.Fleet.Parked(quiet, 200*time.Millisecond)
		},
		func(ctx context.Context, a *Actor) {
			quiet, cancel := a.whileLoading(ctx)
			defer cancel()
			<-quiet.Done()
			a.stage.Fleet.AtRest(ctx, true)
		})
	return w
}

// rounds calls one in every round of the load, so long after its begin, with a context that ends with the load.
func (a *Actor) rounds(ctx context.Context, after time.Duration, one func(context.Context)) {
	ctx, cancel := a.whileLoading(ctx)
	defer cancel()
	for a.rest(ctx, roundTime-a.rec.Now()%roundTime+after) {
		one(ctx)
	}
}

// waits is one poll, to its end or not.
func (a *Actor) waits(ctx context.Context) {
	at, patience, way := a.gateway(a.stage.Tenants[storm], ""), time.Duration(0), "end"
	if a.chance(50) {
		patience = leaveFrom + time.Duration(a.dice.Int64N(int64(leaveTo-leaveFrom)))
		way = []string{"fin", "rst", "half-close"}[a.dice.IntN(3)]
	}
	part := way
	if at.TLS = a.chance(40); at.TLS {
		part += " over TLS"
	}
	if at.Keep = a.chance(70); !at.Keep { // a gateway must then wait in another way
		part += ", closes"
	}
	args := hist.AskArgs{Cluster: storm, Does: hist.DoesPoll, WaitMs: int(pollTime.Milliseconds()), Part: part}
	a.askAndLeave(ctx, at, args, poll("empty", pollTime), patience, leaves[way])
}

// readsSlowly asks for a large answer, whose slot is free when it comes, and reads no more than its head.
func (a *Actor) readsSlowly(ctx context.Context) {
	at := a.gateway(a.stage.Tenants[storm], "")
	path := fmt.Sprintf("/api/v1/pop/queue/full?consumerGroup=slow%d&batch=%d&wait=true&timeout=%d&subscriptionMode=all", a.rec.Now(), slowCount, pollTime.Milliseconds())
	args := hist.AskArgs{Cluster: storm, Does: hist.DoesPoll, WaitMs: int(pollTime.Milliseconds()), Part: "slow reader"}
	op := a.rec.Invoke(hist.Call{W: a.w, Client: a.thread, Node: at.Name, F: hist.Ask}, &args)
	c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", at.Addr)
	if err != nil {
		op.Complete(hist.Fail, 0, &hist.AskAnswer{}, err)
		return
	}
	defer func() { _ = c.Close() }()
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, at.Addr, at.Header)
	res, err := http.ReadResponse(bufio.NewReaderSize(c, 1<<10), nil)
	if err != nil {
		op.Complete(hist.Info, 0, &hist.AskAnswer{}, err)
		return
	}
	op.Complete(hist.OK, res.StatusCode, &hist.AskAnswer{}, nil)
	if n := res.ContentLength; n >= 0 && n < slowAnswer*slowCount {
		a.remark("there are only %d bytes to be read slowly", n)
	}
	a.rest(ctx, pollTime)
}

// tearsHandshake says the first bytes of one, and no more.
func (a *Actor) tearsHandshake(ctx context.Context) {
	c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", a.anyone().Secure)
	if err != nil {
		return // a gateway may be dead
	}
	_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1, 0})
	a.pause(ctx, 50*time.Millisecond)
	if a.chance(50) {
		_ = c.(*net.TCPConn).SetLinger(0)
	}
	_ = c.Close()
}

// warmUp has as many polls at every gateway as there are in the storm, pushes what is read slowly, and notes what the
// processes hold when the polls are over.
func warmUp(ctx context.Context, s *Stage) error {
	t := s.Tenants[storm]
	var all sync.WaitGroup
	for _, n := range s.Nodes {
		for range parkedMost / len(s.Nodes) {
			all.Go(func() {
				do(ctx, n, http.MethodGet, "/api/v1/pop/queue/warm?consumerGroup=g&wait=true&timeout=1000", nil, time.Second)
			})
		}
	}
	var err error
	for i := range slowCount / 10 {
		n := s.Nodes[i%len(s.Nodes)]
		n.Header = "Authorization: Bearer " + t.Key + "\r\n"
		r := pushes("full", "p", 10, slowAnswer)
		if v := do(ctx, n, r.method, r.path, r.body, 0); v.Status > 299 || v.err != nil {
			err = errors.Join(err, fmt.Errorf("push what is to be read slowly: status %d: %w", v.Status, v.err))
		}
	}
	all.Wait()
	s.Fleet.AtRest(ctx, false)
	return err
}

// killed starts a process that has some polls waiting, and kills it in their middle.
func (a *Actor) killed(ctx context.Context) {
	self, err := os.Executable()
	if err != nil {
		a.remark("the program does not know itself: %v", err)
		return
	}
	node := a.anyone()
	args := hist.AskArgs{Cluster: storm, Does: hist.DoesPoll, WaitMs: int(pollTime.Milliseconds()), Part: "kill-9"}
	cmd := exec.CommandContext(ctx, self, "polls", "-gateway", node.Addr, "-n", strconv.Itoa(killedPolls), "-for", pollTime.String())
	cmd.Env = append(os.Environ(), NoiseKey+"="+a.stage.Tenants[storm].Key)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		a.remark("the process of polls: %v", err)
		return
	}
	var ops [killedPolls]*hist.Open
	for i := range ops {
		op := a.rec.Invoke(hist.Call{W: a.w, Client: a.thread*100 + i, Node: node.Name, F: hist.Ask}, &args)
		ops[i] = &op
	}
	if err := cmd.Start(); err != nil {
		for _, op := range ops {
			op.Complete(hist.Fail, 0, &hist.AskAnswer{}, err)
		}
		return
	}
	kill := time.AfterFunc(killTime, func() { _ = cmd.Process.Kill() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var e ended
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Poll >= killedPolls || ops[e.Poll] == nil {
			continue
		}
		ops[e.Poll].Complete(e.Kind, e.Status, &hist.AskAnswer{Limit: e.Limit}, nil)
		ops[e.Poll] = nil
	}
	_ = cmd.Wait() // it was killed
	kill.Stop()
	for _, op := range ops {
		if op != nil {
			op.Complete(hist.Info, 0, &hist.AskAnswer{}, errHungUp)
		}
	}
}

// ended is what the process of polls says of one that has ended.
type ended struct {
	Poll   int       `json:"poll"`
	Kind   hist.Kind `json:"kind"`
	Status int       `json:"status"`
	Limit  string    `json:"limit"`
}

// Polls is the process of polls: it has n of them waiting at a gateway, and says how each has ended.
func Polls(ctx context.Context, gateway, key string, n int, wait time.Duration, say io.Writer) {
	var all sync.WaitGroup
	var mu sync.Mutex // guards say
	for i := range n {
		all.Go(func() {
			r := poll("empty", wait)
			s := do(ctx, Node{Addr: gateway, Header: "Authorization: Bearer " + key + "\r\n", Keep: true}, r.method, r.path, nil, wait)
			e := ended{Poll: i, Kind: hist.Outcome(s.Seen), Status: s.Status}
			if strings.Contains(string(s.body), `"parked"`) {
				e.Limit = "parked"
			}
			mu.Lock()
			defer mu.Unlock()
			_ = json.MarshalWrite(say, &e)
			_, _ = say.Write([]byte("\n"))
		})
	}
	all.Wait()
}
