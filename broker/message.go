package broker

import (
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// getMessage answers with one message: the first one in the log that has the transaction id, or else its newest dead
// letter.
func (b *Broker) getMessage(x *exchange) error {
	at, err := x.address()
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	lane, err := b.db.Lane(ctx, x.who.tenant, at.partition)
	if err != nil {
		return err
	}
	if lane == nil {
		return wire.Errorf(wire.NotFound, "Message not found")
	}
	m, err := b.db.Message(ctx, lane, at.transactionID)
	if err != nil {
		return err
	}
	l, err := b.db.LetterAt(ctx, x.who.tenant, at.partition, at.transactionID, "")
	if err != nil {
		return err
	}
	read := readingOf(lane)
	row := messageRow{lane: lane, transactionID: at.transactionID}
	switch {
	case m != nil:
		if l != nil && l.Offset != m.Offset {
			l = nil // of another message with the id
		}
		row.state = read.standing(m.Offset, l != nil)
		row.id, row.offset, row.base, row.created = segment.MessageID(m.CreatedAt, m.Offset, lane.ID), m.Offset, m.Base, m.CreatedAt
		row.frame, row.shown = m.Frame, b.show(lane, &m.Frame, x.who.blind)
	case l != nil:
		row = b.deadRow(lane, l, x.who.blind)
		row.state = read.standing(l.Offset, true)
	default:
		return wire.Errorf(wire.NotFound, "Message not found")
	}
	if l != nil {
		row.retries = l.RetryCount
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = row.append(dst)
		dst = append(dst, `,"errorMessage":`...)
		if l == nil {
			dst = append(dst, "null"...)
		} else {
			dst = wire.AppendString(dst, l.Error)
		}
		dst = append(dst, `,"consumerGroups":[`...)
		for i := range lane.Cursors {
			c := &lane.Cursors[i]
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"name":`...)
			dst = wire.AppendString(dst, c.Group)
			dst = append(dst, `,"group":`...)
			dst = wire.AppendString(dst, c.Group)
			dst = append(dst, `,"consumed":`...)
			dst = appendBool(dst, c.Committed >= row.offset)
			dst = append(dst, `,"leaseExpiresAt":`...)
			if leases(c, row.offset) {
				dst = appendTime(dst, c.Expires)
			} else {
				dst = append(dst, "null"...)
			}
			dst = append(dst, '}')
		}
		var mode browseMode
		mode.learn([]*store.BrowseLane{lane})
		dst = append(dst, `],"mode":`...)
		dst = mode.append(dst)
		o := &lane.Queue.Options
		dst = appendInt(dst, `,"queueConfig":{"leaseTime":`, int64(o.LeaseTime))
		dst = appendInt(dst, `,"retryLimit":`, int64(o.RetryLimit))
		dst = appendInt(dst, `,"retryDelay":`, int64(o.RetryDelay))
		dst = appendInt(dst, `,"ttl":`, int64(o.TTL))
		dst = appendInt(dst, `,"priority":`, int64(o.Priority))
		return append(dst, `}}`...)
	})
	return nil
}

// deadRow shows a dead letter as the message it was. Its segment may be gone, so the letter is its own.
func (b *Broker) deadRow(lane *store.BrowseLane, l *store.Letter, blind bool) messageRow {
	return messageRow{
		lane: lane, state: standing{status: statusDead}, id: l.MessageID, transactionID: l.TransactionID, offset: l.Offset,
		base: l.Offset, created: l.CreatedAt, shown: b.showLetter(lane.Queue.Tenant, l, blind), retries: l.RetryCount,
	}
}

// listDeadMessages answers a browse for dead letters: those that failed within the window, whenever they were stored.
func (b *Broker) listDeadMessages(x *exchange, f *store.BrowseFilter, cursor string, limit, skip int) error {
	after, err := parseLetterCursor(cursor)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	page, more, err := b.db.Letters(ctx, x.who.tenant, store.LetterFilter{
		Queue: f.Queue, Partition: f.Partition, From: f.From, Before: f.Before,
	}, after, limit, skip, maxPageBytes)
	if err != nil {
		return err
	}
	lanes := map[uuid.UUID]*store.BrowseLane{}
	var mode browseMode
	var rows []messageRow
	for i := range page {
		l := &page[i]
		lane := lanes[l.PartitionUID]
		if lane == nil {
			if lane, err = b.db.Lane(ctx, x.who.tenant, l.PartitionUID); err != nil {
				return err
			}
			if lane == nil {
				continue // deleted meanwhile, and the letter with it
			}
			lanes[l.PartitionUID] = lane
			mode.learn([]*store.BrowseLane{lane})
		}
		o := &lane.Queue.Options
		if f.Namespace != "" && f.Namespace != o.Namespace || f.Task != "" && f.Task != o.Task {
			continue
		}
		row := b.deadRow(lane, l, x.who.blind)
		read := readingOf(lane)
		row.state = read.standing(l.Offset, true)
		rows = append(rows, row)
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"messages":[`...)
		for i := range rows {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(rows[i].append(dst), '}')
		}
		dst = append(dst, `],"mode":`...)
		dst = mode.append(dst)
		dst = appendInt(dst, `,"total":`, int64(len(rows)))
		dst = append(dst, `,"partial":false,"nextCursor":`...)
		if !more {
			return append(dst, `null}`...)
		}
		last := &page[len(page)-1]
		return append(wire.AppendString(dst, letterCursor(store.LetterKey{FailedAt: last.FailedAt, ID: last.ID})), '}')
	})
	return nil
}
