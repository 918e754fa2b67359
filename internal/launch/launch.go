// Package launch runs the real queengate binary for end-to-end tests and benchmarks: builds it, starts `queengate up`
// on a data folder or one of its parts, waits until it is ready and stops or kills it.
package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Credentials is DIR/credentials.json as `up` writes it.
type Credentials struct {
	GatewayURL      string `json:"gateway_url"`
	GatewayHTTPSURL string `json:"gateway_https_url"`
	CAFile          string `json:"ca_file"`
	OpsURL          string `json:"ops_url"`
	BrokerURL       string `json:"broker_url"`
	PostgresDSN     string `json:"postgres_dsn"`
	Cluster         string `json:"cluster"`
	ClusterHost     string `json:"cluster_host"`
	APIKey          string `json:"api_key"`
	ReadKey         string `json:"read_key"`
	ProduceKey      string `json:"produce_key"`
	ConsumeKey      string `json:"consume_key"`
	AdminKey        string `json:"admin_key"`
}

// Build compiles cmd/queengate into dir and returns the path of the binary. flags go to go build.
func Build(ctx context.Context, dir string, flags ...string) (string, error) {
	bin := filepath.Join(dir, "queengate")
	args := append(append([]string{"build"}, flags...), "-o", bin, "github.com/queengate/queengate/cmd/queengate")
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
}

// Process is a running `queengate up`, or a part of it, which has no Credentials.
type Process struct {
	Credentials Credentials

	cmd    *exec.Cmd
	output *buffer
	exited chan struct{}
	err    error // of Wait; readable after exited is closed
}

// readyMark stands in the banner that `up` prints when it serves.
const readyMark = "is ready"

// Up starts `bin up --data dir` with further arguments and returns when the banner says that it is ready. All listen
// addresses default to free ports of the loopback. env is added to the environment.
func Up(ctx context.Context, bin, dir string, env []string, args ...string) (*Process, error) {
	all := []string{"up", "--data", dir}
	for _, f := range []string{"--http", "--https", "--ops", "--broker"} {
		if !contains(args, f) {
			all = append(all, f, "127.0.0.1:0")
		}
	}
	p, ready, err := begin(bin, env, append(all, args...))
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, ready); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "credentials.json"))
	if err == nil {
		err = json.Unmarshal(text, &p.Credentials)
	}
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("credentials: %w", err)
	}
	return p, nil
}

// Part starts `bin args…` (a broker, a gateway) and returns when the readiness at the operators' address, host:port,
// is green. env is added to the environment.
func Part(ctx context.Context, bin, ops string, env []string, args ...string) (*Process, error) {
	p, _, err := begin(bin, env, append(args, "--ops", ops))
	if err != nil {
		return nil, err
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	ready := make(chan struct{})
	go func() {
		tick := time.NewTicker(20 * time.Millisecond) // readiness is many parts' state and has no event
		defer tick.Stop()
		for {
			if green(asking, "http://"+ops+"/readyz") {
				close(ready)
				return
			}
			select {
			case <-asking.Done():
				return
			case <-tick.C:
			}
		}
	}()
	if err := p.await(ctx, ready); err != nil {
		return nil, err
	}
	return p, nil
}

func green(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Environ is the environment without what it says to Queengate: a system that is started to be looked at must not find the
// databases of the one that whoever looks at it works with.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "QUEENGATE_") || strings.HasPrefix(v, "QUEEN_") || strings.HasPrefix(v, "PG")
	})
}

// begin starts the binary; ready is closed when it prints the mark of `up`.
func begin(bin string, env, args []string) (p *Process, ready chan struct{}, err error) {
	cmd := exec.Command(bin, args...)
	cmd.Env = append(Environ(), env...)
	// A group of its own, so that a Ctrl-C at the terminal of a test run does not reach it twice.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p = &Process{cmd: cmd, output: &buffer{}, exited: make(chan struct{})}
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ready = make(chan struct{})
	go func() {
		p.err = cmd.Wait()
		w.Close() // the reader below ends with it
		close(p.exited)
	}()
	go func() {
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, 1<<20)
		seen := false
		for sc.Scan() {
			p.output.line(sc.Text())
			if !seen && strings.Contains(sc.Text(), readyMark) {
				seen = true
				close(ready)
			}
		}
		r.CloseWithError(sc.Err())
	}()
	return p, ready, nil
}

// await waits until the process is ready; one that is not in time is killed.
func (p *Process) await(ctx context.Context, ready <-chan struct{}) error {
	what := p.cmd.Args[1]
	select {
	case <-ready:
		return nil
	case <-p.exited:
		return fmt.Errorf("queengate %s ended before it was ready: %w\n%s", what, errOr(p.err), p.Output())
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("queengate %s was not ready in time: %w\n%s", what, ctx.Err(), p.Output())
	}
}

func errOr(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

func contains(args []string, flag string) bool {
	for _, a := range args {
		if a == flag {
			return true
		}
	}
	return false
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what the process has printed so far.
func (p *Process) Output() string { return p.output.String() }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Stop sends an interrupt and waits for the end; an exit status other than 0 is an error.
func (p *Process) Stop(ctx context.Context) error { return p.End(ctx, os.Interrupt) }

// End is Stop with another signal.
func (p *Process) End(ctx context.Context, sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return p.err
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("queengate %s did not stop in time\n%s", p.cmd.Args[1], p.Output())
	}
}

// Kill ends the process without warning and waits for its end. Its private PostgreSQL lives on until it notices.
func (p *Process) Kill() {
	p.cmd.Process.Kill() // an error means that it has ended already
	<-p.exited
}

type buffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (b *buffer) line(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const most = 1 << 20
	if b.text.Len() < most {
		b.text.WriteString(s)
		b.text.WriteByte('\n')
	}
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Deadline is a context for one start or stop in tests.
func Deadline(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
