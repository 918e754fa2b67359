package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// FailSyncs makes every fsync of a broker fail with EIO, by a tracer, until stop is called. seen reports whether one has
// failed.
func (l *Lab) FailSyncs(ctx context.Context, b *Broker) (stop func() error, seen func() (bool, string), err error) {
	stop = func() error { return nil }
	if _, err := exec.LookPath("strace"); err != nil {
		return stop, nil, fmt.Errorf("make syncs fail: %w", err)
	}
	out := filepath.Join(l.dir, "log", fmt.Sprintf("%s-strace.%d", b.Name, b.PID()))
	cmd := exec.Command("strace", "-f", "-qq", "-p", strconv.Itoa(b.PID()), "-o", out,
		"-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO")
	p, err := l.start(b.Name+"-strace", cmd)
	if err != nil {
		return stop, nil, err
	}
	p.Expect()
	stop = func() error { return p.stop(syscall.SIGINT, 5*time.Second) }
	// The broker may be under way to its next fsync before the tracer has it.
	for !traced(b.PID()) {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-p.Done():
			return stop, nil, errors.New("the tracer ended at once; see its log")
		case <-ctx.Done():
			return stop, nil, ctx.Err()
		}
	}
	seen = func() (bool, string) {
		b, err := os.ReadFile(out)
		n := strings.Count(string(b), "INJECTED")
		return err == nil && n > 0, fmt.Sprintf("%d syncs failed", n)
	}
	return stop, seen, nil
}

func traced(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && strings.Contains(string(b), "TracerPid:") && !strings.Contains(string(b), "TracerPid:\t0\n")
}
