package nem

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/queengate/queengate/deploy/rel/lab"
)

// postgres is N8: a session of a broker is killed, upon which PostgreSQL ends all of them and recovers, or the whole
// server is killed or stopped and comes back after a while.
func (n *Nemesis) postgres(f *fault) {
	pg := n.lab.Current()
	signal := map[string]syscall.Signal{"kill-9": syscall.SIGKILL, "immediate": syscall.SIGQUIT, "fast": syscall.SIGINT}[f.note.Action]
	if f.note.Action == "kill-backend" {
		f.inject = func(ctx context.Context) (string, error) { return killBackend(ctx, pg) }
		f.repair = func(ctx context.Context) error {
			if err := pg.Ready(ctx); err != nil {
				return err
			}
			return reach(ctx, n.lab.Brokers)
		}
		return
	}
	f.note.Outage = true
	f.inject = func(ctx context.Context) (string, error) {
		pid := pg.PID()
		if err := pg.Stop(ctx, signal); err != nil {
			return "", err
		}
		return fmt.Sprintf("postmaster %d and its sessions are gone", pid), nil
	}
	f.repair = func(ctx context.Context) error {
		if !pg.Alive() {
			if err := pg.Start(ctx); err != nil {
				return err
			}
		}
		return reach(ctx, n.lab.Brokers)
	}
}

// killBackend kills one session of a broker and returns when PostgreSQL has ended all.
func killBackend(ctx context.Context, pg *lab.Postgres) (string, error) {
	pids, err := pg.Backends(ctx)
	if err != nil {
		return "", err
	}
	if len(pids) == 0 {
		return "", fmt.Errorf("there is no session of a broker: %w", errNoEffect)
	}
	victim := pids[0]
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		return "", fmt.Errorf("kill the session %d: %w", victim, err)
	}
	return until(ctx, "sessions end", func() (bool, string) {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				return false, fmt.Sprintf("session %d is still there", pid)
			}
		}
		return true, fmt.Sprintf("with session %d all %d are gone", victim, len(pids))
	})
}

// cutTime is how long the primary goes on without its standby before it dies.
const cutTime = time.Second

// failover is N10: replication is cut, a second later the primary is killed, and its standby takes over on a new timeline.
// Commits of that second wait in vain for a synchronous standby, and are lost by design with an asynchronous one.
func (n *Nemesis) failover(f *fault) {
	f.note.Lossy = n.lab.Lossy()
	f.inject = func(ctx context.Context) (string, error) {
		n.lab.CutReplication()
		if !sleep(ctx, cutTime) {
			return "", ctx.Err()
		}
		if err := n.lab.Primary.Stop(ctx, syscall.SIGKILL); err != nil {
			return "", err
		}
		if err := n.lab.Promote(ctx); err != nil {
			return "", err
		}
		timeline, err := n.lab.Current().Query(ctx, `SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)`)
		if err != nil {
			return "", err
		}
		return n.lab.Current().Name + " is the primary, on timeline " + timeline, nil
	}
	f.repair = func(ctx context.Context) error { return reach(ctx, n.lab.Brokers) }
}
