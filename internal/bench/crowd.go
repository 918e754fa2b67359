package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/launch"
)

// Sizes of the case about polls through a gateway. A cluster may have 5,000 connections on one.
const (
	gatewayPolls      = 4_000
	firstGatewayPolls = 500 // before the memory is read first
)

// startGateway starts `bin gateway` for the clusters of the system that is up and a broker, with further variables.
func (w *world) startGateway(broker string, variables ...string) (*lone, error) {
	var addr [3]string
	for i := range addr {
		var err error
		if addr[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	key, err := datadir.CellKey(w.data)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.PrivateKey(key))
	if err != nil {
		return nil, err
	}
	c := w.up.Credentials
	certs := filepath.Dir(c.CAFile)
	g := &lone{addr: addr[1], plain: addr[0], ops: addr[2], client: fasthttp.HostClient{Addr: addr[1]}}
	g.cmd = exec.Command(w.bin, "gateway", "--http", addr[0], "--https", addr[1], "--ops", addr[2])
	g.cmd.Env = append(launch.Environ(), "QUEENGATE_POSTGRES_DSN="+c.PostgresDSN, "QUEENGATE_LOG_LEVEL=warn",
		"QUEENGATE_GATEWAY_CELL_KEY="+string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"QUEENGATE_GATEWAY_BROKERS=local="+broker,
		"QUEENGATE_TLS_CERT="+filepath.Join(certs, "localhost.pem"), "QUEENGATE_TLS_KEY="+filepath.Join(certs, "localhost.key"))
	g.cmd.Env = append(g.cmd.Env, variables...)
	g.cmd.Stderr = &g.stderr
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	g.began = time.Now()
	return g, g.cmd.Start()
}

// green waits until the readiness at the operators' port is.
func (b *lone) green(ctx context.Context) error {
	for time.Since(b.began) < 30*time.Second && ctx.Err() == nil {
		if _, err := b.get("/readyz"); err == nil {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("it does not get ready\n%s", b.stderr.String())
}

// holds waits until a gauge at the operators' port shows n.
func (b *lone) holds(ctx context.Context, gauge string, n int) error {
	for {
		metrics, err := b.get("/metrics")
		if err != nil {
			return err
		}
		if strings.Contains(metrics, fmt.Sprintf("\n%s %v\n", gauge, float64(n))) {
			return nil
		}
		if err := settle(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%s is not %d: %w", gauge, n, err)
		}
	}
}

// returns reads how often a process has given memory back.
func (b *lone) returns() (string, error) {
	metrics, err := b.get("/metrics")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(metrics) {
		if n, ok := strings.CutPrefix(line, "queengate_memory_returns_total "); ok {
			return n, nil
		}
	}
	return "", errors.New("it does not count how often it gives memory back")
}

// restLook lies between two questions whether a process has given memory back: an answer takes memory too.
const restLook = 4 * time.Second

// rest waits until a process that does nothing has given memory back once more than before, and reads its memory then.
func (b *lone) rest(ctx context.Context, before string) (memory, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		n, err := b.returns()
		if err == nil && n != before {
			return b.memory()
		}
		if err = errors.Join(err, settle(ctx, restLook)); err != nil {
			return memory{}, fmt.Errorf("it does not give memory back: %w", err)
		}
	}
}

// gatewayPollsCase measures a gateway of its own that holds polls of TLS clients at a broker.
func (w *world) gatewayPollsCase(ctx context.Context, d time.Duration) (s sample, err error) {
	if err := files(2*(gatewayPolls+firstGatewayPolls) + 1000); err != nil {
		return s, err
	}
	g, err := w.startGateway(w.up.Credentials.BrokerURL)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, g.stop()) }()
	if err := g.green(ctx); err != nil {
		return s, err
	}
	through := *w.gatewayTLS
	through.addr = g.addr
	var parked crowd
	defer func() { parked.leave() }()
	park := func(n int) error {
		for len(parked) < n {
			c, err := through.dial()
			if err != nil {
				return fmt.Errorf("poll %d: %w", len(parked), err)
			}
			parked = append(parked, c)
			if _, err := c.Write(through.get(fmt.Sprintf("/api/v1/pop/queue/parked-%d?wait=true&timeout=90000&consumerGroup=g", len(parked)%parkedQueues))); err != nil {
				return err
			}
		}
		return g.holds(ctx, "queengate_proxy_sleeping_polls", n)
	}
	// Twice: as the handshakes have left it, and when it has given back what lies spare.
	var come, rested [2]memory
	for i, n := range []int{firstGatewayPolls, firstGatewayPolls + gatewayPolls} {
		returns, err := g.returns()
		if err == nil {
			err = park(n)
		}
		if err == nil {
			come[i], err = g.memory()
		}
		if err == nil {
			rested[i], err = g.rest(ctx, returns)
		}
		if err != nil {
			return s, err
		}
	}
	cpu := runTime(g.cmd.Process.Pid)
	if err := settle(ctx, d); err != nil {
		return s, err
	}
	cpu = runTime(g.cmd.Process.Pid) - cpu
	per, just := rested[1].minus(rested[0]), come[1].minus(come[0])
	s.figures = []figure{
		{"d2: resident bytes of a gateway per parked TLS poll, with its side of the broker's connection", "KB", per.resident / gatewayPolls / 1024, 36, 27},
		{"the same just after they have come", "KB", just.resident / gatewayPolls / 1024, 0, 0},
		{"live heap per parked TLS poll", "KB", per.heap / gatewayPolls / 1024, 0, 0},
		{"stacks per parked TLS poll", "KB", per.stacks / gatewayPolls / 1024, 0, 0},
		{"CPU of a gateway with 4,500 polls", "cores", cpu.Seconds() / d.Seconds(), 0.1, 0.03},
	}
	return s, nil
}
