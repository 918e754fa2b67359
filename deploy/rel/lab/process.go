package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Process is one that the lab started. Its output goes to log/NAME.log in the folder of the run.
type Process struct {
	Name string

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and its end is noted

	mu       sync.Mutex // guards all below
	expected bool
	code     int
	signal   string
}

// service is a process that may end and be started again. Its methods speak of the one that was started last, and are
// safe for concurrent use; before the first start nothing is alive.
type service struct{ now atomic.Pointer[Process] }

// none stands for a process before there is one.
var none = func() *Process {
	p := &Process{Name: "none", done: make(chan struct{})}
	close(p.done)
	return p
}()

func (s *service) process() *Process {
	if p := s.now.Load(); p != nil {
		return p
	}
	return none
}

// PID is the process id, 0 before the first start.
func (s *service) PID() int { return s.process().PID() }

// Alive reports whether the process has not ended.
func (s *service) Alive() bool { return s.process().Alive() }

// Done is closed when the process has ended.
func (s *service) Done() <-chan struct{} { return s.process().Done() }

// Signal sends a signal. To one that ended it is no error.
func (s *service) Signal(sig syscall.Signal) error { return s.process().Signal(sig) }

// End sends a signal that ends the process, and waits for its end.
func (s *service) End(ctx context.Context, sig syscall.Signal) error {
	return s.process().End(ctx, sig)
}

// Code is the exit code of a process that has ended, -1 when a signal has ended it.
func (s *service) Code() int {
	p := s.process()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code
}

// State is the kernel's letter for the state of the process: R, S, T for stopped, "" when it is gone.
func (s *service) State() string { return s.process().State() }

// await waits until the process answers 200 at url.
func (s *service) await(ctx context.Context, name, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		status, err := get(ctx, url)
		if status == http.StatusOK {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.Done():
			return fmt.Errorf("%s ended while it started; see its log", name)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s (last answer %d): %w", name, status, errors.Join(ctx.Err(), err))
		}
	}
}

func (s *service) stop(sig syscall.Signal, patience time.Duration) error {
	return s.process().stop(sig, patience)
}

// spawner starts processes on one thread that lives as long as the harness: a process ends with the thread that made it.
var spawner = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// start runs cmd, notes its end, and tells the lab when nobody had asked for it.
func (l *Lab) start(name string, cmd *exec.Cmd) (*Process, error) {
	out, err := os.OpenFile(filepath.Join(l.dir, "log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // a Ctrl-C at the terminal is for the harness
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), out.Close())
	}
	p := &Process{Name: name, cmd: cmd, done: make(chan struct{})}
	go l.await(p, out)
	return p, nil
}

func (l *Lab) await(p *Process, out io.Closer) {
	err := p.cmd.Wait()
	state := p.cmd.ProcessState
	p.mu.Lock()
	p.code = state.ExitCode()
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		p.signal = s.Signal().String()
	}
	note := hist.ExitNote{Process: p.Name, Code: p.code, Signal: p.signal, Expected: p.expected}
	p.mu.Unlock()
	_ = out.Close()
	l.rec.Note(hist.Exit, &note)
	if !note.Expected {
		l.broke(fmt.Errorf("%s ended on its own (%w); see its log", p.Name, errOr(err, state.String())))
	}
	close(p.done)
}

func errOr(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// PID is the process id.
func (p *Process) PID() int {
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Alive reports whether the process has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Expect says that the end of the process, if it comes, is wanted.
func (p *Process) Expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
}

// Signal sends a signal. To one that ended it is no error.
func (p *Process) Signal(s syscall.Signal) error {
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// End sends a signal that ends the process, and waits for its end.
func (p *Process) End(ctx context.Context, s syscall.Signal) error {
	p.Expect()
	if err := p.Signal(s); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (p *Process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.Name, ctx.Err())
	}
}

// stop ends the process in the given way, by force when that takes longer than patience.
func (p *Process) stop(s syscall.Signal, patience time.Duration) error {
	if !p.Alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = p.Signal(syscall.SIGCONT)
	err := p.End(ctx, s)
	if err == nil {
		return nil
	}
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, p.End(ctx, syscall.SIGKILL))
}

// State is the kernel's letter for the state of the process: R, S, T for stopped, "" when it is gone.
func (p *Process) State() string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return ""
	}
	for i := len(b) - 1; i > 0; i-- { // the name, in parentheses, may hold anything
		if b[i] == ')' && i+2 < len(b) {
			return string(b[i+2 : i+3])
		}
	}
	return ""
}
