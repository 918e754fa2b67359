package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/queengate/queengate/migrations"
)

// cellDatabase is the database that the brokers of the cases about a cell share.
const cellDatabase = "cell"

// cells is what several brokers on one PostgreSQL cost and give, and what a push costs whose database is slow or away.
func (w *world) cells() group {
	one, hundred := production{producers: producers, batch: 1}, production{producers: producers, batch: 100}
	push := func(brokers int, p production) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) {
			return w.together(ctx, brokers, true, func(all []*lone) (sample, error) { return w.spreadPush(ctx, all, p, d) })
		}
	}
	wake := func(brokers int, mesh bool) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, _ time.Duration) (sample, error) {
			return w.together(ctx, brokers, mesh, func(all []*lone) (s sample, err error) {
				times, err := all[0].wakeLatency(ctx, all[len(all)-1])
				if err != nil {
					return s, err
				}
				s.p50, s.p99 = milliseconds(times.percent(50)), milliseconds(times.percent(99))
				return s, nil
			})
		}
	}
	return group{
		name: "cell",
		cases: []kase{
			{"push-b1-brokers1", "push of 1, 64 producers, one broker", push(1, one)},
			{"push-b1-brokers2", "the same over two brokers with the mesh", push(2, one)},
			{"push-b1-brokers3", "over three", push(3, one)},
			{"push-b1-standby", "one broker, PostgreSQL waits for a standby", w.confirmed(push(1, one))},
			{"push-b1-spool", "one broker, pushes go to the spool", w.spooled(one)},
			{"push-b100-brokers1", "push of 100, 64 producers, one broker", push(1, hundred)},
			{"push-b100-brokers2", "over two brokers", push(2, hundred)},
			{"push-b100-brokers3", "over three", push(3, hundred)},
			{"push-b100-spool", "one broker, pushes go to the spool", w.spooled(hundred)},
			{"wake-same", "a poll is woken by a push to its broker: latency over the push", wake(1, true)},
			{"wake-mesh", "by a push to another broker, with the mesh", wake(2, true)},
			{"wake-feed", "by a push to another broker, without the mesh", wake(2, false)},
		},
		ratios: []ratio{
			{"push of 1, two brokers / one", "push-b1-brokers2", "push-b1-brokers1", 0, 0},
			{"push of 1, three brokers / one", "push-b1-brokers3", "push-b1-brokers1", 0, 0},
			{"push of 100, two brokers / one", "push-b100-brokers2", "push-b100-brokers1", 0, 0},
			{"push of 100, three brokers / one", "push-b100-brokers3", "push-b100-brokers1", 0, 0},
			{"push of 1, with a standby that confirms / without", "push-b1-standby", "push-b1-brokers1", 0, 0},
			{"push of 1, into the spool / into the database", "push-b1-spool", "push-b1-brokers1", 0, 0},
			{"push of 100, into the spool / into the database", "push-b100-spool", "push-b100-brokers1", 0, 0},
		},
		bounds: []bound{
			{"wake on another broker with the mesh, p50 ms", "wake-mesh", func(s sample) float64 { return ms(s.p50) }, 50, 5},
			{"without it, p50 ms", "wake-feed", func(s sample) float64 { return ms(s.p50) }, 1000, 1000},
		},
	}
}

func milliseconds(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }

// openCell makes the database on the first call and returns its address.
func (w *world) openCell(ctx context.Context) (string, error) {
	if w.cellDSN != "" {
		return w.cellDSN, nil
	}
	if _, err := w.db.Exec(ctx, "CREATE DATABASE "+cellDatabase); err != nil {
		return "", err
	}
	cfg := w.db.Config().ConnConfig.Copy()
	cfg.Database = cellDatabase
	if err := migrations.Apply(ctx, cfg, migrations.Broker); err != nil {
		return "", err
	}
	w.cellDSN = fmt.Sprintf("host='%s' port=%d user=%s dbname=%s", cfg.Host, cfg.Port, cfg.User, cellDatabase)
	return w.cellDSN, nil
}

