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
	at  pg.Config
}

func (c *config) schemas() []schema {
	return []schema{{migrations.Broker, c.Postgres.conn()}, {migrations.Gateway, c.control().conn()}}
}

// apply uses a connection of its own, whose bounds the migrations set: they may take their time.
func (s schema) apply(ctx context.Context) error {
	at := s.at
	at.AppName = "queengate-migrate"
	pc, err := pg.Parse(at)
	if err != nil {
		return err
	}
	return migrations.Apply(ctx, pc.ConnConfig, s.set)
}
