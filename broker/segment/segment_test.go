package segment_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/broker/segment"
)

func frames(r *segment.Reader) []segment.Frame {
	fs := make([]segment.Frame, r.Len())
	for i := range fs {
		fs[i] = r.Frame(i)
	}
	return fs
}

func genFrame() *rapid.Generator[segment.Frame] {
	return rapid.Custom(func(t *rapid.T) segment.Frame {
		return segment.Frame{
			TransactionID: rapid.StringN(0, 40, 200).Draw(t, "txn"),
			Payload:       rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
			ProducerSub:   rapid.OneOf(rapid.Just(""), rapid.StringN(1, 20, 80)).Draw(t, "sub"),
			TraceID: rapid.OneOf(rapid.Just(""), rapid.StringN(1, 40, 80), rapid.Just("0195c1b2-7f3a-7000-8000-0123456789ab"),
				rapid.Just("0195C1B2-7F3A-7000-8000-0123456789AB")).Draw(t, "trace"),
			Encrypted: rapid.Bool().Draw(t, "encrypted"),
		}
	})
}

func TestWhatIsEncodedComesBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(genFrame(), 0, 30).Draw(t, "frames")
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "prefix")
		blob := segment.Encode(bytes.Clone(prefix), want)
		if !bytes.HasPrefix(blob, prefix) {
			t.Fatalf("Encode changed what stood in dst: %x", blob[:len(prefix)])
		}
		r, err := segment.Open(blob[len(prefix):])
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, frames(r), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("frames differ (-want +got):\n%s", d)
		}
	})
}

func TestCodec(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for name, tt := range map[string]struct {
		payload []byte
		want    byte
	}{
		"a small body stays raw":                {bytes.Repeat([]byte("a"), 400), 0},
		"a body that shrinks is compressed":     {bytes.Repeat([]byte("a"), 4096), 1},
		"a body that does not shrink stays raw": {noise, 0},
		"a body that is encrypted is not tried": {bytes.Repeat([]byte("e"), 4096), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blob := segment.Encode(nil, []segment.Frame{{TransactionID: "t", Payload: tt.payload, Encrypted: tt.payload[0] == 'e'}})
			if blob[3] != tt.want {
				t.Errorf("codec %d, want %d", blob[3], tt.want)
			}
			r, err := segment.Open(blob)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Frame(0).Payload; !bytes.Equal(got, tt.payload) {
				t.Errorf("payload came back as %d other bytes", len(got))
			}
		})
	}
}

// The stored bytes are read by every later version: this one must never change.
func TestBytesAreFixed(t *testing.T) {
	t.Parallel()
	got := hex.EncodeToString(segment.Encode(nil, []segment.Frame{
		{TransactionID: "tx-1", Payload: []byte(`{"a":1}`), ProducerSub: "key_7", TraceID: "0195c1b2-7f3a-7000-8000-0123456789ab"},
		{TransactionID: "", Payload: []byte(`null`), TraceID: "t", Encrypted: true},
	}))
	const want = "5153" + "01" + "00" + // magic, version, raw
		"02000000" + "37000000" + "35776e90" + // two frames, 55 bytes, checksum
		"25000000" + "2f000000" + // where they end
		"05" + "0400" + "74782d31" + "0195c1b27f3a700080000123456789ab" + "0500" + "6b65795f37" + "7b2261223a317d" +
		"0a" + "0000" + "0100" + "74" + "6e756c6c"
	if got != want {
		t.Errorf("bytes changed:\n got %s\nwant %s", got, want)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	fs := []segment.Frame{{TransactionID: "a", Payload: []byte("1")}, {TransactionID: "b", Payload: bytes.Repeat([]byte("x"), 2000)}}
	good := segment.Encode(nil, fs)
	raw := segment.Encode(nil, fs[:1])
	edit := func(b []byte, f func([]byte) []byte) []byte { return f(bytes.Clone(b)) }
	for name, blob := range map[string][]byte{
		"nothing":               nil,
		"half a header":         good[:10],
		"a foreign magic":       edit(good, func(b []byte) []byte { b[0] = 'X'; return b }),
		"a later version":       edit(good, func(b []byte) []byte { b[2] = 2; return b }),
		"an unknown codec":      edit(good, func(b []byte) []byte { b[3] = 7; return b }),
		"a raw body as zstd":    edit(raw, func(b []byte) []byte { b[3] = 1; return b }),
		"a zstd body as raw":    edit(good, func(b []byte) []byte { b[3] = 0; return b }),
		"a cut body":            good[:len(good)-1],
		"bytes behind it":       append(bytes.Clone(raw), 0),
		"another frame count":   edit(good, func(b []byte) []byte { b[4]++; return b }),
		"a huge frame count":    edit(good, func(b []byte) []byte { copy(b[4:], "\xff\xff\xff\xff"); return b }),
		"a huge length":         edit(good, func(b []byte) []byte { copy(b[8:], "\xff\xff\xff\xff"); return b }),
		"an unreachable length": edit(good, func(b []byte) []byte { copy(b[8:], "\x00\x00\x00\x3f"); return b }),
		"another checksum":      edit(good, func(b []byte) []byte { b[12]++; return b }),
		"a flipped body bit":    edit(raw, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := segment.Open(blob)
			if !errors.Is(err, segment.ErrCorrupt) {
				t.Errorf("Open gave %v, %v; want ErrCorrupt", r, err)
			}
		})
	}
}

