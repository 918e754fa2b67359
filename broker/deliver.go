package broker

import (
	"fmt"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// open turns claimed segments into the answer of a pop, and into what the lease registry remembers of it.
func (b *Broker) open(got *claimed, key park.Key, autoAck bool) (*wire.PopAnswer, []delivered, error) {
	first := &got.verdicts[0]
	a := &wire.PopAnswer{
		Queue: got.queue.Name, Partition: first.Name, PartitionID: first.UID, Group: key.Group,
		PartitionsClaimed: len(got.verdicts), Messages: make([]wire.Message, 0, count(got.verdicts)),
	}
	if !autoAck {
		a.LeaseID = got.worker.String()
		a.LeaseExpiresAt = first.Expires
	}
	leased := make([]delivered, 0, len(got.verdicts))
	for i := range got.verdicts {
		v := &got.verdicts[i]
		if !autoAck && v.Expires.Before(a.LeaseExpiresAt) {
			a.LeaseExpiresAt = v.Expires
		}
		d := delivered{partition: v.PartitionID, uid: v.UID, after: v.After}
		for j := range v.Segments {
			s := &v.Segments[j]
			r, err := b.segments.open(v.PartitionID, s)
			if err != nil {
				return nil, nil, fmt.Errorf("segment %d of partition %d: %w", s.Base, v.PartitionID, err)
			}
			if int64(r.Len()) != s.End-s.Base+1 {
				return nil, nil, fmt.Errorf("segment %d of partition %d has %d messages, its row says %d",
					s.Base, v.PartitionID, r.Len(), s.End-s.Base+1)
			}
			for offset := max(s.Base, v.After+1); offset <= min(s.End, v.Through); offset++ {
				f := r.Frame(int(offset - s.Base))
				a.Messages = append(a.Messages, wire.Message{
					ID: segment.MessageID(s.CreatedAt, offset, v.PartitionID), TransactionID: f.TransactionID, TraceID: f.TraceID,
					Data: f.Payload, ProducerSub: f.ProducerSub, CreatedAt: s.CreatedAt, PartitionID: v.UID, Partition: v.Name,
					Queue: got.queue.Name, Offset: offset, DeliveryAttempt: v.Attempt,
				})
				if !autoAck {
					d.add(offset, segment.HashID(f.TransactionID))
				}
			}
		}
		leased = append(leased, d)
	}
	return a, leased, nil
}

func count(vs []store.Claimed) (n int64) {
	for i := range vs {
		n += vs[i].Through - vs[i].After
	}
	return n
}
