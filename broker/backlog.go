package broker

import "github.com/prometheus/client_golang/prometheus"

// backlog is what waits of one class of work, as a scrape shows it.
type backlog struct {
	pending, tenants int    // calls, and whose they are
	refused, turns   uint64 // since the start; turns: how often the turn passed from one tenant to another
}

// backlogs are the families of what waits, by class. None has a tenant as a label: how many wait is a number, who they
// are is for the log of requests.
type backlogs struct {
	classes                          map[string]func() backlog
	pending, tenants, refused, turns *prometheus.Desc
}

func newBacklogs(b *Broker) *backlogs {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("queengate_broker_"+name, help, []string{"class"}, nil)
	}
	return &backlogs{
		classes: map[string]func() backlog{
			"push": func() backlog {
				s := b.fuser.Stats()
				return backlog{s.Pending, s.PendingTenants, s.Refused, s.Turns}
			},
			"pop": func() backlog { return b.claims.backlog() },
			"ack": func() backlog { return b.acks.backlog() },
			"transaction": func() backlog {
				s := b.transactions.Stats()
				return backlog{s.Waiting, s.Owners, s.Refused, s.Turns}
			},
			"provision": func() backlog { return b.provisions.backlog() },
		},
		pending: desc("pending_calls", "Calls that wait for the database's answer; of transactions, for a place; of new partitions, for their turn."),
		tenants: desc("pending_tenants", "Tenants they are from."),
		refused: desc("overloads_total", "Calls refused because their tenant had its share waiting."),
		turns:   desc("turns_total", "How often the turn passed from one tenant to another."),
	}
}

// Describe implements prometheus.Collector.
func (s *backlogs) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.pending, s.tenants, s.refused, s.turns} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (s *backlogs) Collect(out chan<- prometheus.Metric) {
	for class, read := range s.classes {
		l := read()
		out <- prometheus.MustNewConstMetric(s.pending, prometheus.GaugeValue, float64(l.pending), class)
		out <- prometheus.MustNewConstMetric(s.tenants, prometheus.GaugeValue, float64(l.tenants), class)
		out <- prometheus.MustNewConstMetric(s.refused, prometheus.CounterValue, float64(l.refused), class)
		out <- prometheus.MustNewConstMetric(s.turns, prometheus.CounterValue, float64(l.turns), class)
	}
}
