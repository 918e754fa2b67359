package seal

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// key returns the n-th key of the tests.
func key(t testing.TB, n byte) *Key {
	t.Helper()
	k, err := ParseKey(strings.Repeat("5a", keyLen-1) + fmt.Sprintf("%02x", n))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var home = Place{Tenant: uuid.MustParse("0195c1b2-7f3a-7000-8000-0123456789ab"), Queue: "orders", Partition: 7}

func genPlace() *rapid.Generator[Place] {
	return rapid.Custom(func(t *rapid.T) Place {
		return Place{
			Tenant:    uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "tenant")),
			Queue:     rapid.StringN(0, 6, 20).Draw(t, "queue"),
			Partition: rapid.Int64().Draw(t, "partition"),
		}
	})
}

func TestWhatIsSealedOpensInItsPlaceOnly(t *testing.T) {
	t.Parallel()
	ring := NewRing(key(t, 1))
	rapid.Check(t, func(t *rapid.T) {
		at, other := genPlace().Draw(t, "at"), genPlace().Draw(t, "other")
		txn, otherTxn := rapid.StringN(0, 8, 30).Draw(t, "txn"), rapid.StringN(0, 8, 30).Draw(t, "other txn")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "prefix")
		dst, err := ring.Seal(bytes.Clone(prefix), &at, txn, payload)
		if err != nil {
			t.Fatal(err)
		}
		envelope := dst[len(prefix):]
		if !bytes.HasPrefix(dst, prefix) || len(envelope) != len(payload)+Overhead || !Is(envelope) {
			t.Fatalf("an envelope of %d bytes for %d behind %x: %x", len(envelope), len(payload), prefix, dst)
		}
		got, err := ring.Open(bytes.Clone(prefix), &at, txn, envelope)
		if err != nil || !bytes.Equal(got, append(bytes.Clone(prefix), payload...)) {
			t.Fatalf("opened as %x, %v", got, err)
		}
		if other != at {
			if _, err := ring.Open(nil, &other, txn, envelope); !errors.Is(err, ErrBroken) {
				t.Fatalf("%+v opens what %+v sealed: %v", other, at, err)
			}
		}
		if otherTxn != txn {
			if _, err := ring.Open(nil, &at, otherTxn, envelope); !errors.Is(err, ErrBroken) {
				t.Fatalf("message %q opens what %q sealed: %v", otherTxn, txn, err)
			}
		}
	})
}

