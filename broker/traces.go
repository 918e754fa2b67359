package broker

import (
	"encoding/json"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// addTrace notes an event beside a message: 201, or 404 for a partition the tenant does not have.
func (b *Broker) addTrace(x *exchange) error {
	req, err := wire.ScanTrace(x.ctx.PostBody())
	if err != nil {
		return err
	}
	partition, err := uuid.Parse(req.PartitionID)
	if err != nil || len(req.PartitionID) != 36 {
		return wire.Errorf(wire.InvalidRequest, "bad body: partitionId is not a UUID")
	}
	t := store.Trace{
		ID: httpkit.NewUUID(), Partition: partition, TransactionID: req.TransactionID, Hash: segment.HashID(req.TransactionID),
		Group: req.Group, Event: req.EventType, Worker: b.history.broker.ID.String(), Data: req.Data, Names: req.Names,
	}
	ctx, cancel := b.database()
	defer cancel()
	if err := b.db.AddTrace(ctx, x.who.tenant, &t); err != nil {
		return err
	}
	x.reply(fasthttp.StatusCreated, func(dst []byte) []byte {
		dst = append(dst, `{"success":true,"traceId":`...)
		return append(wire.AppendUUID(dst, t.ID), '}')
	})
	return nil
}

// traceRow is one event as it is read: these answers are snake_case, unlike all others.
type traceRow struct {
	ID        uuid.UUID       `json:"id"`
	EventType string          `json:"event_type"`
	Data      json.RawMessage `json:"data"`
	Group     string          `json:"consumer_group"`
	Worker    string          `json:"worker_id"`
	CreatedAt millis          `json:"created_at"`
	Names     []string        `json:"trace_names"`
	Withheld  bool            `json:"data_withheld,omitempty"` // data is there, and not for this reader
}

// namedTraceRow is an event found by its name.
type namedTraceRow struct {
	traceRow
	TransactionID string    `json:"transaction_id"`
	PartitionID   uuid.UUID `json:"partition_id"`
	Queue         string    `json:"queue_name"`
	Partition     string    `json:"partition_name"`
	Payload       *struct{} `json:"message_payload"` // always null: the message may be gone
}

// rowOf shows an event. What a consumer notes beside a message may well be taken from it, so its data is for who may see
// payloads.
func rowOf(t *store.Trace, blind bool) traceRow {
	row := traceRow{ID: t.ID, EventType: t.Event, Data: t.Data, Group: t.Group, Worker: t.Worker, CreatedAt: millis(t.Created), Names: t.Names}
	if blind {
		row.Data, row.Withheld = nil, true
	}
	return row
}

// tracesOfMessage answers with the events of a message, oldest first; an unknown message has none.
func (b *Broker) tracesOfMessage(x *exchange) error {
	rows := []traceRow{}
	if partition, err := uuid.Parse(x.params[0]); err == nil {
		ctx, cancel := b.database()
		defer cancel()
		found, err := b.db.TracesOfMessage(ctx, x.who.tenant, partition, segment.HashID(x.params[1]))
		if err != nil {
			return err
		}
		for i := range found {
			rows = append(rows, rowOf(&found[i], x.who.blind))
		}
	}
	return x.answer(struct {
		Traces []traceRow `json:"traces"`
	}{rows})
}

const maxTracePage = 1000

// tracesByName answers with a page of the events of a name, newest first.
func (b *Broker) tracesByName(x *exchange) error {
	args := x.args("limit", "offset")
	page := args.Page(100, maxTracePage)
	if err := args.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	found, total, err := b.db.TracesByName(ctx, x.who.tenant, x.params[0], page)
	if err != nil {
		return err
	}
	rows := make([]namedTraceRow, len(found))
	for i := range found {
		t := &found[i]
		rows[i] = namedTraceRow{rowOf(t, x.who.blind), t.TransactionID, t.Partition, t.Queue, t.PartitionName, nil}
	}
	return x.answer(struct {
		Traces     []namedTraceRow `json:"traces"`
		Total      int64           `json:"total"`
		Pagination pagination      `json:"pagination"`
	}{rows, total, pagination(page)})
}

// traceNames answers with a page of the tenant's trace names, those seen last first.
func (b *Broker) traceNames(x *exchange) error {
	args := x.args("limit", "offset")
	page := args.Page(50, maxTracePage)
	if err := args.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	found, total, err := b.db.TraceNames(ctx, x.who.tenant, page)
	if err != nil {
		return err
	}
	type row struct {
		Name     string `json:"trace_name"`
		Traces   int64  `json:"trace_count"`
		Messages int64  `json:"message_count"`
		LastSeen millis `json:"last_seen"`
	}
	rows := make([]row, len(found))
	for i, n := range found {
		rows[i] = row{n.Name, n.Traces, n.Messages, millis(n.LastSeen)}
	}
	return x.answer(struct {
		Names      []row      `json:"trace_names"`
		Total      int64      `json:"total"`
		Pagination pagination `json:"pagination"`
	}{rows, total, pagination(page)})
}
