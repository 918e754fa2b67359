package broker

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"

	"github.com/queengate/queengate/mesh"
)

// The frames brokers send each other. Each says where to look: the receiver does with it what it does with its own
// news, and whatever it then delivers, the database has decided. A frame holds any number of entries.
const (
	hintMarks = mesh.FirstKind     // partitions with new messages
	hintFreed = mesh.FirstKind + 1 // partitions whose lease an ack or a nack has ended
	hintNamed = mesh.FirstKind + 2 // partitions that have come to be
	hintNews  = mesh.FirstKind + 3 // empty: the change feed has something now, read it
)

// mark is an entry of hintMarks.
type mark struct {
	tenant    uuid.UUID
	queue     string
	partition int64
	last      int64 // offset of the newest message
	count     int64 // new ones
}

// freed is an entry of hintFreed.
type freed struct {
	tenant          uuid.UUID
	queue, group    string
	partition       int64
	committed, last int64
}

// named is an entry of hintNamed.
type named struct {
	tenant      uuid.UUID
	queue, name string
	partition   int64
}

var errHint = errors.New("a hint cannot be read")

func (m *mark) append(dst []byte) []byte {
	dst = append(dst, m.tenant[:]...)
	dst = appendText(dst, m.queue)
	dst = binary.AppendVarint(dst, m.partition)
	dst = binary.AppendVarint(dst, m.last)
	return binary.AppendVarint(dst, m.count)
}

func (f *freed) append(dst []byte) []byte {
	dst = append(dst, f.tenant[:]...)
	dst = appendText(dst, f.queue)
	dst = appendText(dst, f.group)
	dst = binary.AppendVarint(dst, f.partition)
	dst = binary.AppendVarint(dst, f.committed)
	return binary.AppendVarint(dst, f.last)
}

func (n *named) append(dst []byte) []byte {
	dst = append(dst, n.tenant[:]...)
	dst = appendText(dst, n.queue)
	dst = appendText(dst, n.name)
	return binary.AppendVarint(dst, n.partition)
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// fieldReader takes fields off a payload; after the first that is not there, bad is set and all are zero.
type fieldReader struct {
	rest []byte
	bad  bool
}

func (r *fieldReader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	p := r.rest[:n]
	r.rest = r.rest[n:]
	return p
}

func (r *fieldReader) tenant() (id uuid.UUID) {
	copy(id[:], r.take(uint64(len(id))))
	return id
}

func (r *fieldReader) text() string {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return ""
	}
	r.rest = r.rest[size:]
	return string(r.take(n))
}

func (r *fieldReader) number() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *fieldReader) mark() mark {
	return mark{tenant: r.tenant(), queue: r.text(), partition: r.number(), last: r.number(), count: r.number()}
}

func (r *fieldReader) freed() freed {
	return freed{tenant: r.tenant(), queue: r.text(), group: r.text(), partition: r.number(), committed: r.number(), last: r.number()}
}

func (r *fieldReader) named() named {
	return named{tenant: r.tenant(), queue: r.text(), name: r.text(), partition: r.number()}
}

// readHints calls each for the entries of a payload, up to the first that cannot be read.
func readHints[T any](payload []byte, read func(*fieldReader) T, each func(T)) error {
	r := fieldReader{rest: payload}
	for len(r.rest) > 0 {
		entry := read(&r)
		if r.bad {
			return errHint
		}
		each(entry)
	}
	return nil
}
