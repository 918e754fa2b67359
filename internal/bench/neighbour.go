package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/queengate/queengate/internal/bootstrap"
	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/wire"
)

// The cases about a tenant beside another one that offers far more than its plan allows.
const (
	neighbourRate  = 100              // requests per second of its plan
	neighbourOffer = 50               // times as much it offers
	neighbourConns = 64               // that it offers it on
	partitionRate  = 700              // new partitions per second that it makes, where it does
	victimRate     = 100              // pushes per second
	victimConns    = 4                // of the victim
	neighbourTime  = 10 * time.Second // at least: a percentile of a hundredth needs that many pushes
)

// noise is what a sender in a process of its own is told, as JSON in the environment.
type noise struct {
	Addr, CA  string // CA: file of the authority; "" is plain
	Head      string
	Queue     string
	PerSecond int
	Conns     int
	Makes     bool // each push goes to a new partition
}

// noiseVariable makes the bench such a sender.
const noiseVariable = "QUEENGATE_BENCH_NOISE"

// neighbours is invariant I2 of the reliability targets: the victim's 99th percentile is at most twice what it is alone,
// or 50 ms more, whichever is larger.
func (w *world) neighbours() group {
	return group{
		name: "neighbour", alone: true, prepare: w.moveIn,
		cases: []kase{
			{"gateway", "beside a tenant that offers 50 times its plan, both through the gateway over TLS", func(ctx context.Context, d time.Duration) (sample, error) {
				return w.disturb(ctx, d, w.gatewayTLS, w.neighbour.gatewayTLS, noise{PerSecond: neighbourRate * neighbourOffer})
			}},
			{"direct", "the same straight at the broker, which asks nobody for a rate", func(ctx context.Context, d time.Duration) (sample, error) {
				return w.disturb(ctx, d, w.broker, w.neighbour.broker, noise{PerSecond: neighbourRate * neighbourOffer})
			}},
			{"partitions", fmt.Sprintf("straight at the broker beside a tenant that makes %d partitions a second", partitionRate), func(ctx context.Context, d time.Duration) (sample, error) {
				return w.disturb(ctx, d, w.broker, w.neighbour.broker, noise{PerSecond: partitionRate, Makes: true})
			}},
		},
	}
}

// neighbour is a second tenant with a plan of its own.
type neighbour struct{ broker, gateway, gatewayTLS *target }

