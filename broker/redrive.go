package broker

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// countWait bounds the counting of the letters that a redrive is to move.
const countWait = 25 * time.Second

// startRedrive records a redrive and answers 202 with its state, or with a dry run only counts.
func (b *Broker) startRedrive(x *exchange) error {
	req, err := wire.ScanRedrive(x.ctx.PostBody())
	if err != nil {
		return err
	}
	r := &store.Redrive{
		Tenant: x.who.tenant, Limit: req.Limit, Rate: req.Rate, Producer: x.who.subject, Destination: store.Pair(req.Destination),
		Filter: store.LetterFilter{
			Queue: req.Queue, Group: req.Group, Partition: req.Partition, ErrorPart: req.ErrorPart, From: req.From, Before: req.Before,
			TransactionIDs: req.TransactionIDs,
		},
	}
	if req.Group == wire.TimerGroup {
		return wire.Errorf(wire.InvalidRequest, "dead letters of timers cannot be replayed")
	}
	ctx, cancel := context.WithTimeout(context.Background(), countWait)
	defer cancel()
	if req.DryRun {
		n, err := b.db.CountLetters(ctx, x.who.tenant, r.Filter, r.Limit)
		if err != nil {
			return err
		}
		x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
			dst = append(dst, `{"success":true,"dryRun":true,"queue":`...)
			dst = wire.AppendString(dst, req.Queue)
			return append(appendInt(dst, `,"progress":{"matched":`, n), `}}`...)
		})
		return nil
	}
	if err := b.pushesOpen(x.begin); err != nil {
		return err
	}
	if to := r.Destination; to != (store.Pair{}) {
		// Made here, where the caller's caps are known.
		if _, err := b.provisions.do(x.who.tenant, []store.Pair{to}, x.who.caps); err != nil {
			return err
		}
	}
	started, err := b.db.StartRedrive(ctx, r)
	if err != nil {
		return err
	}
	b.redrives.look()
	x.ctx.Response.Header.Set(wire.HeaderStored, strconv.FormatInt(started.Matched, 10))
	x.redriveState(fasthttp.StatusAccepted, started)
	return nil
}

// Bounds of a list of redrives.
const (
	defaultRedrives = 100
	maxRedrivesPage = 1000
)

// listRedrives answers with the redrives of a tenant that run or ended within the last week, the newest first, so that one
// whose id was lost with its answer is found again.
func (b *Broker) listRedrives(x *exchange) error {
	q := x.args("queue", "state", "limit")
	queue, limit := q.Name("queue"), q.Int("limit", defaultRedrives, 1, maxRedrivesPage)
	state := q.OneOf("state", "", string(store.RedriveRunning), string(store.RedriveDone), string(store.RedriveCancelled), string(store.RedriveFailed))
	if err := q.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	all, err := b.db.Redrives(ctx, x.who.tenant, queue, store.RedriveState(state), limit)
	if err != nil {
		return err
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"redrives":[`...)
		for i, r := range all {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendRedrive(append(dst, '{'), r), '}')
		}
		return append(dst, `]}`...)
	})
	return nil
}

// redriveStatus answers with the progress of a redrive.
func (b *Broker) redriveStatus(x *exchange) error { return b.answerRedrive(x, b.db.Redrive) }

// cancelRedrive ends a redrive and answers with how far it came; what it has moved stays moved.
func (b *Broker) cancelRedrive(x *exchange) error { return b.answerRedrive(x, b.db.CancelRedrive) }

func (b *Broker) answerRedrive(x *exchange, ask func(context.Context, uuid.UUID, uuid.UUID) (*store.Redrive, error)) error {
	id, err := uuid.Parse(x.params[0])
	if err != nil || len(x.params[0]) != 36 {
		return wire.Errorf(wire.NotFound, "Redrive not found")
	}
	ctx, cancel := b.database()
	defer cancel()
	r, err := ask(ctx, x.who.tenant, id)
	if err != nil {
		return err
	}
	if r == nil {
		return wire.Errorf(wire.NotFound, "Redrive not found")
	}
	x.redriveState(fasthttp.StatusOK, r)
	return nil
}

func (x *exchange) redriveState(status int, r *store.Redrive) {
	x.reply(status, func(dst []byte) []byte {
		return append(appendRedrive(append(dst, `{"success":true,`...), r), '}')
	})
}

// appendRedrive appends the members that tell of a redrive.
func appendRedrive(dst []byte, r *store.Redrive) []byte {
	settled := r.Moved + r.Duplicate + r.Failed
	var remaining, gone int64
	if r.State == store.RedriveDone {
		gone = max(0, r.Matched-settled) // replayed or deleted by others meanwhile
	} else {
		remaining = max(0, r.Matched-settled)
	}
	dst = append(dst, `"id":`...)
	dst = wire.AppendUUID(dst, r.ID)
	dst = append(dst, `,"queue":`...)
	dst = wire.AppendString(dst, r.Filter.Queue)
	dst = append(dst, `,"consumerGroup":`...)
	dst = appendOptional(dst, r.Filter.Group)
	dst = append(dst, `,"state":`...)
	dst = wire.AppendString(dst, string(r.State))
	dst = appendInt(dst, `,"rate":`, int64(r.Rate))
	dst = append(dst, `,"filter":{"partition":`...)
	dst = appendOptional(dst, r.Filter.Partition)
	dst = append(dst, `,"error":`...)
	dst = appendOptional(dst, r.Filter.ErrorPart)
	dst = append(dst, `,"from":`...)
	dst = appendTime(dst, r.Filter.From)
	dst = append(dst, `,"to":`...)
	dst = appendTime(dst, r.Filter.Before)
	if r.Listed < 0 {
		dst = append(dst, `,"transactionIds":null`...)
	} else {
		dst = appendInt(dst, `,"transactionIds":`, int64(r.Listed))
	}
	if r.Limit == 0 {
		dst = append(dst, `},"limit":null`...)
	} else {
		dst = appendInt(dst, `},"limit":`, int64(r.Limit))
	}
	dst = append(dst, `,"destination":`...)
	if to := r.Destination; to == (store.Pair{}) {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, `{"queue":`...)
		dst = wire.AppendString(dst, to.Queue)
		dst = append(dst, `,"partition":`...)
		dst = append(wire.AppendString(dst, to.Partition), '}')
	}
	dst = appendInt(dst, `,"progress":{"matched":`, r.Matched)
	dst = appendInt(dst, `,"moved":`, r.Moved)
	dst = appendInt(dst, `,"duplicate":`, r.Duplicate)
	dst = appendInt(dst, `,"failed":`, r.Failed)
	dst = appendInt(dst, `,"gone":`, gone)
	dst = appendInt(dst, `,"remaining":`, remaining)
	dst = append(dst, `,"done":`...)
	dst = appendBool(dst, r.State == store.RedriveDone)
	dst = append(dst, `,"cancelled":`...)
	dst = appendBool(dst, r.State == store.RedriveCancelled)
	dst = append(dst, `},"errorMessage":`...)
	dst = appendOptional(dst, r.Error)
	dst = append(dst, `,"createdAt":`...)
	dst = appendTime(dst, r.Created)
	dst = append(dst, `,"finishedAt":`...)
	return appendTime(dst, r.Finished)
}
