package broker

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// Encryption at rest (docs/design/encryption.md): payloads are sealed here on their way to the database and opened here
// on their way out, each bound to its place and its transaction id. Nothing between knows what is in them.

// keyRetry is what a request is told for which no key is there: another broker may have it, or an operator brings it.
const keyRetry = 5 * time.Second

func keyMissing(cause error) *wire.Error {
	e := wire.Wrap(wire.EncryptionKeyMissing, cause)
	e.RetryAfter = keyRetry
	return e
}

// sealed returns frames as the partition stores them: the frames themselves, or copies with sealed payloads when its
// queue is encrypted. Error: wire.EncryptionKeyMissing.
func (b *Broker) sealed(to *store.Partition, frames []segment.Frame) ([]segment.Frame, error) {
	if !to.Encrypted {
		return frames, nil
	}
	return b.sealAll(to, frames)
}

// sealAll returns copies of the frames with payloads sealed for the partition, whatever its queue asks for.
func (b *Broker) sealAll(to *store.Partition, frames []segment.Frame) ([]segment.Frame, error) {
	at := placeIn(to)
	size := len(frames) * seal.Overhead
	for i := range frames {
		size += len(frames[i].Payload)
	}
	room := make([]byte, 0, size)
	out := make([]segment.Frame, len(frames))
	for i := range frames {
		start := len(room)
		var err error
		if room, err = b.cfg.Encryption.Seal(room, &at, frames[i].TransactionID, frames[i].Payload); err != nil {
			return nil, keyMissing(err)
		}
		out[i] = frames[i]
		out[i].Payload, out[i].Encrypted, out[i].Added = room[start:len(room):len(room)], true, seal.Overhead
	}
	b.metrics.sealed.Add(float64(len(frames)))
	return out, nil
}

func placeIn(p *store.Partition) seal.Place {
	return seal.Place{Tenant: p.Tenant, Queue: p.Queue, Partition: p.ID}
}

// payload returns the payload of a stored frame as it was sent. Errors: wire.EncryptionKeyMissing, and
// wire.MessageCorrupt for one that is not what was stored there.
func (b *Broker) payload(at *seal.Place, f *segment.Frame) ([]byte, error) {
	if !f.Encrypted {
		return f.Payload, nil
	}
	return b.unseal(at, f.TransactionID, f.Payload)
}

// letterPayload is payload for a dead letter. nil stays nil: retention had removed it.
func (b *Broker) letterPayload(tenant uuid.UUID, l *store.Letter) ([]byte, error) {
	if !seal.Is(l.Payload) {
		return l.Payload, nil
	}
	at := seal.Place{Tenant: tenant, Queue: l.Queue, Partition: l.PartitionID}
	return b.unseal(&at, l.TransactionID, l.Payload)
}

func (b *Broker) unseal(at *seal.Place, transactionID string, envelope []byte) ([]byte, error) {
	payload, err := b.cfg.Encryption.Open(nil, at, transactionID, envelope)
	if err == nil {
		id, _ := seal.KeyOf(envelope)
		b.metrics.opened[id].Inc()
		return payload, nil
	}
	e := wire.Wrap(wire.MessageCorrupt, err)
	if errors.Is(err, seal.ErrKey) {
		id, _ := seal.KeyOf(envelope)
		e = keyMissing(err)
		e.Detail = "the message is encrypted with the key " + id.String() + ", which this broker does not have"
	}
	b.metrics.unopened[e.Code].Inc()
	return nil, e
}

// shown is a payload as browsing shows it.
type shown struct {
	payload   []byte // nil: gone, withheld, or it could not be decrypted
	encrypted bool   // as it is stored
	withheld  bool   // the reader may not see it
	fault     string // why it could not be decrypted
}

// show opens the payload of a message for a reader who sees what can be seen, or is blind to payloads.
func (b *Broker) show(lane *store.BrowseLane, f *segment.Frame, blind bool) shown {
	if blind {
		return shown{encrypted: f.Encrypted, withheld: true}
	}
	at := seal.Place{Tenant: lane.Queue.Tenant, Queue: lane.Queue.Name, Partition: lane.ID}
	payload, err := b.payload(&at, f)
	return show(payload, f.Encrypted, err)
}

func (b *Broker) showLetter(tenant uuid.UUID, l *store.Letter, blind bool) shown {
	if blind {
		return shown{encrypted: seal.Is(l.Payload), withheld: true}
	}
	payload, err := b.letterPayload(tenant, l)
	return show(payload, seal.Is(l.Payload), err)
}

func show(payload []byte, encrypted bool, err error) shown {
	s := shown{payload: payload, encrypted: encrypted}
	if err != nil {
		s.payload, s.fault = nil, wire.AsError(err).Text()
	}
	return s
}

// append appends what there is to say of a payload: its encryption, and why it is not there.
func (s *shown) append(dst []byte) []byte {
	dst = append(dst, `,"isEncrypted":`...)
	dst = appendBool(dst, s.encrypted)
	if s.withheld {
		dst = append(dst, `,"payloadWithheld":true`...)
	}
	if s.fault != "" {
		dst = append(dst, `,"payloadError":`...)
		dst = wire.AppendString(dst, s.fault)
	}
	return dst
}
