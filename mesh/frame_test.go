package mesh

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// Whatever comes: no panic, nothing allocated beyond the bound, and what is accepted is exactly what was framed.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendFrame(nil, FirstKind, []byte("payload")))
	f.Add(appendFrame(appendFrame(nil, kindHeartbeat, nil), FirstKind, make([]byte, 300)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 16})
	f.Add([]byte{0, 0, 0, 0, 16})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := bytes.NewReader(stream)
		var buf, again []byte
		for {
			kind, payload, err := readFrame(r, &buf)
			if err != nil {
				break
			}
			again = appendFrame(again, kind, payload)
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("%x was read as %x", stream, again)
		}
		if cap(buf) > 2*max(len(stream), MaxPayload) {
			t.Fatalf("%d bytes allocated for %d", cap(buf), len(stream))
		}
	})
}

func TestAFramesLengthIsLookedAtFirst(t *testing.T) {
	t.Parallel()
	var buf []byte
	for _, head := range [][]byte{{0, 0, 0, 0, 16}, {0xff, 0xff, 0xff, 0xff, 16}, {0, 0x10, 0, 2, 16}} {
		if _, _, err := readFrame(bytes.NewReader(head), &buf); !errors.Is(err, errFrameLength) {
			t.Errorf("%x: %v", head, err)
		}
	}
	if _, _, err := readFrame(bytes.NewReader([]byte{0, 0, 0, 9, 16, 1}), &buf); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut frame: %v", err)
	}
}