// together runs f with n fresh brokers that serve one database.
func (w *world) together(ctx context.Context, n int, mesh bool, f func([]*lone) (sample, error)) (s sample, err error) {
	dsn, err := w.openCell(ctx)
	if err != nil {
		return s, err
	}
	variables := make([][]string, n)
	if mesh && n > 1 {
		var peers string
		ports := make([]string, n)
		for i := range ports {
			if ports[i], err = freeAddress(); err != nil {
				return s, err
			}
			peers += ports[i] + ","
		}
		for i := range variables {
			variables[i] = []string{
				"QUEENGATE_MESH_ADDR=" + ports[i], "QUEENGATE_MESH_PEERS=" + peers[:len(peers)-1], "QUEENGATE_MESH_SECRET=a secret of the bench alone",
			}
		}
	}
	return w.started(ctx, dsn, variables, f)
}

// started runs f with a broker for each set of variables.
func (w *world) started(ctx context.Context, dsn string, variables [][]string, f func([]*lone) (sample, error)) (s sample, err error) {
	var all []*lone
	defer func() {
		w.beside = nil
		for _, b := range all {
			err = errors.Join(err, b.stop())
		}
	}()
	for _, v := range variables {
		b, err := startLone(w.bin, dsn, v...)
		if err != nil {
			return s, err
		}
		all = append(all, b)
	}
	for _, b := range all {
		if _, err := b.serving(ctx, "/readyz"); err != nil {
			return s, err
		}
	}
	w.beside = all
	return f(all)
}

// spreadPush shares the producers of a push load among brokers.
func (w *world) spreadPush(ctx context.Context, all []*lone, p production, d time.Duration) (sample, error) {
	queue := fresh("cell")
	share := p
	share.producers = p.producers / len(all)
	parts := make([]sample, len(all))
	var targets []*target
	for _, b := range all {
		t, err := newTarget(w, "http://"+b.addr, nil, "")
		if err != nil {
			return sample{}, err
		}
		targets = append(targets, t)
	}
	// Every broker's producers have partitions of their own, as the gateway's routing by tenant or queue sees to.
	for i, t := range targets {
		if err := t.fill(fmt.Sprint(queue, i), share.producers, share.producers); err != nil {
			return sample{}, err
		}
	}
	at := w.open()
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for i, t := range targets {
		wg.Go(func() { parts[i], errs[i] = t.pushOn(ctx, fmt.Sprint(queue, i), share, d) })
	}
	wg.Wait()
	rate := 0.0
	var whole sample
	for _, s := range parts {
		rate += s.rate
		whole.p50, whole.p99 = max(whole.p50, s.p50), max(whole.p99, s.p99)
	}
	took := time.Since(at.began).Seconds()
	s := at.close(int64(rate * took))
	s.rate, s.p50, s.p99 = rate, whole.p50, whole.p99
	return s, errors.Join(errs...)
}

// spooled is a push load while an operator has stopped pushes: all of it goes to the spool, which is on the disk of the
// database's folder.
func (w *world) spooled(p production) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (s sample, err error) {
		dsn, err := w.openCell(ctx)
		if err != nil {
			return s, err
		}
		dir, err := os.MkdirTemp("", "queengate-bench-spool-")
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		variables := [][]string{{"QUEENGATE_BROKER_SPOOL_DIR=" + filepath.Join(dir, "spool"), "QUEENGATE_BROKER_SPOOL_MAX_BYTES=17179869184"}}
		return w.started(ctx, dsn, variables, func(all []*lone) (sample, error) {
			stop := func(on bool) error {
				return all[0].call("POST", "/api/v1/system/maintenance", fmt.Sprintf(`{"enabled":%v}`, on), 200)
			}
			if err := stop(true); err != nil {
				return sample{}, err
			}
			s, err := w.spreadPush(ctx, all, p, d)
			return s, errors.Join(err, stop(false))
		})
	}
}
