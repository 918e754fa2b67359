package segment_test

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/broker/segment"
)

// unmix inverts mix: that it exists is why distinct partitions stay distinct.
func unmix(p uint64) uint64 {
	const mask = 1<<34 - 1
	inverse := func(odd uint64) uint64 { // Newton: each step doubles the number of right bits
		x := odd
		for range 6 {
			x *= 2 - odd*x
		}
		return x
	}
	p ^= p >> 17
	p = p * inverse(0x2545f4914f6cdd1d) & mask
	p ^= p >> 17
	return p * inverse(0x1e3779b97) & mask
}

func TestMixLosesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.Uint64Range(0, 1<<34-1).Draw(t, "partition")
		m := segment.Mix(p)
		if m >= 1<<34 {
			t.Fatalf("mix(%d) = %d is wider than 34 bits", p, m)
		}
		if got := unmix(m); got != p {
			t.Fatalf("unmix(mix(%d)) = %d", p, got)
		}
	})
}

func TestMessageIDsRise(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		partition := rapid.Int64Range(0, 1<<34-1).Draw(t, "partition")
		ms := rapid.Int64Range(0, 1<<47).Draw(t, "ms")
		offset := rapid.Int64Range(0, 1<<40-1<<20).Draw(t, "offset")
		prev := segment.MessageID(time.UnixMilli(ms), offset, partition)
		for range 20 {
			offset += rapid.Int64Range(1, 1<<14).Draw(t, "step")
			ms += rapid.SampledFrom([]int64{0, 0, 1, 5000}).Draw(t, "elapsed")
			id := segment.MessageID(time.UnixMilli(ms), offset, partition)
			if bytes.Compare(prev[:], id[:]) >= 0 || prev.String() >= id.String() {
				t.Fatalf("%s does not stand behind %s", id, prev)
			}
			prev = id
		}
	})
}

func TestMessageIDsAreVersion7(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1764452345678)
	id := segment.MessageID(at, 1<<40-1, 1<<34-1)
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		t.Errorf("%s: version %d, variant %v", id, id.Version(), id.Variant())
	}
	if sec, nsec := id.Time().UnixTime(); !time.Unix(sec, nsec).Equal(at) {
		t.Errorf("%s tells %v, want %v", id, time.Unix(sec, nsec), at)
	}
	if a, b := segment.MessageID(at, 5, 1), segment.MessageID(at, 5, 2); a == b {
		t.Errorf("two partitions share %s", a)
	}
}

func TestHashIDIsTheHeadOfSHA256(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"":    "e3b0c44298fc1c149afbf4c8996fb924",
		"abc": "ba7816bf8f01cfea414140de5dae2223",
	} {
		got := segment.HashID(id)
		if hex.EncodeToString(got[:]) != want {
			t.Errorf("HashID(%q) = %x, want %s", id, got, want)
		}
	}
	all := segment.AppendHashes([]byte("x"), []segment.Frame{{TransactionID: ""}, {TransactionID: "abc"}})
	if got, want := hex.EncodeToString(all[1:]), "e3b0c44298fc1c149afbf4c8996fb924ba7816bf8f01cfea414140de5dae2223"; got != want {
		t.Errorf("AppendHashes = %s, want %s", got, want)
	}
}
