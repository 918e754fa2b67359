package store

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
)

// openFrame returns the transaction id and the payload of frame i of a segment.
func openFrame(blob []byte, i int) (transactionID string, payload []byte, err error) {
	r, err := segment.Open(blob)
	if err != nil {
		return "", nil, err
	}
	if i < 0 || i >= r.Len() {
		return "", nil, segment.ErrCorrupt
	}
	f := r.Frame(i)
	return f.TransactionID, f.Payload, nil
}

// Reasons of a dead letter beside those its consumer gave.
const (
	reasonExhausted = "Retries exhausted"
	flawGone        = " (the payload had been removed by retention)"
	flawUnreadable  = " (the payload could not be read)"
)

// frame is a message on its way to the dead letters: a snapshot taken before the decision and filed with it.
type frame struct {
	offset    int64
	id        uuid.UUID
	createdAt time.Time // zero: the segment is gone, and with it all below
	message   uuid.UUID
	txn       string
	payload   []byte
	flaw      string // what the reason adds when there is no payload
	reason    string
}

// frameAddress names the message that a group may file.
type frameAddress struct {
	tenant, partition uuid.UUID
	offset            int64
}

var framesCall = hotStatement("frames", `
SELECT w.n, p.id, g.base_offset, g.end_offset, g.created_at, g.blob
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) WITH ORDINALITY AS w(tenant, uid, at, n)
  JOIN queen.log_partitions p ON p.uid = w.uid
  JOIN queen.queues q ON q.id = p.queue_id AND q.tenant_id = w.tenant
 CROSS JOIN LATERAL (
       SELECT g.base_offset, g.end_offset, g.created_at, g.blob FROM queen.log_segments g
        WHERE g.partition_id = p.id AND g.base_offset <= w.at
        ORDER BY g.base_offset DESC LIMIT 1) g
 WHERE g.end_offset >= w.at`, false)

// frames reads the messages at the addresses, in their order. One whose segment is gone or unreadable comes without
// payload and with a reason that says so: a message nobody can read must not hold its group's lease for ever.
func (s *Store) frames(ctx context.Context, at []frameAddress) ([]*frame, error) {
	c := newCall()
	defer c.release()
	c.uuids(len(at), func(i int) uuid.UUID { return at[i].tenant })
	c.uuids(len(at), func(i int) uuid.UUID { return at[i].partition })
	c.int8s(len(at), func(i int) int64 { return at[i].offset })
	out := make([]*frame, len(at))
	for i, a := range at {
		out[i] = &frame{offset: a.offset, id: uuid.Must(uuid.NewV7()), flaw: flawGone}
	}
	err := s.run(ctx, framesCall, c, func(row [][]byte) {
		f := out[asInt8(row[0])-1]
		f.createdAt = asTime(row[4])
		f.message = segment.MessageID(f.createdAt, f.offset, asInt8(row[1]))
		txn, payload, err := openFrame(bytes.Clone(row[5]), int(f.offset-asInt8(row[2])))
		if err != nil {
			f.flaw = flawUnreadable // the segment stays where it is and can be looked at
			return
		}
		f.txn, f.payload, f.flaw = storable(txn), payload, ""
	})
	return out, err
}

// storable makes s a text that PostgreSQL takes: valid UTF-8 without NUL. What a client sent must not be able to fail
// the statement that other groups share.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
