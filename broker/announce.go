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
	b.hints.landed(all)
	b.feed.fold()
}

// named announces a partition that has just come to be, to those who wait for it by its name.
func (b *Broker) named(p *store.Partition) {
	b.park.Named(p.Tenant, p.Queue, p.Name, p.ID)
	b.hints.named(p)
}

// moved announces that an operator has moved or removed the cursors of a group of a queue, or with "" of all of them.
// The change feed tells it to all brokers, this one included; here it is known already, and the others are told to look.
func (b *Broker) moved(tenant uuid.UUID, queue, group string) {
	b.lookAgain(tenant, queue, group)
	b.hints.changed()
}

// lookAgain forgets what is believed of the cursors of a group of a queue, or with "" of all of them.
func (b *Broker) lookAgain(tenant uuid.UUID, queue, group string) {
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
	b.released(freed{tenant: g.Tenant, queue: v.Queue, group: g.Group, partition: v.PartitionID, committed: v.Committed, last: v.LastOffset})
}

// released announces that a group's lease on a partition has ended before its time.
func (b *Broker) released(f freed) {
	b.park.Release(park.Key{Tenant: f.tenant, Queue: f.queue, Group: f.group}, f.partition, f.committed, f.last)
	b.hints.free(f)
}
