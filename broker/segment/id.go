package segment

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
	"unsafe"

	"github.com/google/uuid"
)

const (
	offsetBits    = 40
	surrogateBits = 34
	surrogateMask = 1<<surrogateBits - 1
)

// MessageID computes the id of a message: UUIDv7 layout from the created_at milliseconds (48 bits), the offset (40
// bits) and the partition surrogate (34 bits, bit-mixed), so ids rise with offsets within a partition (design.md 3).
//
//	milliseconds 48 | version 4 | offset, high 12 | variant 2 | offset, low 28 | mixed partition 34
//
// Ids of one partition rise strictly with the offset while created_at does not fall, as bytes and as text. Two
// messages of one cell never share an id while offsets stay below 2^40 and surrogates below 2^34.
func MessageID(createdAt time.Time, offset, partition int64) uuid.UUID {
	var id uuid.UUID
	off := uint64(offset) & (1<<offsetBits - 1)
	binary.BigEndian.PutUint64(id[:8], uint64(createdAt.UnixMilli())<<16|7<<12|off>>28)
	binary.BigEndian.PutUint64(id[8:], 0b10<<62|off&(1<<28-1)<<surrogateBits|mix(uint64(partition)))
	return id
}

// mix scatters a surrogate over 34 bits without ever mapping two to one: multiplication by an odd number modulo 2^34
// and a shift by half the width are both invertible. Without it the ids of neighbours would differ in their last
// digit only, and a reader would take them for a sequence.
func mix(p uint64) uint64 {
	p &= surrogateMask
	p = p * 0x1e3779b97 & surrogateMask
	p ^= p >> (surrogateBits / 2)
	p = p * 0x2545f4914f6cdd1d & surrogateMask
	p ^= p >> (surrogateBits / 2)
	return p
}

// HashID returns the identity of a transaction id: SHA-256 truncated to 128 bits.
func HashID(transactionID string) [16]byte {
	// The text is only read, so looking at it as bytes needs no copy.
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(transactionID), len(transactionID)))
	return [16]byte(sum[:16])
}

// AppendHashes appends the identities of frames to dst, 16 bytes each, in order: the bytes of a sidecar row.
func AppendHashes(dst []byte, frames []Frame) []byte {
	for i := range frames {
		h := HashID(frames[i].TransactionID)
		dst = append(dst, h[:]...)
	}
	return dst
}