// A body with a right checksum may still lie about its frames.
func TestOpenRefusesFramesThatLie(t *testing.T) {
	t.Parallel()
	u16 := func(n int) []byte { return binary.LittleEndian.AppendUint16(nil, uint16(n)) }
	frame := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, tt := range map[string]struct {
		ends []uint32
		body []byte
	}{
		"an end that falls":               {[]uint32{6, 3}, frame([]byte{0}, u16(0), []byte{0}, u16(0))},
		"an end behind the body":          {[]uint32{9}, frame([]byte{0}, u16(0))},
		"bytes behind the last frame":     {[]uint32{3}, frame([]byte{0}, u16(0), []byte{1})},
		"an empty frame":                  {[]uint32{0}, nil},
		"an unknown flag":                 {[]uint32{3}, frame([]byte{16}, u16(0))},
		"both forms of a trace id":        {[]uint32{23}, frame([]byte{3}, u16(0), make([]byte, 20))},
		"a transaction id behind its end": {[]uint32{5}, frame([]byte{0}, u16(3), []byte("ab"))},
		"half a trace id":                 {[]uint32{10}, frame([]byte{1}, u16(0), make([]byte, 7))},
		"a trace text behind its end":     {[]uint32{5}, frame([]byte{2}, u16(0), u16(1))},
		"a missing producer":              {[]uint32{4}, frame([]byte{4}, u16(0), []byte{1})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := segment.Open(segment.Seal(tt.ends, tt.body)); !errors.Is(err, segment.ErrCorrupt) {
				t.Errorf("Open gave %v; want ErrCorrupt", err)
			}
		})
	}
}

func TestAddRefusesTextsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic for a transaction id of 65536 bytes")
		}
	}()
	segment.Encode(nil, []segment.Frame{{TransactionID: strings.Repeat("x", segment.MaxText+1)}})
}

func TestBuilderIsReusable(t *testing.T) {
	t.Parallel()
	var b segment.Builder
	var dst []byte
	for n := range 5 {
		b.Reset()
		var want []segment.Frame
		for i := range n * 7 {
			f := segment.Frame{TransactionID: fmt.Sprint(n, i), Payload: []byte(strings.Repeat("p", i))}
			b.Add(&f)
			want = append(want, f)
		}
		dst = b.Append(dst[:0])
		r, err := segment.Open(dst)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, frames(r), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("round %d (-want +got):\n%s", n, d)
		}
		if !bytes.Equal(dst, segment.Encode(nil, want)) {
			t.Errorf("round %d: Builder and Encode disagree", n)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Fuzz(func(t *testing.T, blob []byte) {
		r, err := segment.Open(blob)
		if err != nil {
			if !errors.Is(err, segment.ErrCorrupt) {
				t.Fatalf("error does not wrap ErrCorrupt: %v", err)
			}
			return
		}
		again, err := segment.Open(segment.Encode(nil, frames(r)))
		if err != nil {
			t.Fatalf("what Open accepted cannot be encoded again: %v", err)
		}
		if d := cmp.Diff(frames(r), frames(again), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("frames differ (-want +got):\n%s", d)
		}
	})
}

// FuzzFrames gives the frame parser bodies whose checksum is right, which mutation alone would never find.
func FuzzFrames(f *testing.F) {
	f.Fuzz(func(t *testing.T, table, body []byte) {
		ends := make([]uint32, len(table)/4)
		for i := range ends {
			ends[i] = binary.LittleEndian.Uint32(table[4*i:])
		}
		r, err := segment.Open(segment.Seal(ends, body))
		if err != nil {
			return
		}
		if _, err := segment.Open(segment.Encode(nil, frames(r))); err != nil {
			t.Fatalf("what Open accepted cannot be encoded again: %v", err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{1, 100} {
		fs := make([]segment.Frame, n)
		for i := range fs {
			fs[i] = segment.Frame{TransactionID: fmt.Sprintf("0195c1b2-7f3a-7000-8000-%012d", i), Payload: []byte(fmt.Sprintf(`{"n":%d,"text":"%s"}`, i, strings.Repeat("lorem ipsum ", 19)))}
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = segment.Encode(dst[:0], fs)
			}
			b.SetBytes(int64(n * 256))
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	fs := make([]segment.Frame, 100)
	for i := range fs {
		fs[i] = segment.Frame{TransactionID: fmt.Sprintf("0195c1b2-7f3a-7000-8000-%012d", i), Payload: bytes.Repeat([]byte("lorem "), 42)}
	}
	blob := segment.Encode(nil, fs)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := segment.Open(blob); err != nil {
			b.Fatal(err)
		}
	}
}
