package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/migrations"
)

// runMigrate brings the schemas of a database to this version.
func runMigrate(ctx context.Context, in *invocation) error {
	var set string
	c, err := in.load(func(fs *flag.FlagSet) {
		fs.StringVar(&set, "set", "all", "which `schema`: broker, gateway or all")
	})
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"all", string(migrations.Broker), string(migrations.Gateway)}, set) {
		return usageError{fmt.Errorf("--set = %s: want broker, gateway or all", set)}
	}
	for _, m := range []struct {
		set migrations.Set
		dsn conf.Secret
	}{{migrations.Broker, c.Postgres}, {migrations.Gateway, c.control()}} {
		if set != "all" && set != string(m.set) {
			continue
		}
		if m.dsn == "" {
			return usageError{errors.New("postgres.dsn is missing: want the address of a PostgreSQL")}
		}
		began := time.Now()
		if err := applySet(ctx, m.dsn, m.set); err != nil {
			return err
		}
		fmt.Fprintf(in.stdout, "%s schema is up to date (%d ms)\n", m.set, time.Since(began).Milliseconds())
	}
	return nil
}

// applySet applies one set with a connection of its own and none of the sessions' bounds: a migration may take its time.
func applySet(ctx context.Context, dsn conf.Secret, set migrations.Set) error {
	pc, err := pg.Parse(pg.Config{DSN: dsn.Reveal(), AppName: "queengate-migrate"})
	if err != nil {
		return err
	}
	cfg := pc.ConnConfig
	for _, bound := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		cfg.RuntimeParams[bound] = "0"
	}
	return migrations.Apply(ctx, cfg, set)
}
