package quota

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/plans"
)

// tally counts the decisions of a shard, by limit, mode (enforce, shadow) and verdict (allow, deny).
type tally [limitCount][2][2]atomic.Uint64

var (
	modeNames    = [...]string{plans.Enforce: "enforce", plans.Shadow: "shadow"}
	verdictNames = [...]string{"allow", "deny"}
)

// add counts one decision of a limit. In shadow mode deny means that the request would have been refused.
func (t *tally) add(l limit, m plans.Mode, s standing) {
	verdict := 0
	if s == over {
		verdict = 1
	}
	t[l][m][verdict].Add(1)
}

var (
	decisionsDesc = prometheus.NewDesc("queengate_quota_decisions_total",
		"Decisions by limit, mode and verdict. In shadow mode a denied request went through.",
		[]string{"limit", "mode", "verdict"}, nil)
	parkedDesc  = prometheus.NewDesc("queengate_quota_parked_polls", "Long polls that hold a slot.", nil, nil)
	ledgersDesc = prometheus.NewDesc("queengate_quota_clusters", "Clusters with a ledger in memory.", nil, nil)
)

// Describe implements prometheus.Collector.
func (g *Gate) Describe(ch chan<- *prometheus.Desc) {
	ch <- decisionsDesc
	ch <- parkedDesc
	ch <- ledgersDesc
	g.months.warned.Describe(ch)
	g.months.saves.Describe(ch)
	if g.fleet != nil {
		g.fleet.describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (g *Gate) Collect(ch chan<- prometheus.Metric) {
	ledgers := 0
	for i := range g.shards {
		ledgers += len(g.shards[i].all())
	}
	for l := range limitCount {
		for m, mode := range modeNames {
			for v, verdict := range verdictNames {
				var sum uint64
				for i := range g.shards {
					sum += g.shards[i].tally[l][m][v].Load()
				}
				if l >= limitLife && m != int(plans.Enforce) {
					continue // no plan can shadow these
				}
				ch <- prometheus.MustNewConstMetric(decisionsDesc, prometheus.CounterValue, float64(sum),
					limitNames[l], mode, verdict)
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(parkedDesc, prometheus.GaugeValue, float64(g.parked.Load()))
	ch <- prometheus.MustNewConstMetric(ledgersDesc, prometheus.GaugeValue, float64(ledgers))
	g.months.warned.Collect(ch)
	g.months.saves.Collect(ch)
	if g.fleet != nil {
		g.fleet.collect(ch)
	}
}
