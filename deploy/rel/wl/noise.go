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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/queengate/queengate/deploy/rel/hist"
)

const (
	// soloTime is how long the victim of G6 is alone, and besideTime how long its neighbour makes noise.
	soloTime, besideTime = 5 * time.Second, 5 * time.Second
	// noisyRate is what the plan of the noisy tenant has; it offers more than fifty times of it.
	noisyRate, noisyOffer = 8, 560
	// crowded is how many requests a tenant without a rate has under way all the time.
	crowded = 160
)

// Neighbours is G6: a victim well within its plan, first alone, then beside a tenant that offers fifty times its own and
// comes with bad keys besides, from a process of its own.
func Neighbours() Workload {
	return neighbours("G6", hist.Limits{RequestRate: noisyRate, RequestBurst: noisyRate}, "-rate", strconv.Itoa(noisyOffer))
}

// Turns is G6 with a neighbour that no rate holds back: it has many requests under way all the time. In a cell whose brokers
// are far away and take few requests at a time, nothing but its turns is left to the victim.
func Turns() Workload {
	return neighbours("G6-turns", hist.Limits{}, "-crowd", strconv.Itoa(crowded))
}

func neighbours(name string, limits hist.Limits, offer ...string) Workload {
	victim, noisy := strings.ToLower(name)+"-victim", strings.ToLower(name)+"-noisy"
	w := Workload{Name: name, Clusters: []hist.Cluster{
		{Name: victim, Workload: name, Limits: hist.Limits{RequestRate: 100, RequestBurst: 200}},
		{Name: noisy, Workload: name, Limits: limits},
	}}
	var part atomic.Pointer[string]
	solo, beside := "solo", "beside"
	part.Store(&solo)
	for range 5 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[victim]
			a.produce(ctx, 90*time.Millisecond, func() {
				if now := part.Load(); now != nil {
					a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: victim, Does: hist.DoesPush, Messages: 1, Part: *now}, pushes("q", "p", 1, 50), 0)
				}
			})
		})
	}
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
		defer part.Store(nil)
		if !a.rest(ctx, soloTime) {
			return
		}
		part.Store(nil)
		ended, err := a.noise(ctx, noisy, offer)
		if err != nil {
			a.remark("the noisy tenant has no process: %v", err)
			return
		}
		if !a.rest(ctx, time.Second) {
			return
		}
		part.Store(&beside)
		text, err := ended()
		part.Store(nil)
		var o hist.OfferNote
		if err = errors.Join(err, json.Unmarshal(text, &o)); err != nil {
			a.remark("the noisy tenant's process: %v", err)
			return
		}
		o.Cluster = noisy
		a.rec.Note(hist.Offer, &o)
	})
	return w
}

// noise starts a process of this program that is the noisy tenant. ended waits for it and returns what it says.
func (a *Actor) noise(ctx context.Context, cluster string, offer []string) (ended func() ([]byte, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addrs := make([]string, len(a.stage.Nodes))
	for i, n := range a.stage.Nodes {
		addrs[i] = n.Addr
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"noise", "-gateways", strings.Join(addrs, ","), "-for", besideTime.String()}, offer...)...)
	cmd.Env = append(os.Environ(), NoiseKey+"="+a.stage.Tenants[cluster].Key)
	cmd.Stderr = os.Stderr
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() ([]byte, error) {
		err := cmd.Wait()
		return []byte(out.String()), err
	}, nil
}

// NoiseKey is the variable in which the noisy process finds its key.
const NoiseKey = "REL_NOISE_KEY"

// Noise is the noisy tenant: it sends so many requests a second to gateways for a time, over connections that it keeps, a
// tenth of them with a key that nobody knows, and returns how many there were.
func Noise(ctx context.Context, gateways []string, key string, rate int, lasts time.Duration) hist.OfferNote {
	const senders = 8
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	var sent, refused atomic.Int64
	var all sync.WaitGroup
	for i := range senders {
		all.Go(func() {
			tick := time.NewTicker(time.Second * senders / time.Duration(rate))
			defer tick.Stop()
			var c *line
			defer func() { c.close() }()
			for n := 0; ; n++ {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				if c == nil {
					c = dial(gateways[(i+n)%len(gateways)])
				}
				credential := key
				if n%10 == 0 {
					credential = "qk_rel_nobody"
				}
				status, err := c.get(lists, credential)
				if err != nil {
					c.close()
					c = nil
					continue
				}
				sent.Add(1)
				if status == http.StatusTooManyRequests || status == http.StatusUnauthorized {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	return hist.OfferNote{Requests: int(sent.Load()), Refused: int(refused.Load()), Seconds: lasts.Seconds()}
}

// Crowd is a noisy tenant that has so many requests under way all the time.
func Crowd(ctx context.Context, gateways []string, key string, crowd int, lasts time.Duration) hist.OfferNote {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	var mu sync.Mutex // guards took
	var took []time.Duration
	var all sync.WaitGroup
	for i := range crowd {
		all.Go(func() {
			c := dial(gateways[i%len(gateways)])
			defer func() { c.close() }()
			for ctx.Err() == nil {
				began := time.Now()
				status, err := c.get(lists, key)
				if err != nil {
					c.close()
					c = dial(gateways[i%len(gateways)])
				}
				if err != nil || status != http.StatusOK {
					continue
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	o := hist.OfferNote{Requests: len(took), Seconds: lasts.Seconds()}
	if len(took) > 0 {
		slices.Sort(took)
		o.MedianMs = float64(took[len(took)/2].Microseconds()) / 1000
	}
	return o
}

// line is a connection that is kept. A nil one is closed, and answers with an error.
type line struct {
	net.Conn
	in *bufio.Reader
}

func dial(addr string) *line {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil
	}
	return &line{c, bufio.NewReader(c)}
}

func (l *line) close() {
	if l != nil {
		_ = l.Close()
	}
}

func (l *line) get(path, credential string) (status int, err error) {
	if l == nil {
		return 0, net.ErrClosed
	}
	_ = l.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := fmt.Fprintf(l, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, credential); err != nil {
		return 0, err
	}
	res, err := http.ReadResponse(l.in, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	if err = errors.Join(err, res.Body.Close()); err == nil && res.Close {
		err = io.EOF
	}
	return res.StatusCode, err
}
