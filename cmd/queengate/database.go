package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/migrations"
)

// databaseLook is how long a start waits for an answer of the database.
const databaseLook = 10 * time.Second

// openPool opens a pool and checks that the database answers, so that a wrong address fails the start and not the
// first request.
func openPool(ctx context.Context, key string, at pg.Config, size int32, app string) (*pgxpool.Pool, error) {
	pool, err := newPool(ctx, key, at, size, app)
	if err != nil {
		return nil, err
	}
	if err := look(ctx, key, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func newPool(ctx context.Context, key string, at pg.Config, size int32, app string) (*pgxpool.Pool, error) {
	if at.DSN == "" {
		return nil, usageError{fmt.Errorf("%s is missing: want the address of a PostgreSQL", key)}
	}
	at.MaxConn, at.AppName = size, app
	pool, err := pg.Open(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return pool, nil
}

func look(ctx context.Context, key string, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, databaseLook)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// queueDatabase is the database of a broker, which starts without it: what is away comes back, and meanwhile a broker can
// say so. What no waiting cures fails the start.
type queueDatabase struct {
	pool   *pgxpool.Pool
	watch  *pg.Watch
	schema schema
	log    *slog.Logger

	migrate bool // still to be done
}

// openQueues opens the pool of a broker. No session begins on a schema that lacks what this program needs; it is checked
// in each life of the database anew, since a failover can lose a migration too.
func openQueues(ctx context.Context, log *slog.Logger, c *config) (*queueDatabase, error) {
	at := c.queues()
	at.TimelineFile, at.Log = c.Broker.timelines(), log
	d := &queueDatabase{schema: schema{migrations.Broker, at}, log: log, migrate: c.Broker.Migrate, watch: new(pg.Watch)}
	at.Watch = d.watch
	at.Admit = func(ctx context.Context, conn *pgconn.PgConn) error {
		return migrations.Check(ctx, conn, migrations.Broker)
	}
	var err error
	if d.pool, err = newPool(ctx, "postgres.dsn", at, c.BrokerPool, "queengate-broker"); err != nil {
		return nil, err
	}
	switch err := d.prepare(ctx); {
	case err == nil:
	case passing(err):
		log.Warn("the database is away: the broker starts without it and is not ready", "err", err)
	default:
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *queueDatabase) close() {
	d.watch.Close()
	d.pool.Close()
}

// prepare migrates, if that is still to be done, and looks whether the database answers.
func (d *queueDatabase) prepare(ctx context.Context) error {
	if d.migrate {
		if err := d.schema.apply(ctx); err != nil {
			return fmt.Errorf("postgres.dsn: %w", err)
		}
		d.migrate = false
	}
	return look(ctx, "postgres.dsn", d.pool)
}

// passing reports that err may be over in a while by itself.
func passing(err error) bool {
	return pg.Away(err) && !errors.Is(err, migrations.ErrOutdated)
}

// databaseAgain is the pause between two looks for a database that was away at the start.
const databaseAgain = 2 * time.Second

// Run says when a database that was away at the start is there, having migrated it if that was asked for. A schema that
// is too old then does not end the broker: it stays not ready, and says why, until somebody migrates.
func (d *queueDatabase) Run(ctx context.Context) error {
	tick := time.NewTicker(databaseAgain)
	defer tick.Stop()
	last := ""
	for {
		err := d.prepare(ctx)
		if err == nil {
			if last != "" {
				d.log.Info("the database is there")
			}
			break
		}
		if text := err.Error(); text != last && ctx.Err() == nil {
			last = text
			d.log.Warn("the database cannot be used yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	<-ctx.Done()
	return nil
}

// pinged is a Health of a database.
func pinged(pool *pgxpool.Pool) obs.Health {
	return func(ctx context.Context) (string, error) {
		return fmt.Sprintf("%d connections", pool.Stat().TotalConns()), pool.Ping(ctx)
	}
}
