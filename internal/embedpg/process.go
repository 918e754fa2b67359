package embedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a postmaster that we started.
type process struct {
	pid  int
	done chan struct{} // closed when it has ended
	err  error         // how; set before done is closed
}

// startProcess starts the program. Should this process die without stopping it, the kernel sends it SIGINT: a fast
// shutdown. That signal is bound to the starting thread, so one goroutine keeps the thread and waits on it.
func startProcess(program string, args []string, a account, log *os.File) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		// No context: it is stopped by a signal, never killed.
		cmd := a.command(context.Background(), program, args...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr.Pdeathsig = syscall.SIGINT
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		if p.err = cmd.Wait(); p.err == nil {
			p.err = errors.New("exit status 0")
		}
	}()
	return p, <-started
}

// end stops the process: fast, and after the budget at once. It returns when the process is gone.
func (p *process) end(budget time.Duration) error {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		select {
		case <-p.done:
			return nil
		default:
		}
		if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(budget):
		}
	}
	return fmt.Errorf("process %d does not end", p.pid)
}

// endOrphans ends every server process that an earlier crash left on the cluster, and removes the pid files of a dead
// one, whose number may by now be another program's. The data folder is ours, so none of them belongs to anybody.
//
// PostgreSQL guards a cluster by the pid file and by a shared memory segment named in it; removing the file removes
// the guard, so it happens only when no process works in the cluster.
func (s *Server) endOrphans() error {
	pidFile := filepath.Join(s.cluster, "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	postmaster, _ := strconv.Atoi(strings.TrimSpace(first)) // a torn file names nobody: 0 matches no process
	workers, unknown, err := s.workers()
	if err != nil {
		return err
	}
	for _, pid := range workers {
		if pid == postmaster {
			s.log.Warn("ending a PostgreSQL that an earlier crash left running", "pid", pid)
			if err := endProcess(pid, stopBudget, unix.SIGINT, unix.SIGQUIT); err != nil {
				return fmt.Errorf("end the PostgreSQL left by an earlier crash: %w", err)
			}
		}
	}
	// Its children end with it. Those of a killed one notice by themselves, but a long statement may keep one busy.
	for _, pid := range workers {
		if pid != postmaster {
			if err := endProcess(pid, stopBudget, unix.SIGQUIT, unix.SIGKILL); err != nil {
				return fmt.Errorf("end the PostgreSQL left by an earlier crash: %w", err)
			}
		}
	}
	if unknown {
		return nil // PostgreSQL itself judges the pid file
	}
	for _, name := range []string{pidFile, filepath.Join(s.socket, socketName), filepath.Join(s.socket, socketName+".lock")} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// workers returns the processes that work in the cluster: PostgreSQL makes the cluster the working directory of the
// postmaster and all its children. unknown is set when the system hides a process that might be one: PostgreSQL's, of
// the same user.
func (s *Server) workers() (pids []int, unknown bool, err error) {
	cluster, err := os.Stat(s.cluster)
	if err != nil {
		return nil, false, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, true, nil // no such file system: PostgreSQL judges
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		wd, err := os.Stat(filepath.Join("/proc", e.Name(), "cwd"))
		switch {
		case err == nil:
			if os.SameFile(wd, cluster) && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		case errors.Is(err, os.ErrPermission):
			var owner unix.Stat_t
			comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
			if err == nil && strings.HasPrefix(string(comm), "postgres") && unix.Stat(filepath.Join("/proc", e.Name()), &owner) == nil {
				unknown = unknown || int(owner.Uid) == s.account.uid
			}
		}
	}
	return pids, unknown, nil
}

// endProcess sends the first signal, and the second if the process outlives the budget; it returns when it is gone.
func endProcess(pid int, budget time.Duration, signals ...unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for _, sig := range signals {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); errors.Is(err, unix.ESRCH) {
			return nil
		} else if err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		deadline := time.Now().Add(budget)
		for left := budget; left > 0; left = time.Until(deadline) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if n > 0 {
				return nil
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("process %d: %w", pid, err)
			}
		}
	}
	return fmt.Errorf("process %d does not end", pid)
}
