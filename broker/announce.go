package broker

import (
	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
)

// landed is the one announcement of everything that lands messages: it wakes who waits for them. The change feed's
// later line about the same offsets is then no news. It does not block.
func (b *Broker) landed(all []fuse.Landed) {
	for i := range all {
		l := &all[i]
		b.feed.saw(l.Partition, l.LastOffset)
		b.park.Mark(l.Tenant, l.Queue, l.Partition, l.LastOffset, int64(l.Count))
	}
	b.feed.fold()
}

// moved makes this broker look again at a group of a queue, or with "" at all of them, whose cursors an operator has
// moved or removed. The brokers elsewhere hear of it by the change feed, and so does this one once more.
func (b *Broker) moved(tenant uuid.UUID, queue, group string) {
	b.leases.forget(park.Key{Tenant: tenant, Queue: queue, Group: group})
	if group == "" {
		b.names.forget(tenant, queue)
		b.park.Forget(tenant, queue)
		return
	}
	b.park.ResetGroup(park.Key{Tenant: tenant, Queue: queue, Group: group})
}

// settled tells the ring of an acknowledged partition that its lease has ended.
func (b *Broker) settled(g *store.AckGroup, v *store.AckVerdict) {
	if v.PartitionID == 0 || !v.LeaseReleased {
		return
	}
	b.leases.released(g.Lease, v.PartitionID)
	b.park.Release(park.Key{Tenant: g.Tenant, Queue: v.Queue, Group: g.Group}, v.PartitionID, v.Committed, v.LastOffset)
}
