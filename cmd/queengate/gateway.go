package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/memory"
	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/internal/run"
)

// runGateway runs a gateway until ctx ends.
func runGateway(ctx context.Context, in *invocation) (ended error) {
	c, err := in.load(nil)
	if err != nil {
		return err
	}
	log, flush, err := in.stderrLogger(c)
	if err != nil {
		return err
	}
	defer flush()
	addProcessors()
	checkDescriptors(log, slog.LevelWarn, "gateway.max_conns", c.Gateway.MaxConns)
	key, err := datadir.ParseCellKey([]byte(c.Gateway.CellKey.Reveal()))
	if err != nil {
		return usageError{fmt.Errorf("gateway.cell_key = redacted: %w", err)}
	}
	certificate, err := c.certificate(log)
	if err != nil {
		return err
	}
	var dir *datadir.Dir
	if c.Data == "" {
		log.Warn("there is no data folder: this gateway does not start while the control database is away")
	} else if dir, err = datadir.Open(c.Data); err != nil {
		return fmt.Errorf("data: %w", err)
	} else {
		defer func() { ended = errors.Join(ended, dir.Close()) }()
	}
	pool, err := newPool(ctx, "postgres.control_dsn", c.control().conn(), c.ControlPool, "queengate-gateway")
	if err != nil {
		return err
	}
	defer pool.Close()

	reg := obs.NewRegistry()
	tracer, err := c.Otel.tracer(log, "gateway", reg)
	if err != nil {
		return err
	}
	g, book, err := newGateway(ctx, log, c, key, dir, pool, reg, tracer)
	if err != nil {
		return err
	}
	plain, err := listen(ctx, "http", c.HTTP)
	if err != nil {
		return err
	}
	if plain != nil {
		g.Listen(plain)
	}
	switch {
	case certificate != nil && c.HTTPS != "":
		secure, err := listen(ctx, "https", c.HTTPS)
		if err != nil {
			return err
		}
		g.ListenTLS(secure, certificate)
	case plain == nil:
		return usageError{errors.New("http and https are both off: want an address for one, and tls.cert with tls.key for https")}
	default:
		log.Info("https is off: it has no certificate or no address")
	}

	health := g.Health()
	maps.Copy(health, map[string]obs.Health{"redis": fleetHealth(g.Gate()), "control": book.Health})
	group := run.New(log, stopBudget)
	ops, err := listen(ctx, "ops", c.Ops)
	if err != nil {
		return err
	}
	if ops != nil {
		group.Add("ops", obs.NewOps(log, ops, reg, health))
	}
	group.Add("memory", memory.New(reg))
	group.Add("tracing", tracer)
	group.Add("book", book)
	group.Add("quota", g.Gate())
	group.Add("wipe", newWiper(log, &c.Gateway, pool, g, book, reg))
	group.Add("gateway", g)
	return group.Run(ctx)
}

// control returns the address of the control database.
func (c *config) control() databaseConfig {
	if c.Control.DSN != "" {
		return c.Control
	}
	return c.Postgres
}
