package broker

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// A replay puts a dead letter back at the end of a partition and deletes the letter, in one transaction, under a
// transaction id made of the letter's own: however often it is asked for, the message returns once. Every group sees
// it again. Redrives (redrive.go) move letters the same way.

// replayTries is how often a replay looks again for a destination that was deleted, or became encrypted, under it.
const replayTries = 3

// replayDeadLetter replays the letter with the id of the path, to another partition when the body names one.
func (b *Broker) replayDeadLetter(x *exchange) error {
	id, err := uuid.Parse(x.params[0])
	if err != nil || len(x.params[0]) != 36 {
		return wire.Errorf(wire.InvalidRequest, "the id is not a UUID")
	}
	to, err := wire.ScanReplay(x.ctx.PostBody())
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	l, err := b.db.Letter(ctx, x.who.tenant, id)
	if err != nil {
		return x.unmoved(id, err)
	}
	if l == nil {
		return x.letterGone(id)
	}
	return b.replay(x, l, store.Pair(to))
}

// retryMessage replays the newest dead letter of a message.
func (b *Broker) retryMessage(x *exchange) error {
	to, err := wire.ScanReplay(x.ctx.PostBody())
	if err != nil {
		return err
	}
	if to != (wire.Destination{}) {
		return wire.Errorf(wire.InvalidRequest, "a retry goes back to where the message came from; POST /api/v1/dlq/:id/replay takes a destination")
	}
	at, err := x.address()
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	l, err := b.db.LetterAt(ctx, x.who.tenant, at.partition, at.transactionID, "")
	if err != nil {
		return err
	}
	if l == nil {
		return x.messageMissing("Message not found in dead letter queue")
	}
	return b.replay(x, l, store.Pair{})
}

// replay moves one letter and answers.
func (b *Broker) replay(x *exchange, l *store.Letter, to store.Pair) error {
	if err := b.pushesOpen(x.begin); err != nil {
		x.preface = appendLetterRefusal(nil, "maintenance", l.ID, "false")
		return err
	}
	switch {
	case l.Group == wire.TimerGroup:
		return wire.Errorf(wire.InvalidRequest, "dead letters of timers cannot be replayed")
	case l.Payload == nil:
		return wire.Errorf(wire.InvalidRequest, "retention has removed the payload: nothing is left to replay")
	}
	for range replayTries {
		part, err := b.destination(x, l, to)
		if err != nil {
			return x.unmoved(l.ID, err)
		}
		if part.ID == 0 {
			return x.letterGone(l.ID) // deleted with its partition
		}
		m, err := b.newMove(x.who.tenant, part, x.who.subject, []store.Letter{*l})
		if err != nil {
			return x.unmoved(l.ID, err)
		}
		if m.Verified, _, err = b.vouch(part, m.Letters); err != nil {
			return x.unmoved(l.ID, err)
		}
		v, err := b.move(m)
		if err != nil {
			return x.unmoved(l.ID, err)
		}
		switch v.Outcome {
		case store.MoveDone:
			return x.replayed(l, &part, wire.Queued, v.Base, v.CreatedAt)
		case store.MoveDuplicate:
			return x.replayed(l, &part, wire.Duplicate, v.Dups[0].Offset, v.Dups[0].CreatedAt)
		case store.MoveChanged:
			return x.letterGone(l.ID)
		}
		b.names.forget(x.who.tenant, part.Queue)
	}
	return x.unmoved(l.ID, wire.Errorf(wire.NotFound, "the queue is being deleted or configured"))
}

