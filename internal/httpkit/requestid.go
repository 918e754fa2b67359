package httpkit

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/wire"
)

// maxRequestIDBytes bounds a request id taken over from a request.
const maxRequestIDBytes = 64

// NewUUID returns a UUIDv7 of now with 74 random bits from the runtime's ChaCha8 source, which is seeded by the
// system and needs no lock. It is unpredictable enough for names (request, lease and transaction ids), not for keys.
func NewUUID() uuid.UUID { return uuidAt(time.Now()) }

func uuidAt(now time.Time) uuid.UUID {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[:8], uint64(now.UnixMilli())<<16|0x7000|rand.Uint64()&0x0fff)
	binary.BigEndian.PutUint64(u[8:], 1<<63|rand.Uint64()>>2)
	return u
}

// NewRequestID returns a fresh request id: the text of a UUIDv7.
func NewRequestID() string { return RequestIDAt(time.Now()) }

// RequestIDAt is NewRequestID for who knows the time.
func RequestIDAt(now time.Time) string { return uuidAt(now).String() }

// requestIDName is the header's name as bytes: it is set on every answer, and fasthttp would normalise a string each time.
var requestIDName = []byte(wire.HeaderRequestID)

// SetRequestID states the request's id on an answer.
func SetRequestID(h *fasthttp.ResponseHeader, id string) {
	var room [maxRequestIDBytes]byte
	h.SetCanonical(requestIDName, append(room[:0], id...))
}

// TakeRequestID returns the id a trusted peer sent, when it is 1 to 64 letters, digits, dots, dashes or underscores,
// and a fresh one otherwise.
func TakeRequestID(sent []byte) string {
	if len(sent) == 0 || len(sent) > maxRequestIDBytes {
		return NewRequestID()
	}
	for _, c := range sent {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return NewRequestID()
		}
	}
	return string(sent)
}
