package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"github.com/queengate/queengate/internal/launch"
)

// lone is a broker without tenancy, or a gateway, in a process of its own: what it costs is nobody else's.
type lone struct {
	cmd    *exec.Cmd
	addr   string // of its API; a gateway's over TLS
	plain  string // of a gateway's API without TLS
	ops    string
	client fasthttp.HostClient
	stderr bytes.Buffer
	began  time.Time // just before the process was started
}

// startLone starts `bin broker` on a database, with further variables, and returns at once.
func startLone(bin, dsn string, variables ...string) (*lone, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	ops, err := freeAddress()
	if err != nil {
		return nil, err
	}
	b := &lone{addr: addr, ops: ops, client: fasthttp.HostClient{Addr: addr}}
	b.cmd = exec.Command(bin, "broker", "--broker", addr, "--ops", ops)
	b.cmd.Env = append(launch.Environ(), "QUEENGATE_POSTGRES_DSN="+dsn, "QUEENGATE_BROKER_TENANCY=false", "QUEENGATE_BROKER_DRAIN_DELAY=0s", "QUEENGATE_LOG_LEVEL=warn")
	b.cmd.Env = append(b.cmd.Env, variables...)
	b.cmd.Stderr = &b.stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	b.began = time.Now()
	return b, b.cmd.Start()
}

// freeAddress finds a port of the loopback that nobody listens on. Somebody else may be quicker; then the start fails.
func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// stop interrupts the broker and waits for its end.
func (b *lone) stop() error {
	b.client.CloseIdleConnections()
	if err := b.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := b.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", b.cmd.Args[1], err, b.stderr.String())
	}
	return nil
}

// serving waits until a path is answered with a status below 300 and returns the time since the start.
func (b *lone) serving(ctx context.Context, path string) (time.Duration, error) {
	for {
		resp, err := http.Get("http://" + b.addr + path)
		if err == nil {
			took := time.Since(b.began)
			_, err = io.Copy(io.Discard, resp.Body)
			if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode < 300 {
				return took, nil
			}
		}
		if time.Since(b.began) > 30*time.Second || ctx.Err() != nil {
			return 0, fmt.Errorf("the broker does not serve: %w\n%s", err, b.stderr.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// memory is what a Go process occupies, in bytes: all of it, and what is alive in it.
type memory struct {
	resident, heap, stacks float64
}

func (m memory) minus(o memory) memory {
	return memory{m.resident - o.resident, m.heap - o.heap, m.stacks - o.stacks}
}

// memory reads the resident size as it is, and then has the garbage collected for the rest.
func (b *lone) memory() (m memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", b.cmd.Process.Pid))
	if err != nil {
		return m, err
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	if err != nil {
		return m, err
	}
	m.resident = pages * float64(os.Getpagesize())
	if _, err = b.get("/debug/pprof/heap?gc=1"); err != nil {
		return m, err
	}
	metrics, err := b.get("/metrics")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(metrics) {
		if v, ok := strings.CutPrefix(line, "go_memstats_heap_alloc_bytes "); ok {
			m.heap, err = strconv.ParseFloat(strings.TrimSpace(v), 64)
		} else if v, ok := strings.CutPrefix(line, "go_memstats_stack_inuse_bytes "); ok {
			m.stacks, err = strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// get asks the operators' port.
func (b *lone) get(path string) (string, error) {
	resp, err := http.Get("http://" + b.ops + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return string(text), err
}

// runTime returns the processor time of all threads that a process has now, to the nanosecond.
func runTime(pid int) (sum time.Duration) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	for _, t := range threads {
		text, err := os.ReadFile(t)
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(text))
		ns, _ := strconv.ParseInt(f[0], 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// eachProcess calls f with every process of the machine and the fields of its stat that follow the name: its state, its
// parent, …
func eachProcess(f func(pid int, fields []string)) {
	procs, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return
	}
	for _, p := range procs {
		text, err := os.ReadFile(p)
		if err != nil {
			continue // it has ended
		}
		// The name in parentheses may hold anything; the fields follow its last closing one.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
		pid, _ := strconv.Atoi(strings.Split(p, "/")[2])
		f(pid, fields)
	}
}

// files makes room for n open files, or says that there is none. The broker, which the bench starts, inherits the bound.
func files(n uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Cur >= n {
		return nil
	}
	if l.Max < n {
		return fmt.Errorf("this case needs %d open files and the system allows %d: raise `ulimit -Hn` or leave the case out with -only", n, l.Max)
	}
	l.Cur = l.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}
