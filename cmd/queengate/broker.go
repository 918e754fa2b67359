package main

import (
	"context"
	"errors"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/memory"
	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/internal/run"
)

// runBroker runs a broker until ctx ends. It needs no database to start, only to become ready.
func runBroker(ctx context.Context, in *invocation) (ended error) {
	c, err := in.load(nil)
	if err != nil {
		return err
	}
	log, flush, err := in.stderrLogger(c)
	if err != nil {
		return err
	}
	defer flush()
	keys, err := readPublicKeys(c.Broker.CellKeys, datadir.ParseCellPublicKey)
	if err != nil {
		return usageError{err}
	}
	database, err := openQueues(ctx, log, c)
	if err != nil {
		return err
	}
	defer database.close()
	ln, err := listen(ctx, "broker.addr", c.Broker.Addr)
	if err != nil {
		return err
	}
	local, err := listenSocket(ctx, "broker.socket", c.Broker.Socket)
	if err != nil {
		return err
	}
	m, err := newMesh(ctx, log, &c.Mesh)
	if err != nil {
		return err
	}
	reg := obs.NewRegistry()
	tracer, err := c.Otel.tracer(log, "broker", reg)
	if err != nil {
		return err
	}
	disk, closeSpool, err := openSpool(log, &c.Broker)
	if err != nil {
		return err
	}
	defer func() { ended = errors.Join(ended, closeSpool()) }()
	b, err := newBroker(&c.Broker, c.PopTimeout, brokerParts{log: log, keys: keys, pool: database.pool, watch: database.watch, reg: reg, ln: ln, local: local, mesh: m, spool: disk, tracer: tracer})
	if err != nil {
		return err
	}
	group := run.New(log, stopBudget)
	ops, err := listen(ctx, "ops", c.Ops)
	if err != nil {
		return err
	}
	if ops != nil {
		group.Add("ops", obs.NewOps(log, ops, reg, map[string]obs.Health{"database": pinged(database.pool), "broker": b.Serving}))
	}
	group.Add("memory", memory.New(reg))
	group.Add("tracing", tracer)
	group.Add("database", database)
	group.Add("broker", b)
	return group.Run(ctx)
}
