package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// ask is one request to a gateway, with what came of it.
type ask struct {
	*hist.AskArgs
	answer   hist.AskAnswer
	kind     hist.Kind
	status   int
	inv, ret int64
	op       int64
	client   int
	node     string
	gone     bool // the client hung up before its answer
}

// gates is what is known of the clusters behind gateways.
type gates struct {
	asks     map[string][]*ask // by cluster, in the order of their ends
	edits    map[string][]edit
	truths   map[string][]truth
	parked   []parked
	cuts     []cut
	offers   []offer
	rests    []*rest
	pools    map[string]*hist.PoolNote // the last one, by gateway
	polls    []*ask                    // of all clusters
	absences []*absence
}

type (
	edit struct {
		at, made int64 // when it was begun, and when the control database had it
		hist.Limits
	}
	truth struct {
		at int64
		*hist.TruthNote
	}
	parked struct {
		from, to int64 // when the gateway was asked, and when it had answered
		*hist.ParkedNote
	}
	cut struct {
		at int64
		*hist.CutNote
	}
	offer struct {
		at int64
		*hist.OfferNote
	}
	rest struct {
		at int64
		*hist.RestNote
	}
)

// hungUp is what the harness writes of a client that went away on purpose.
const hungUp = "hung up"

// asked takes a request to a gateway that came back.
func (j *judge) asked(o *operation, e *hist.Event, a *hist.AskArgs) {
	x := &ask{AskArgs: a, kind: e.Kind, status: e.Status, inv: o.inv, ret: int64(e.T), op: o.event.Op, client: o.event.Client, node: o.event.Node, gone: e.Err == hungUp}
	if v, ok := e.V.(*hist.AskAnswer); ok {
		x.answer = *v
	}
	switch {
	case x.kind == hist.OK:
		j.counts.Admitted++
	case x.kind == hist.Fail && x.answer.Limit != "":
		j.counts.Refused++
	}
	g := &j.gates
	if g.asks == nil {
		g.asks = map[string][]*ask{}
	}
	g.asks[a.Cluster] = append(g.asks[a.Cluster], x)
	if a.Does == hist.DoesPoll {
		g.polls = append(g.polls, x)
	}
	j.walled(x)
}

// gateNote takes what was noted of clusters.
func (j *judge) gateNote(e *hist.Event) {
	g, at := &j.gates, int64(e.T)
	switch n := e.A.(type) {
	case *hist.PlanNote:
		if g.edits == nil {
			g.edits = map[string][]edit{}
		}
		all := g.edits[n.Cluster]
		if last := len(all) - 1; n.Made && last >= 0 {
			all[last].made = at
		} else {
			g.edits[n.Cluster] = append(all, edit{at, at, n.Limits})
		}
	case *hist.TruthNote:
		if g.truths == nil {
			g.truths = map[string][]truth{}
		}
		g.truths[n.Cluster] = append(g.truths[n.Cluster], truth{at, n})
	case *hist.ParkedNote:
		g.parked = append(g.parked, parked{at - n.AskedMs*milli, at, n})
	case *hist.CutNote:
		g.cuts = append(g.cuts, cut{at, n})
	case *hist.OfferNote:
		g.offers = append(g.offers, offer{at, n})
	case *hist.RestNote:
		g.rests = append(g.rests, &rest{at, n})
	case *hist.PoolNote:
		j.pooled(n)
	case *hist.LeakNote:
		j.bad(I1, nil, "%s shows a text of a tenant: %s", n.Where, n.Text)
	}
}

// gateways judges what needs all requests of a cluster.
func (j *judge) gateways() {
	j.absences()
	for i := range j.header.Clusters {
		c := &j.header.Clusters[i]
		asks := j.gates.asks[c.Name]
		j.rates(c, asks)
		j.honesty(c, asks)
		j.slots(c, asks)
		j.caps(c)
		j.noisy(c, asks)
		for _, a := range asks {
			j.ordered(a)
		}
	}
	j.gauges()
	j.rests()
	j.revocations()
	j.steady()
}

// byInvocation returns requests in the order in which they were sent.
func byInvocation(asks []*ask) []*ask {
	return slices.SortedFunc(slices.Values(asks), func(a, b *ask) int { return cmp.Compare(a.inv, b.inv) })
}

// touches reports whether a fault of a name was under way, or had ended less than settled before, in a time.
func (f *faults) touches(from, to int64, settled time.Duration, names ...string) bool {
	return slices.ContainsFunc(f.all, func(x *fault) bool {
		end := x.ended
		if end != never {
			end += int64(settled)
		}
		return slices.Contains(names, x.Name) && x.began < to && end > from
	})
}