// moveIn makes the second tenant, once.
func (w *world) moveIn(ctx context.Context) error {
	if w.neighbour != nil {
		return nil
	}
	made, err := bootstrap.Bootstrap(ctx, w.db, bootstrap.Request{Tenant: "noisy", Cluster: "noisy", Plan: "pro", Cell: "local", Keys: bootstrap.DefaultKeys()})
	if err != nil {
		return err
	}
	_, err = w.db.Exec(ctx, `SELECT queengate.set_limit_override($1, $2)`, made.ClusterID,
		fmt.Sprintf(`{"max_req_per_sec":%d,"req_burst":%d,"max_msgs_per_sec":null,"msgs_burst":null,"max_retained_bytes":null}`, neighbourRate, neighbourRate))
	if err != nil {
		return err
	}
	key, err := datadir.CellKey(w.data)
	if err != nil {
		return err
	}
	now, rate := time.Now(), float64(neighbourRate)
	token, err := wire.SignCell(key, "local", wire.CellClaims{
		Subject: "bench", Tenant: made.BrokerTenant, Cluster: "noisy", Access: wire.AccessReadWrite, Expires: now.Add(2 * time.Hour),
		RequestsPerSecond: &rate,
	}, now)
	if err != nil {
		return err
	}
	full := slices.IndexFunc(made.Keys, func(k bootstrap.Key) bool { return k.Name == "full" })
	byKey := "Authorization: Bearer " + string(made.Keys[full].Plaintext) + "\r\n"
	host := func(t *target) string { return "Host: " + t.addr + "\r\n" }
	w.neighbour = &neighbour{
		broker: &target{w: w, addr: w.broker.addr, head: host(w.broker) + "Authorization: Bearer " + token + "\r\n" +
			wire.HeaderTenant + ": " + made.BrokerTenant.String() + "\r\n"},
		gateway:    &target{w: w, addr: w.gateway.addr, head: host(w.gateway) + byKey},
		gatewayTLS: &target{w: w, addr: w.gatewayTLS.addr, tls: w.gatewayTLS.tls, head: host(w.gatewayTLS) + byKey},
	}
	c, err := w.neighbour.gateway.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	for ctx.Err() == nil { // the gateway hears of it within two seconds
		status, _, err := c.do(w.neighbour.gateway.get("/api/v1/pop/queue/none"))
		if err != nil || status == 204 {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return ctx.Err()
}

// disturb measures the victim alone and beside the noise.
func (w *world) disturb(ctx context.Context, d time.Duration, victim, noisy *target, n noise) (s sample, err error) {
	d = max(d, neighbourTime)
	queue := fresh("victim")
	if err := victim.fill(queue, victimConns, victimConns); err != nil {
		return s, err
	}
	alone, err := victim.steady(ctx, queue, d)
	if err != nil {
		return s, err
	}
	stop, err := w.makeNoise(noisy, n)
	if err != nil {
		return s, err
	}
	beside, err := victim.steady(ctx, queue, d)
	if err = errors.Join(err, stop()); err != nil {
		return s, err
	}
	_, solo := percentiles(alone)
	_, disturbed := percentiles(beside)
	allowed := max(2*solo, solo+50*time.Millisecond)
	s.figures = []figure{
		{"p99 of a push beside the noise, of what is allowed: the larger of twice and 50 ms more than alone", "parts", float64(disturbed) / float64(allowed), 1, 1},
		{"p99 of a push beside the noise", "ms", ms(disturbed), 0, 0},
		{"p99 of a push alone", "ms", ms(solo), 0, 0},
		{"p99 beside the noise over p99 alone", "times", float64(disturbed) / float64(solo), 0, 0},
	}
	return s, nil
}

// steady pushes at the victim's rate, whatever the answers take, and returns how long each took since it was due.
func (t *target) steady(ctx context.Context, queue string, d time.Duration) ([]time.Duration, error) {
	conns, hangUp, err := t.connect(victimConns)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	took := make([][]time.Duration, victimConns)
	begin := time.Now()
	err = workers(victimConns, func(i int) error {
		m := t.pushRequest(queue, 1)
		m.lane(0, i)
		for n := i; ; n += victimConns {
			due := begin.Add(time.Duration(n) * time.Second / victimRate)
			if due.Sub(begin) > d {
				return nil
			}
			if err := sleepUntil(ctx, due); err != nil {
				return err
			}
			if err := conns[i].expect(201, "push", m.next(due)); err != nil {
				return err
			}
			took[i] = append(took[i], time.Since(due))
		}
	})
	return slices.Concat(took...), err
}

// makeNoise starts a sender in a process of its own, so that the victim's sender does not wait for it.
func (w *world) makeNoise(t *target, n noise) (stop func() error, err error) {
	n.Addr, n.Head, n.Queue, n.Conns = t.addr, t.head, fresh("noise"), neighbourConns
	if t.tls != nil {
		n.CA = w.up.Credentials.CAFile
	}
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), noiseVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() error {
		select {
		case err := <-ended:
			return fmt.Errorf("the noise has ended by itself: %w", err)
		default:
		}
		err := cmd.Process.Kill()
		<-ended // killed
		return err
	}, nil
}

// send pushes as often as it is told until the process is killed, whatever is answered. What cannot be sent in time is
// sent as soon as a connection is free.
func (n *noise) send() error {
	t := &target{addr: n.Addr, head: n.Head}
	if n.CA != "" {
		text, err := os.ReadFile(n.CA)
		if err != nil {
			return err
		}
		t.tls = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
		t.tls.RootCAs.AppendCertsFromPEM(text)
	}
	var due sync.Mutex
	next := time.Now()
	return workers(n.Conns, func(i int) error {
		m := t.pushRequest(n.Queue, 1)
		m.lane(0, i)
		for {
			c, err := t.dial()
			if err != nil {
				return err
			}
			for err == nil {
				due.Lock()
				at := next
				if late := time.Now().Add(-time.Second); at.Before(late) {
					at = late // it offers so much, and does not save up what it could not send
				}
				next = at.Add(time.Second / time.Duration(n.PerSecond))
				due.Unlock()
				time.Sleep(time.Until(at))
				request := m.next(time.Now())
				if n.Makes {
					request = t.post("/api/v1/push", fmt.Appendf(nil, `{"items":[{"queue":%q,"partition":"%d-%d","payload":0}]}`, n.Queue, i, at.UnixNano()))
				}
				_, _, err = c.do(request)
			}
			c.Close()
		}
	})
}
