package proxy

import (
	"strconv"

	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// measureTransaction returns what a transaction asks of the plan: its pushes count as a push does. One that only
// acknowledges is decided as an ack, once its body is known.
func measureTransaction(ex *exchange, body []byte) (ask quota.Ask, refusal *wire.Error) {
	tx, err := wire.ScanTransaction(body)
	if err != nil {
		return ask, wire.AsError(err)
	}
	ex.acks = len(tx.Acks) > 0
	aimTransaction(ex, &tx)
	ask.Cost = wire.CostMessages
	if len(tx.Pushes) == 0 {
		ask.Cost = wire.CostSettle
	}
	var pairs pairSet
	for i := range tx.Pushes {
		count(&ask, &pairs, i, &tx.Pushes[i].PushItem)
	}
	ask.Pairs = pairs.list
	return ask, nil
}

// aimTransaction follows what a transaction acknowledges before what it pushes: a lease lives in one broker's memory.
func aimTransaction(ex *exchange, tx *wire.Transaction) {
	if !ex.spread() {
		return
	}
	for _, lease := range tx.Leases {
		ex.aimAtID(lease)
	}
	if len(tx.Acks) > 0 {
		ex.aimAtAck(&tx.Acks[0].AckItem)
	}
	if len(tx.Pushes) > 0 {
		ex.aimAtQueue(tx.Pushes[0].Queue)
	}
}

// allowAcks refuses a transaction that acknowledges by a principal that may only produce.
func (g *Gateway) allowAcks(ex *exchange) *wire.Error {
	if !ex.acks {
		return nil
	}
	return wire.AsError(auth.Allow(g.book.Snapshot(), &ex.principal, ex.cluster, wire.ClassConsume))
}

// concludeStored settles a transaction, replay or redrive that was answered with success, whether or not it had an
// effect: the broker says in a header how many messages it stored or will return. One that stored none may have created
// what it names all the same.
func (g *Gateway) concludeStored(ex *exchange, a *answer, ask *quota.Ask) {
	o := quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes} // by a broker that does not say
	if n, err := strconv.Atoi(string(a.resp.Header.Peek(wire.HeaderStored))); err == nil {
		o.Stored = n > 0
		if ask.Cost == wire.CostReplay {
			o.Returned = n
		}
	}
	if o.Stored {
		g.settle(ex, o)
		return
	}
	g.settle(ex, quota.Outcome{})
	if len(ask.Pairs) > 0 {
		g.gate.Resync(ex.cluster)
	}
}