// destination finds where a letter goes: the named partition, which is created under the caller's caps if need be, or
// the one it came from, which has ID 0 when it is gone.
func (b *Broker) destination(x *exchange, l *store.Letter, to store.Pair) (store.Partition, error) {
	version := b.names.version.Load()
	ctx, cancel := b.database()
	defer cancel()
	var found []store.Partition
	var err error
	if to == (store.Pair{}) {
		found, err = b.db.Lookup(ctx, x.who.tenant, []store.Pair{{Queue: l.Queue, Partition: l.Partition}})
	} else {
		found, err = b.provisions.do(x.who.tenant, []store.Pair{to}, x.who.caps)
	}
	if err != nil {
		return store.Partition{}, err
	}
	b.names.learn(version, found)
	if found[0].ID != 0 {
		b.named(&found[0])
	}
	return found[0], nil
}

// newMove packs letters into the segment that carries them back, in their order.
//
// What was encrypted stays so: a letter is sealed anew for the place it goes to, whether or not the queue there is
// encrypted, and so are those that travel with it. Errors: wire.EncryptionKeyMissing, wire.MessageCorrupt.
func (b *Broker) newMove(tenant uuid.UUID, to store.Partition, producer string, letters []store.Letter) (*store.Move, error) {
	m := &store.Move{Tenant: tenant, Partition: to, Sealed: to.Encrypted}
	frames := make([]segment.Frame, len(letters))
	for i := range letters {
		l := &letters[i]
		payload, err := b.letterPayload(tenant, l)
		if err != nil {
			return nil, err
		}
		m.Sealed = m.Sealed || seal.Is(l.Payload)
		m.Letters = append(m.Letters, l.ID)
		m.RawBytes += int64(len(payload))
		frames[i] = segment.Frame{TransactionID: store.LetterPrefix + l.ID.String(), Payload: payload, ProducerSub: producer}
	}
	if m.Sealed {
		var err error
		if frames, err = b.sealAll(&to, frames); err != nil {
			return nil, err
		}
	}
	m.Blob, m.Hashes = segment.Encode(nil, frames), segment.AppendHashes(nil, frames)
	return m, nil
}

// vouch reads the partition's recent transaction ids without a lock, so that the probe under the lock has only the
// newest to look at. It returns the offset up to which none of the letters but those in seen are in the log.
func (b *Broker) vouch(to store.Partition, letters []uuid.UUID) (verified store.Watermark, seen map[uuid.UUID]bool, err error) {
	if to.DedupWindow == 0 {
		return store.Watermark{}, nil, nil
	}
	wanted := make(map[store.Hash]uuid.UUID, len(letters))
	for _, id := range letters {
		wanted[segment.HashID(store.LetterPrefix+id.String())] = id
	}
	ctx, cancel := context.WithTimeout(context.Background(), vouchWait)
	defer cancel()
	verified, err = b.db.Sidecar(ctx, to.ID, to.DedupWindow, -1, func(row store.SidecarRow) {
		for h := row.Hashes; len(h) >= 16; h = h[16:] {
			if id, ok := wanted[store.Hash(h[:16])]; ok {
				if seen == nil {
					seen = map[uuid.UUID]bool{}
				}
				seen[id] = true
			}
		}
	})
	if len(seen) > 0 && len(letters) == 1 {
		verified = store.Watermark{} // the routine shall find it and answer with the original
	}
	return verified, seen, err
}

// vouchWait bounds the reading of a partition's transaction ids: an hour at thousands a second takes seconds.
const vouchWait = 20 * time.Second

// move runs one move and announces what landed.
func (b *Broker) move(m *store.Move) (store.MoveVerdict, error) {
	ctx, cancel := b.database()
	defer cancel()
	v, err := b.db.MoveLetters(ctx, m)
	if err == nil && v.Outcome == store.MoveDone {
		b.landed([]fuse.Landed{{
			Partition: m.Partition.ID, QueueID: m.Partition.QueueID, Tenant: m.Tenant, Queue: m.Partition.Queue,
			LastOffset: v.LastOffset, Count: len(m.Letters),
		}})
	}
	return v, err
}

