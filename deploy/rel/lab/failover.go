package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Current is the server that is the primary now.
func (l *Lab) Current() *Postgres {
	if l.promoted {
		return l.Standby
	}
	return l.Primary
}

// Lossy reports whether a failover may lose commits.
func (l *Lab) Lossy() bool { return l.cfg.Standby == AsyncStandby }

// CutReplication takes the primary from its standby.
func (l *Lab) CutReplication() { l.replication.Set(Weather{Cut: true}) }

// Promote makes the standby the primary. The old one must be gone.
func (l *Lab) Promote(ctx context.Context) error {
	switch {
	case l.Standby == nil || l.promoted:
		return errors.New("there is no standby to promote")
	case l.Primary.Alive():
		return errors.New("the old primary is alive: two would be written to")
	}
	if err := l.Standby.Promote(ctx); err != nil {
		return err
	}
	l.promoted = true
	return l.Standby.Ready(ctx)
}

// Stop stops the server: fast (sessions are ended) with SIGINT, immediate (as a crash) with SIGQUIT, and as by the
// kernel with SIGKILL. It returns when the server is gone and every process of it: one that outlives its postmaster
// holds the data folder.
func (p *Postgres) Stop(ctx context.Context, s syscall.Signal) error {
	left, err := children(p.PID())
	if err != nil {
		return err
	}
	if err := p.End(ctx, s); err != nil {
		return err
	}
	for len(left) > 0 {
		if syscall.Kill(left[0], 0) != nil {
			left = left[1:]
			continue
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("process %d of %s outlives its postmaster: %w", left[0], p.Name, ctx.Err())
		}
	}
	return nil
}

// children lists the processes that a process has started and that live.
func children(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		_, rest, ok := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if !ok || len(f) < 2 || f[1] != strconv.Itoa(pid) {
			continue
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, child)
	}
	return pids, nil
}