// One thing differs at a time; the last two differ only in where one text ends and the next begins.
func TestSwapsAreDetected(t *testing.T) {
	t.Parallel()
	ring := NewRing(key(t, 1))
	sealed, err := ring.Seal(nil, &home, "tx-1", []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	moved := func(f func(*Place)) Place { at := home; f(&at); return at }
	for rule, to := range map[string]struct {
		at  Place
		txn string
	}{
		"another message":                  {home, "tx-2"},
		"another partition":                {moved(func(p *Place) { p.Partition++ }), "tx-1"},
		"another queue":                    {moved(func(p *Place) { p.Queue = "order" }), "tx-1"},
		"another tenant":                   {moved(func(p *Place) { p.Tenant[15]++ }), "tx-1"},
		"the queue's name runs on":         {moved(func(p *Place) { p.Queue = "orderst" }), "x-1"},
		"the transaction id begins sooner": {moved(func(p *Place) { p.Queue = "order" }), "stx-1"},
	} {
		if got, err := ring.Open(nil, &to.at, to.txn, sealed); !errors.Is(err, ErrBroken) || got != nil {
			t.Errorf("%s: %q, %v; want ErrBroken", rule, got, err)
		}
	}
}

func TestEveryChangedByteIsDetected(t *testing.T) {
	t.Parallel()
	ring := NewRing(key(t, 1), key(t, 2))
	sealed, err := ring.Seal(nil, &home, "tx-1", []byte(`{"a":"bcdefghijklmnopqrstuvwxyz"}`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		for bit := range 8 {
			bent := bytes.Clone(sealed)
			bent[i] ^= 1 << bit
			want := ErrBroken
			if i >= 1 && i < headLen {
				want = ErrKey // it names another key
			}
			if got, err := ring.Open(nil, &home, "tx-1", bent); !errors.Is(err, want) || got != nil {
				t.Errorf("byte %d, bit %d: %q, %v; want %v", i, bit, got, err, want)
			}
		}
	}
	for n := range sealed {
		if _, err := ring.Open(nil, &home, "tx-1", sealed[:n]); err == nil {
			t.Errorf("the first %d bytes open", n)
		}
	}
	if _, err := ring.Open(nil, &home, "tx-1", append(bytes.Clone(sealed), 0)); !errors.Is(err, ErrBroken) {
		t.Errorf("with a byte behind it: %v", err)
	}
	// The id of a key that is there does not make what another sealed its own.
	second := key(t, 2).ID()
	copy(sealed[1:], second[:])
	if _, err := ring.Open(nil, &home, "tx-1", sealed); !errors.Is(err, ErrBroken) {
		t.Errorf("under another key's id: %v", err)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	old, next := key(t, 1), key(t, 2)
	before, during, after := NewRing(old, next), NewRing(next, old), NewRing(next)
	first, err := before.Seal(nil, &home, "a", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := during.Seal(nil, &home, "b", []byte("2"))
	if err != nil {
		t.Fatal(err)
	}
	for rule, tc := range map[string]struct {
		ring    *Ring
		txn     string
		sealed  []byte
		payload string
		err     error
	}{
		"the next key is known before it is used":     {before, "b", second, "2", nil},
		"the old key opens after the turn":            {during, "a", first, "1", nil},
		"a key that is gone is named as missing":      {after, "a", first, "", ErrKey},
		"what the new key sealed needs no other":      {after, "b", second, "2", nil},
		"without any key nothing opens, nothing lies": {nil, "b", second, "", ErrKey},
	} {
		got, err := tc.ring.Open(nil, &home, tc.txn, tc.sealed)
		if !errors.Is(err, tc.err) || string(got) != tc.payload {
			t.Errorf("%s: %q, %v; want %q, %v", rule, got, err, tc.payload, tc.err)
		}
	}
	_, err = after.Open(nil, &home, "a", first)
	if !strings.Contains(err.Error(), old.ID().String()) {
		t.Errorf("%q does not name the key %s", err, old.ID())
	}
	if id, ok := KeyOf(second); !ok || id != next.ID() {
		t.Errorf("KeyOf: %v, %v", id, ok)
	}
}

func TestWithoutAnActiveKeyNothingIsSealed(t *testing.T) {
	t.Parallel()
	for rule, ring := range map[string]*Ring{"no ring": nil, "keys that only open": NewRing(nil, key(t, 1))} {
		if got, err := ring.Seal([]byte("x"), &home, "a", []byte("1")); !errors.Is(err, ErrNoKey) || string(got) != "x" {
			t.Errorf("%s: %q, %v", rule, got, err)
		}
		if ring.Seals() {
			t.Errorf("%s: Seals", rule)
		}
	}
}

func TestMalformedKeysAreRefusedAndNeverQuoted(t *testing.T) {
	t.Parallel()
	good := strings.Repeat("5a", keyLen-1) + "01"
	for rule, text := range map[string]string{
		"nothing":            "",
		"too short":          good[:62],
		"too long":           good + "ab",
		"not hexadecimal":    "zz" + good[2:],
		"a placeholder":      strings.Repeat("0", 64),
		"another one":        strings.Repeat("ab", 32),
		"a line end left on": good[:63] + "\n",
	} {
		k, err := ParseKey(text)
		if err == nil {
			t.Errorf("%s: %v", rule, k)
			continue
		}
		if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error quotes it: %v", rule, err)
		}
	}
	upper, err := ParseKey(strings.ToUpper(good))
	if err != nil || upper.ID() != key(t, 1).ID() {
		t.Errorf("the case of the digits matters: %v, %v", upper, err)
	}
	if shown := fmt.Sprintf("%v %s", upper, upper); strings.Contains(shown, "5a5a") {
		t.Errorf("a key prints as %s", shown)
	}
}

// pinned returns a key and what it sealed once: {"a":1} at home under tx-1.
func pinned(t testing.TB) (*Key, []byte) {
	t.Helper()
	k, err := ParseKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := hex.DecodeString("016043e18d2b0549d0431bfe2de094b85d674e3ed9951ee10a0e62964adb5f8679" +
		"02172e79e23cc119abfaf177de58f5177faca726c7fac6")
	if err != nil {
		t.Fatal(err)
	}
	return k, sealed
}

// What is stored is read by every later version: neither the id of a key nor the bytes may change.
func TestBytesAreFixed(t *testing.T) {
	t.Parallel()
	k, sealed := pinned(t)
	if k.String() != "6043e18d2b0549d0" {
		t.Errorf("the key is called %s", k)
	}
	if got, err := NewRing(k).Open(nil, &home, "tx-1", sealed); err != nil || string(got) != `{"a":1}` {
		t.Errorf("%q, %v", got, err)
	}
}

// With 24 random bytes a repeat among a million would be a broken generator, and the end of all secrecy.
func TestNoncesDoNotRepeat(t *testing.T) {
	t.Parallel()
	const n = 1_000_000
	ring := NewRing(key(t, 1))
	seen := make(map[[openLen - headLen]byte]struct{}, n)
	var dst []byte
	for range n {
		dst, _ = ring.Seal(dst[:0], &home, "a", nil)
		seen[[openLen - headLen]byte(dst[headLen:openLen])] = struct{}{}
	}
	if len(seen) != n {
		t.Errorf("%d nonces for %d messages", len(seen), n)
	}
}

func FuzzOpen(f *testing.F) {
	k, good := pinned(f)
	ring := NewRing(k)
	f.Add(good)
	f.Add(good[:Overhead])
	f.Add([]byte(`{"a":1}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, envelope []byte) {
		got, err := ring.Open(nil, &home, "tx-1", envelope)
		switch {
		case err == nil:
			if !bytes.Equal(envelope, good) {
				t.Fatalf("%x was forged: %q", envelope, got)
			}
		case got != nil:
			t.Fatalf("%v, and yet %q", err, got)
		case !errors.Is(err, ErrBroken) && !errors.Is(err, ErrKey):
			t.Fatalf("an error of no kind: %v", err)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	ring := NewRing(key(b, 1))
	for _, size := range []int{256, 4096} {
		payload := bytes.Repeat([]byte("x"), size)
		dst := make([]byte, 0, size+Overhead)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := ring.Seal(dst, &home, "0195c1b2-7f3a-7000-8000-0123456789ab", payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	ring := NewRing(key(b, 1))
	sealed, err := ring.Seal(nil, &home, "t", bytes.Repeat([]byte("x"), 256))
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 256)
	b.ReportAllocs()
	b.SetBytes(256)
	for b.Loop() {
		if _, err := ring.Open(dst, &home, "t", sealed); err != nil {
			b.Fatal(err)
		}
	}
}
