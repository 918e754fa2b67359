package main

import (
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy"
	"github.com/queengate/queengate/proxy/wipe"
)

// newWiper assembles what removes deleted tenants, beside a gateway. Add it to a group behind the gateway's ledger, so that
// it has ended when that does; book must not run yet.
func newWiper(log *slog.Logger, c *gatewayConfig, pool *pgxpool.Pool, g *proxy.Gateway, book *plans.Book, reg prometheus.Registerer) *wipe.Wiper {
	w := wipe.New(wipe.Options{
		Log: log.With("part", "wipe"), Pool: pool, Cells: g.Cells(), Erase: g.Gate().Erase, Settle: c.WipeSettle, Metrics: reg,
	})
	book.OnChange(w.Follow)
	return w
}