// replayed answers a replay that left no letter behind.
func (x *exchange) replayed(l *store.Letter, to *store.Partition, status wire.Verdict, offset int64, created time.Time) error {
	result, stored := "moved", "1"
	if status == wire.Duplicate {
		result, stored = "duplicate", "0"
	}
	x.ctx.Response.Header.Set(wire.HeaderStored, stored)
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"success":true,"result":"`+result+`","queue":`...)
		dst = wire.AppendString(dst, to.Queue)
		dst = append(dst, `,"partition":`...)
		dst = wire.AppendString(dst, to.Name)
		dst = append(dst, `,"consumerGroup":`...)
		dst = wire.AppendString(dst, l.Group)
		dst = append(dst, `,"dlqId":`...)
		dst = wire.AppendUUID(dst, l.ID)
		dst = append(dst, `,"originalTransactionId":`...)
		dst = appendOptional(dst, l.TransactionID)
		dst = append(dst, `,"replayedAs":{"index":0,"message_id":`...)
		dst = wire.AppendUUID(dst, segment.MessageID(created, offset, to.ID))
		dst = append(dst, `,"transaction_id":`...)
		dst = wire.AppendString(dst, store.LetterPrefix+l.ID.String())
		dst = append(dst, `,"queueName":`...)
		dst = wire.AppendString(dst, to.Queue)
		dst = append(dst, `,"status":`...)
		dst = wire.AppendString(dst, string(status))
		dst = appendInt(dst, `,"offset":`, offset)
		return append(dst, `},"dlqRowRemoved":true}`...)
	})
	return nil
}

// unmoved refuses a replay whose letter is still there, or, when the outcome is unknown, may be.
func (x *exchange) unmoved(id uuid.UUID, err error) error {
	removed := "false"
	if wire.AsError(err).Outcome == wire.OutcomeUnknown {
		removed = "null"
	}
	x.preface = appendLetterRefusal(nil, "failed", id, removed)
	return err
}

func (x *exchange) letterGone(id uuid.UUID) error {
	x.preface = appendLetterRefusal(nil, "gone", id, "false")
	x.preface = append(x.preface, `"message":"The dead letter does not exist, or was replayed or deleted before",`...)
	return wire.Errorf(wire.NotFound, "Dead letter not found")
}

// appendLetterRefusal appends the members that stand before those of every error body.
func appendLetterRefusal(dst []byte, result string, id uuid.UUID, removed string) []byte {
	dst = append(dst, `"success":false,"result":`...)
	dst = wire.AppendString(dst, result)
	dst = append(dst, `,"dlqId":`...)
	dst = wire.AppendUUID(dst, id)
	dst = append(dst, `,"dlqRowRemoved":`...)
	dst = append(dst, removed...)
	return append(dst, ',')
}

// appendOptional appends s, or null when it is empty.
func appendOptional(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return wire.AppendString(dst, s)
}

// messageAddress names a message as its consumers know it.
type messageAddress struct {
	partition     uuid.UUID
	transactionID string
}

// address reads the message that the path names. A partition id that is no UUID belongs to nobody, like a stranger's.
func (x *exchange) address() (messageAddress, error) {
	uid, err := uuid.Parse(x.params[0])
	if err != nil || len(x.params[0]) != 36 {
		return messageAddress{}, x.messageMissing("Message not found")
	}
	return messageAddress{uid, x.params[1]}, nil
}

// messageMissing is the 404 of the routes that act on a message.
func (x *exchange) messageMissing(text string) error {
	x.preface = append(x.preface[:0], `"success":false,"partitionId":`...)
	x.preface = wire.AppendString(x.preface, x.params[0])
	x.preface = append(x.preface, `,"transactionId":`...)
	x.preface = wire.AppendString(x.preface, x.params[1])
	x.preface = append(x.preface, `,"message":`...)
	x.preface = wire.AppendString(x.preface, text)
	x.preface = append(x.preface, ',')
	return wire.Errorf(wire.NotFound, "%s", text)
}
