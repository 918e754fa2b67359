package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"runtime"
	"sync"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
)

// Frame is one message of a segment. Slices are the caller's; encoding copies them, Reader.Frame aliases the decoded
// bytes.
type Frame struct {
	TransactionID string // at most MaxText bytes
	Payload       []byte // as sent: raw JSON, or the encryption envelope when Encrypted
	ProducerSub   string // "" none; at most MaxText bytes
	TraceID       string // "" none; at most MaxText bytes; a canonical lower-case UUID takes 16 bytes
	Encrypted     bool   // Payload is an encryption envelope, not what the sender wrote
	Added         uint16 // bytes by which it is longer than what was sent; for the books of the encoding side, not stored
}

// SentBytes returns the length of the payload as its sender wrote it, where the frame was made.
func (f *Frame) SentBytes() int { return len(f.Payload) - int(f.Added) }

const (
	// MaxText bounds the texts of a frame in bytes: their lengths are stored in 16 bits.
	MaxText = math.MaxUint16
	// MaxBody bounds the uncompressed body in bytes: PostgreSQL's own limit of one value.
	MaxBody = 1 << 30

	headerLen   = 16
	tableEntry  = 4
	version     = 1
	minCompress = 512 // below it zstd costs more than it saves
)

const (
	codecRaw  = 0
	codecZstd = 1
)

const (
	flagTraceUUID = 1 << iota
	flagTraceText
	flagProducer
	flagEncrypted
	flagsKnown = 1<<iota - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The shared encoder is safe for concurrent EncodeAll and keeps a working set of 256 KiB per concurrent call, made
// here and not by the first flush. The checksum is ours, so zstd's own is off; a window of 1 MiB spans any segment that
// a flush usually builds.
var encoder = func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(min(runtime.GOMAXPROCS(0), 8)),
		zstd.WithWindowSize(1<<20),
		zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderCRC(false))
	if err != nil {
		panic(err) // the options are constants
	}
	e.EncodeAll(nil, nil)
	return e
}()

// Builder gathers frames from several places into one segment. The zero value is ready; it keeps its buffers for the
// next segment. Not safe for concurrent use.
type Builder struct {
	ends   []uint32
	frames []byte
	body   []byte
	sealed int // bytes of encrypted payloads among frames
}

// Reset forgets the frames added so far and keeps the buffers.
func (b *Builder) Reset() { b.ends, b.frames, b.sealed = b.ends[:0], b.frames[:0], 0 }

// Len returns the number of frames added since the last Reset.
func (b *Builder) Len() int { return len(b.ends) }

// Add copies f behind the frames added so far. It panics when a text is longer than MaxText or the body outgrows
// MaxBody: callers bound both long before.
func (b *Builder) Add(f *Frame) {
	if len(f.TransactionID) > MaxText || len(f.TraceID) > MaxText || len(f.ProducerSub) > MaxText {
		panic("segment: a text of the frame is longer than 65535 bytes")
	}
	at, p := len(b.frames), b.frames
	p = append(p, 0)
	p = appendText(p, f.TransactionID)
	var flags byte
	if f.TraceID != "" {
		if id, ok := canonicalUUID(f.TraceID); ok {
			flags |= flagTraceUUID
			p = append(p, id[:]...)
		} else {
			flags |= flagTraceText
			p = appendText(p, f.TraceID)
		}
	}
	if f.ProducerSub != "" {
		flags |= flagProducer
		p = appendText(p, f.ProducerSub)
	}
	if f.Encrypted {
		flags |= flagEncrypted
		b.sealed += len(f.Payload)
	}
	p = append(p, f.Payload...)
	p[at] = flags
	if len(p)+tableEntry*(len(b.ends)+1) > MaxBody {
		panic(fmt.Sprintf("segment: the body of %d frames is larger than %d bytes", len(b.ends)+1, MaxBody))
	}
	b.frames = p
	b.ends = append(b.ends, uint32(len(p)))
}

// Append appends the segment of the added frames to dst and returns it. The frames stay until Reset.
func (b *Builder) Append(dst []byte) []byte {
	b.body = b.body[:0]
	for _, end := range b.ends {
		b.body = binary.LittleEndian.AppendUint32(b.body, end)
	}
	b.body = append(b.body, b.frames...)

	at := len(dst)
	dst = append(dst, 'Q', 'S', version, codecRaw)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b.ends)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b.body)))
	dst = binary.LittleEndian.AppendUint32(dst, checksum(dst[at:], b.body))
	start := len(dst)
	// Ciphertext does not shrink: where it is most of the body, zstd would only spend time to find that out.
	if len(b.body) >= minCompress && 2*b.sealed <= len(b.body) {
		dst = encoder.EncodeAll(b.body, dst)
		if packed := len(dst) - start; packed <= len(b.body)-len(b.body)/8 {
			dst[at+3] = codecZstd
			return dst
		}
		dst = dst[:start]
	}
	return append(dst, b.body...)
}

// Shrink gives back buffers that an unusually large segment has grown beyond max bytes.
func (b *Builder) Shrink(max int) {
	if cap(b.frames) > max || cap(b.body) > max {
		*b = Builder{}
	}
}

var builders = sync.Pool{New: func() any { return new(Builder) }}

// Encode appends the segment bytes of frames to dst: header, frame offset table, frames, zstd when it pays, CRC-32C.
// It panics where Builder.Add does. Safe for concurrent use.
func Encode(dst []byte, frames []Frame) []byte {
	b := builders.Get().(*Builder)
	b.Reset()
	for i := range frames {
		b.Add(&frames[i])
	}
	dst = b.Append(dst)
	b.Shrink(1 << 20)
	builders.Put(b)
	return dst
}

// checksum covers the two numbers of the header and the uncompressed body, so that neither can change unnoticed.
func checksum(header, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(header[4:12], castagnoli), castagnoli, body)
}

func appendText(p []byte, s string) []byte {
	p = binary.LittleEndian.AppendUint16(p, uint16(len(s)))
	return append(p, s...)
}

// canonicalUUID parses the only spelling that String gives back, so that the short form loses nothing.
func canonicalUUID(s string) (uuid.UUID, bool) {
	if len(s) != 36 {
		return uuid.UUID{}, false
	}
	for i := range len(s) {
		if c := s[i]; c >= 'A' && c <= 'F' {
			return uuid.UUID{}, false
		}
	}
	id, err := uuid.Parse(s)
	return id, err == nil
}
