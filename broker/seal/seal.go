package seal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/crypto/chacha20poly1305"
)

const (
	version = 1

	headLen = 1 + keyIDLen
	openLen = headLen + chacha20poly1305.NonceSizeX // what stands before the ciphertext

	// Overhead is how many bytes longer an envelope is than its payload.
	Overhead = openLen + chacha20poly1305.Overhead

	domain = "queengate payload"
)

// What errors.Is finds in an error of Seal or Open.
var (
	ErrNoKey  = errors.New("no key to encrypt with")                // Seal: the ring has no active key
	ErrKey    = errors.New("the payload's key is not configured")   // Open: another broker may have it
	ErrBroken = errors.New("the payload's encryption is not whole") // Open: changed, moved, or no envelope at all
)

// Place is where a message stands for good. An envelope opens only in the place it was sealed for.
type Place struct {
	Tenant    uuid.UUID
	Queue     string // at most 65,535 bytes
	Partition int64  // surrogate: never used again after the partition is gone
}

// Is reports whether b is an envelope and not a payload as it was sent, which is a JSON text.
func Is(b []byte) bool { return len(b) >= Overhead && b[0] == version }

// KeyOf returns the id of the key an envelope was sealed with; ok is false when b is none.
func KeyOf(b []byte) (id KeyID, ok bool) {
	if !Is(b) {
		return KeyID{}, false
	}
	return KeyID(b[1:headLen]), true
}

// Seal appends the envelope of payload to dst, len(payload)+Overhead bytes. The payload must not overlap what dst grows
// into. The only error is ErrNoKey.
func (r *Ring) Seal(dst []byte, at *Place, transactionID string, payload []byte) ([]byte, error) {
	if !r.Seals() {
		return dst, ErrNoKey
	}
	start := len(dst)
	dst = append(dst, version)
	dst = append(dst, r.active.id[:]...)
	dst = append(dst, make([]byte, chacha20poly1305.NonceSizeX)...)
	nonce := dst[start+headLen:]
	if _, err := rand.Read(nonce); err != nil {
		panic(err) // crypto/rand ends the process rather than fail
	}
	bound := bounds.Get().(*[]byte)
	defer bounds.Put(bound)
	*bound = at.bind((*bound)[:0], dst[start:start+headLen], transactionID)
	return r.active.aead.Seal(dst, nonce, payload, *bound), nil
}

// Open appends the payload of an envelope to dst. Errors are those named ErrKey and ErrBroken; they say nothing of the
// content, and dst is as it was.
func (r *Ring) Open(dst []byte, at *Place, transactionID string, envelope []byte) ([]byte, error) {
	id, ok := KeyOf(envelope)
	if !ok {
		return dst, fmt.Errorf("%w: its form is unknown", ErrBroken)
	}
	var k *Key
	if r != nil {
		k = r.keys[id]
	}
	if k == nil {
		return dst, fmt.Errorf("%w: %s", ErrKey, id)
	}
	bound := bounds.Get().(*[]byte)
	defer bounds.Put(bound)
	*bound = at.bind((*bound)[:0], envelope[:headLen], transactionID)
	out, err := k.aead.Open(dst, envelope[headLen:openLen], envelope[openLen:], *bound)
	if err != nil {
		return dst, ErrBroken
	}
	return out, nil
}

// bounds holds associated data for the length of a call: it goes through an interface, so it cannot live on the stack.
var bounds = sync.Pool{New: func() any { return new(make([]byte, 0, 256)) }}

// bind appends the associated data. The name of the queue is the only part of unknown length before the last, so no two
// places and ids give the same bytes.
func (at *Place) bind(dst, head []byte, transactionID string) []byte {
	if len(at.Queue) > math.MaxUint16 {
		panic("seal: the name of a queue is longer than 65535 bytes")
	}
	dst = append(dst, domain...)
	dst = append(dst, head...)
	dst = append(dst, at.Tenant[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(at.Partition))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(at.Queue)))
	dst = append(dst, at.Queue...)
	return append(dst, transactionID...)
}
