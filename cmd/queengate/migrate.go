package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

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
	for _, s := range c.schemas() {
		if set != "all" && set != string(s.set) {
			continue
		}
		if s.at.DSN == "" {
			return usageError{errors.New("postgres.dsn is missing: want the address of a PostgreSQL")}
		}
		began := time.Now()
		if err := s.apply(ctx); err != nil {
			return err
		}
		fmt.Fprintf(in.stdout, "%s schema is up to date (%d ms)\n", s.set, time.Since(began).Milliseconds())
	}
	return nil
}

// schema is a migration set and the database it belongs in.
type schema struct {
	set migrations.Set
	at  databaseConfig
}

func (c *config) schemas() []schema {
	return []schema{{migrations.Broker, c.Postgres}, {migrations.Gateway, c.control()}}
}

// apply uses a connection of its own, with none of the bounds of our sessions: a migration may take its time.
func (s schema) apply(ctx context.Context) error {
	at := s.at.conn()
	at.AppName = "queengate-migrate"
	pc, err := pg.Parse(at)
	if err != nil {
		return err
	}
	cfg := pc.ConnConfig
	for _, bound := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		cfg.RuntimeParams[bound] = "0"
	}
	return migrations.Apply(ctx, cfg, s.set)
}
