package broker

import (
	"cmp"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// ack serves both ack routes: 200 with one result per item in request order, whatever became of them. Only when no
// item at all could be decided does the request fail as a whole.
func (b *Broker) ack(x *exchange) error {
	req, err := wire.ScanAck(x.ctx.PostBody(), x.route.Op == wire.OpAckBatch)
	if err != nil {
		return err
	}
	results := make([]wire.AckResult, len(req.Items))
	groups, places := b.ackGroups(x.who.tenant, &req, results)
	calls := b.acks.doFor(x.span, x.who.tenant, groups...)
	var refusal *wire.Error
	decided := false
	for i := range calls {
		c := &calls[i]
		if err := cmp.Or(c.err, c.out.Err); err != nil {
			e := wire.AsError(err)
			if refusal == nil || e.Outcome == wire.OutcomeUnknown {
				refusal = e
			}
			for _, at := range places[i] {
				results[at].Error, results[at].Outcome = store.AckUndecided, cmp.Or(e.Outcome, wire.OutcomeNone)
			}
			continue
		}
		decided = true
		for k, at := range places[i] {
			v := c.out.Items[k]
			r := &results[at]
			r.Success, r.Error, r.DLQ, r.Noop = v.Success, v.Error, v.DLQ, v.Noop
			if v.Error == store.AckUndecided {
				r.Outcome = wire.OutcomeNone
			}
			r.LeaseReleased = c.out.LeaseReleased
			if k == 0 {
				r.Conflated = c.out.Conflated
			}
		}
		b.settled(&c.in, &c.out)
		b.history.acked(&c.in, &c.out)
	}
	if refusal != nil && !decided {
		return refusal
	}
	b.metrics.acked(len(results))
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte { return wire.AppendAckResults(dst, results) })
	return nil
}

// ackGroups sorts the items by (partition, lease), each group to be decided at once, and says where the results of
// each group's items stand. Items without a usable partition id fail here, alone.
func (b *Broker) ackGroups(tenant uuid.UUID, req *wire.AckRequest, results []wire.AckResult) ([]store.AckGroup, [][]int) {
	type address struct{ partition, lease string }
	var groups []store.AckGroup
	var places [][]int
	var addresses []address
	var index map[address]int
	last := -1
	for i := range req.Items {
		item := &req.Items[i]
		results[i] = wire.AckResult{Index: i, TransactionID: item.TransactionID}
		at := address{item.PartitionID, item.LeaseID}
		if last < 0 || addresses[last] != at {
			var known bool
			if last, known = index[at]; !known {
				uid, err := uuid.Parse(item.PartitionID)
				switch {
				case item.PartitionID == "":
					results[i].Error = "partitionId is missing"
				case err != nil || len(item.PartitionID) != 36:
					results[i].Error = "partitionId is not a UUID"
				}
				if results[i].Error != "" {
					last = -1
					continue
				}
				if index == nil {
					index = make(map[address]int, 1)
				}
				last = len(groups)
				index[at] = last
				addresses = append(addresses, at)
				groups = append(groups, store.AckGroup{Tenant: tenant, Partition: uid, Group: req.Group, Lease: item.LeaseID})
				places = append(places, nil)
			}
		}
		if item.TransactionID == "" {
			results[i].Error = "transactionId is missing"
			continue
		}
		groups[last].Items = append(groups[last].Items, store.AckItem{
			Hash: segment.HashID(item.TransactionID), Status: item.Status, Reason: item.Error, Offset: -1,
		})
		places[last] = append(places[last], i)
	}
	// Groups that lost all their items have nothing to decide.
	kept := 0
	for i := range groups {
		if len(groups[i].Items) > 0 {
			groups[kept], places[kept] = groups[i], places[i]
			kept++
		}
	}
	groups, places = groups[:kept], places[:kept]
	b.locate(groups)
	return groups, places
}

// locate fills in the offsets this broker knows from having delivered the messages.
func (b *Broker) locate(groups []store.AckGroup) {
	for i := range groups {
		g := &groups[i]
		if g.Lease == "" {
			continue
		}
		key, parts := b.leases.held(g.Lease, g.Tenant)
		if parts == nil || key.Group != g.Group {
			continue
		}
		for k := range parts {
			if parts[k].uid == g.Partition {
				parts[k].locate(g.Items)
			}
		}
	}
}

// extend renews a lease: 200 whether or not it was still there.
func (b *Broker) extend(x *exchange) error {
	id := x.params[0]
	n, ok, err := wire.ScanExtend(x.ctx.PostBody())
	if err != nil {
		return err
	}
	if !ok {
		n = 0 // the larger of a minute and the queue's lease time
	}
	key, parts := b.leases.held(id, x.who.tenant)
	var renewed int
	var expires time.Time
	ctx, cancel := b.database()
	defer cancel()
	span := x.span.Child("extend", tracing.Client)
	if parts != nil {
		ids := make([]int64, len(parts))
		for i := range parts {
			ids[i] = parts[i].partition
		}
		renewed, expires, err = b.db.ExtendKnown(ctx, x.who.tenant, id, n, ids)
	} else {
		renewed, expires, err = b.db.Extend(ctx, x.who.tenant, id, n)
	}
	endTrip(span, tracing.Cargo{Requests: 1, Items: 1}, err)
	if err != nil {
		return err
	}
	answer := wire.ExtendResult{LeaseID: id, Renewed: renewed}
	if renewed > 0 {
		answer.ExpiresAt = wire.FormatMillis(expires)
		until := b.clock.local(expires)
		b.leases.extended(id, until)
		if renewed == len(parts) { // else some of them are over, and which ones is for the probe to find out
			for i := range parts {
				b.park.Extend(key, parts[i].partition, until)
			}
		}
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte { return wire.AppendExtendResult(dst, answer) })
	return nil
}
