package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
)

// ErrCorrupt is what every error of Open wraps: the bytes are no segment, or not the one that was written.
var ErrCorrupt = errors.New("corrupt segment")

// Inflation is bounded by the length the header claims, and that claim by what the bytes could possibly give: zstd
// makes at most one block of 128 KiB from four bytes.
const (
	blockLen    = 128 << 10
	minBlockLen = 4
)

var decoder = func() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(0),
		zstd.WithDecoderMaxMemory(MaxBody),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
}()

// Reader gives random access to the frames of one decoded segment. Safe for concurrent reads.
type Reader struct {
	table  []byte // 4 bytes per frame: its end in frames
	frames []byte
}

// Open checks and decodes segment bytes. It never panics on hostile bytes and bounds what it allocates. A raw segment
// is not copied: blob must stay untouched while the reader or a frame of it is in use. Errors wrap ErrCorrupt.
func Open(blob []byte) (*Reader, error) {
	if len(blob) < headerLen || blob[0] != 'Q' || blob[1] != 'S' {
		return nil, fmt.Errorf("%w: no header", ErrCorrupt)
	}
	if blob[2] != version {
		return nil, fmt.Errorf("%w: version %d is unknown", ErrCorrupt, blob[2])
	}
	n := uint64(binary.LittleEndian.Uint32(blob[4:]))
	size := uint64(binary.LittleEndian.Uint32(blob[8:]))
	packed := blob[headerLen:]
	if size > MaxBody || n*tableEntry > size {
		return nil, fmt.Errorf("%w: %d frames cannot stand in %d bytes", ErrCorrupt, n, size)
	}
	var body []byte
	switch blob[3] {
	case codecRaw:
		body = packed
	case codecZstd:
		if size > (uint64(len(packed))/minBlockLen+1)*blockLen {
			return nil, fmt.Errorf("%w: %d bytes cannot inflate to %d", ErrCorrupt, len(packed), size)
		}
		var err error
		if body, err = decoder.DecodeAll(packed, make([]byte, 0, size)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	default:
		return nil, fmt.Errorf("%w: codec %d is unknown", ErrCorrupt, blob[3])
	}
	if uint64(len(body)) != size {
		return nil, fmt.Errorf("%w: the body has %d bytes, its header says %d", ErrCorrupt, len(body), size)
	}
	if got, want := checksum(blob, body), binary.LittleEndian.Uint32(blob[12:]); got != want {
		return nil, fmt.Errorf("%w: checksum %08x, want %08x", ErrCorrupt, got, want)
	}
	r := &Reader{table: body[:n*tableEntry], frames: body[n*tableEntry:]}
	return r, r.verify()
}

// verify walks the frames once, so that Frame may trust their bounds.
func (r *Reader) verify() error {
	var from uint32
	for i := range r.Len() {
		end := r.end(i)
		if end < from || uint64(end) > uint64(len(r.frames)) {
			return fmt.Errorf("%w: frame %d ends at %d", ErrCorrupt, i, end)
		}
		if !wellFormed(r.frames[from:end]) {
			return fmt.Errorf("%w: frame %d is malformed", ErrCorrupt, i)
		}
		from = end
	}
	if uint64(from) != uint64(len(r.frames)) {
		return fmt.Errorf("%w: %d bytes behind the last frame", ErrCorrupt, uint64(len(r.frames))-uint64(from))
	}
	return nil
}

func wellFormed(p []byte) bool {
	if len(p) < 3 {
		return false
	}
	flags := p[0]
	if flags&^flagsKnown != 0 || flags&flagTraceUUID != 0 && flags&flagTraceText != 0 {
		return false
	}
	need := 1
	text := func() {
		if need >= 0 && len(p) >= need+2 {
			need += 2 + int(binary.LittleEndian.Uint16(p[need:]))
		} else {
			need = -1
		}
	}
	text()
	if flags&flagTraceUUID != 0 && need >= 0 {
		need += 16
	}
	if flags&flagTraceText != 0 {
		text()
	}
	if flags&flagProducer != 0 {
		text()
	}
	return need >= 0 && need <= len(p)
}

func (r *Reader) end(i int) uint32 { return binary.LittleEndian.Uint32(r.table[i*tableEntry:]) }

// Len returns the number of frames.
func (r *Reader) Len() int { return len(r.table) / tableEntry }

// Frame returns frame i; its slices and texts alias the reader's bytes. It panics when i is out of range.
func (r *Reader) Frame(i int) Frame {
	var from uint32
	if i > 0 {
		from = r.end(i - 1)
	}
	end := r.end(i)
	p := r.frames[from:end:end]
	flags := p[0]
	f := Frame{Encrypted: flags&flagEncrypted != 0}
	p = p[1:]
	f.TransactionID, p = cutText(p)
	switch {
	case flags&flagTraceUUID != 0:
		f.TraceID, p = uuid.UUID(p[:16]).String(), p[16:]
	case flags&flagTraceText != 0:
		f.TraceID, p = cutText(p)
	}
	if flags&flagProducer != 0 {
		f.ProducerSub, p = cutText(p)
	}
	f.Payload = p
	return f
}

// cutText returns the text at the head of p without copying it, and the rest.
func cutText(p []byte) (string, []byte) {
	n := int(binary.LittleEndian.Uint16(p))
	p = p[2:]
	return unsafe.String(unsafe.SliceData(p), n), p[n:]
}
