package proxy

import (
	"strconv"

	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// measureTransaction returns what a transaction asks of the plan: its pushes count as a push does. One that only
// acknowledges is decided as an ack, once its body is known. acks says that it acknowledges.
func measureTransaction(body []byte) (ask quota.Ask, acks bool, refusal *wire.Error) {
	tx, err := wire.ScanTransaction(body)
	if err != nil {
		return ask, false, wire.AsError(err)
	}
	ask.Cost = wire.CostMessages
	if len(tx.Pushes) == 0 {
		ask.Cost = wire.CostSettle
	}
	var pairs pairSet
	for i := range tx.Pushes {
		count(&ask, &pairs, i, &tx.Pushes[i].PushItem)
	}
	ask.Pairs = pairs.list
	return ask, len(tx.Acks) > 0, nil
}

// allowAcks refuses a transaction that acknowledges by a principal that may only produce.
func (g *Gateway) allowAcks(ex *exchange) *wire.Error {
	if !ex.acks {
		return nil
	}
	return wire.AsError(auth.Allow(g.book.Snapshot(), &ex.principal, ex.cluster, wire.ClassConsume))
}

// concludeTransaction settles a transaction that was answered with 200, committed or not: the broker says in a header
// how many messages it stored. One that was rolled back has stored none, but may have created what it pushes to.
func (g *Gateway) concludeTransaction(ex *exchange, a *answer, ask *quota.Ask) {
	stored := true // by a broker that does not say
	if n, err := strconv.Atoi(string(a.resp.Header.Peek(wire.HeaderStored))); err == nil {
		stored = n > 0
	}
	if stored {
		g.settle(ex, quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes})
		return
	}
	g.settle(ex, quota.Outcome{})
	if len(ask.Pairs) > 0 {
		g.gate.Resync(ex.cluster)
	}
}
