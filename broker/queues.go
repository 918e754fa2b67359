package broker

import (
	"context"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// configure creates a queue or sets its options, and answers with the effective ones.
func (b *Broker) configure(x *exchange) error {
	req, err := wire.ScanConfigure(x.ctx.PostBody())
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	q, err := b.db.Configure(ctx, x.who.tenant, &req, b.cfg.ConfigureMode, x.who.caps)
	if err != nil {
		return err
	}
	b.names.forget(x.who.tenant, req.Queue)
	b.hints.changed()
	if q.Options.EncryptionEnabled && !b.cfg.Encryption.Seals() {
		b.log.Warn("an encrypted queue takes no message from this broker: it has no key", "tenant", q.Tenant, "queue", q.Name)
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"configured":true,"queueId":`...)
		dst = wire.AppendUUID(dst, q.UID)
		dst = append(dst, `,"partitionId":null,"queue":`...)
		dst = wire.AppendString(dst, q.Name)
		dst = append(dst, `,"namespace":`...)
		dst = wire.AppendString(dst, q.Options.Namespace)
		dst = append(dst, `,"task":`...)
		dst = wire.AppendString(dst, q.Options.Task)
		dst = append(dst, `,"storage":"segments","options":`...)
		return append(wire.AppendOptions(dst, q.Options), '}')
	})
	return nil
}

// deleteQueue removes a queue with all it holds: 200 whether or not it was there.
func (b *Broker) deleteQueue(x *exchange) error {
	name := x.params[0]
	ctx, cancel := b.database()
	defer cancel()
	existed, partitions, err := b.db.DeleteQueue(ctx, x.who.tenant, name)
	if err != nil {
		return err
	}
	b.vanished(x.who.tenant, name, partitions)
	b.hints.changed()
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"deleted":`...)
		dst = strconv.AppendBool(dst, existed)
		dst = append(dst, `,"queue":`...)
		dst = wire.AppendString(dst, name)
		dst = append(dst, `,"existed":`...)
		dst = strconv.AppendBool(dst, existed)
		if !existed {
			dst = append(dst, `,"message":"Queue not found, nothing was deleted"`...)
		}
		return append(dst, '}')
	})
	return nil
}

// listQueues answers with the queues of the tenant, all of them unless the query narrows it. Besides the contract's keys
// the entries have options that the existing command line reads.
func (b *Broker) listQueues(x *exchange) error {
	f, err := x.filter(0)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	queues, err := b.db.Queues(ctx, x.who.tenant, f)
	if err != nil {
		return err
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"queues":[`...)
		for i := range queues {
			q := &queues[i]
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendQueueHead(dst, &q.Queue)
			dst = appendInt(dst, `,"partitions":`, q.Partitions)
			dst = appendInt(dst, `,"retainedBytes":`, q.RetainedBytes)
			dst = appendInt(dst, `,"segments":{"segments":`, q.Segments)
			dst = appendInt(dst, `,"messages":`, q.Total)
			dst = appendInt(dst, `},"messages":{"total":`, q.Total)
			dst = appendInt(dst, `,"pending":`, q.Pending)
			dst = appendInt(dst, `,"processing":`, q.Processing)
			dst = appendInt(dst, `},"partitionCount":`, q.Partitions)
			dst = appendInt(dst, `,"priority":`, int64(q.Options.Priority))
			dst = appendInt(dst, `,"leaseTime":`, int64(q.Options.LeaseTime))
			dst = appendInt(dst, `,"retryLimit":`, int64(q.Options.RetryLimit))
			dst = appendInt(dst, `,"maxSize":`, int64(q.Options.MaxSize))
			dst = append(dst, `,"encryptionEnabled":`...)
			dst = strconv.AppendBool(dst, q.Options.EncryptionEnabled)
			dst = append(dst, '}')
		}
		return append(dst, `]}`...)
	})
	return nil
}

// queueInPath returns the queue that the path names with its partitions; wire.NotFound when there is none.
func (b *Broker) queueInPath(ctx context.Context, x *exchange) (*store.Queue, []store.PartitionDetail, error) {
	q, err := b.db.LookupQueue(ctx, x.who.tenant, x.params[0])
	if err != nil {
		return nil, nil, err
	}
	if q == nil {
		return nil, nil, wire.Errorf(wire.NotFound, "Queue not found")
	}
	parts, err := b.db.QueuePartitions(ctx, q)
	return q, parts, err
}

// queueDetail answers with one queue, its options and its partitions, or 404.
func (b *Broker) queueDetail(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	q, parts, err := b.queueInPath(ctx, x)
	if err != nil {
		return err
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = appendQueueHead(dst, q)
		dst = append(dst, `,"options":`...)
		dst = wire.AppendOptions(dst, q.Options)
		dst = append(dst, `,"partitions":[`...)
		var total store.Counts
		var bytes, segments int64
		for i := range parts {
			p := &parts[i]
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"id":`...)
			dst = wire.AppendUUID(dst, p.UID)
			dst = append(dst, `,"name":`...)
			dst = wire.AppendString(dst, p.Name)
			dst = append(dst, `,"createdAt":`...)
			dst = appendTime(dst, p.Created)
			dst = append(dst, `,"stats":`...)
			dst = appendCounts(dst, p.Counts)
			dst = append(dst, `,"oldestMessage":`...)
			dst = appendTime(dst, p.Oldest)
			dst = append(dst, `,"newestMessage":`...)
			dst = appendTime(dst, p.Newest)
			dst = append(dst, '}')
			total.Total += p.Total
			total.Pending += p.Pending
			total.Processing += p.Processing
			total.DeadLetter += p.DeadLetter
			bytes += p.RetainedBytes
			segments += p.Segments
		}
		dst = append(dst, `],"totals":`...)
		dst = appendCounts(dst, total)
		dst = appendInt(dst, `,"retainedBytes":`, bytes)
		dst = appendInt(dst, `,"segments":`, segments)
		return append(dst, '}')
	})
	return nil
}

// appendQueueHead opens the object of a queue with the keys that every listing of it has.
func appendQueueHead(dst []byte, q *store.Queue) []byte {
	dst = append(dst, `{"id":`...)
	dst = wire.AppendUUID(dst, q.UID)
	dst = append(dst, `,"name":`...)
	dst = wire.AppendString(dst, q.Name)
	dst = append(dst, `,"namespace":`...)
	dst = wire.AppendString(dst, q.Options.Namespace)
	dst = append(dst, `,"task":`...)
	dst = wire.AppendString(dst, q.Options.Task)
	dst = append(dst, `,"createdAt":`...)
	return appendTime(dst, q.Created)
}

func appendCounts(dst []byte, c store.Counts) []byte {
	dst = appendInt(dst, `{"total":`, c.Total)
	dst = appendInt(dst, `,"pending":`, c.Pending)
	dst = appendInt(dst, `,"processing":`, c.Processing)
	dst = appendInt(dst, `,"completed":`, c.Completed())
	dst = append(dst, `,"failed":null`...)
	dst = appendInt(dst, `,"deadLetter":`, c.DeadLetter)
	return append(dst, '}')
}

func appendInt(dst []byte, key string, n int64) []byte {
	return strconv.AppendInt(append(dst, key...), n, 10)
}

// appendTime appends t with milliseconds, or null for the zero time.
func appendTime(dst []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(dst, "null"...)
	}
	return wire.AppendString(dst, wire.FormatMillis(t))
}
