package mesh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kind says what a frame is. Kinds below FirstKind belong to the mesh itself; a receiver ignores kinds it does not know.
type Kind byte

const (
	kindHello     Kind = 1 // node id (16 bytes) and name; the first frame of each side
	kindHeartbeat Kind = 2 // empty; the accepting side answers each with one

	// FirstKind is the first one that is the user's.
	FirstKind Kind = 16
)

// MaxPayload bounds the payload of a frame in bytes; what is read is bounded before anything is allocated for it.
const MaxPayload = 1 << 20

// headBytes is a length of four bytes, big endian, of kind and payload, and the kind.
const headBytes = 5

var errFrameLength = errors.New("mesh: a frame's length is out of bounds")

func appendFrame(dst []byte, kind Kind, payload []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(1+len(payload)))
	dst = append(dst, byte(kind))
	return append(dst, payload...)
}

// readFrame reads one frame into buf, which grows as needed; the payload is valid until the next read.
func readFrame(r io.Reader, buf *[]byte) (Kind, []byte, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n < 1 || n > 1+MaxPayload {
		return 0, nil, fmt.Errorf("%w: %d", errFrameLength, n)
	}
	n--
	if cap(*buf) < int(n) {
		*buf = make([]byte, n)
	}
	payload := (*buf)[:n]
	if _, err := io.ReadFull(r, payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(head[4]), payload, nil
}
