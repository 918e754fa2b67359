package httpkit

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestUUIDsAreVersion7OfTheirTimeAndDiffer(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_800_000_000_123)
	seen := map[uuid.UUID]bool{}
	for range 10_000 {
		u := uuidAt(at)
		if u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			t.Fatalf("%v: version %d variant %v", u, u.Version(), u.Variant())
		}
		if sec, nsec := u.Time().UnixTime(); time.Unix(sec, nsec).UnixMilli() != at.UnixMilli() {
			t.Fatalf("%v: time %v, want %v", u, time.Unix(sec, nsec), at)
		}
		if seen[u] {
			t.Fatalf("%v came twice", u)
		}
		seen[u] = true
	}
}

func TestOnlySaneRequestIDsAreTakenOver(t *testing.T) {
	t.Parallel()
	for sent, taken := range map[string]bool{
		"":                      false,
		"0198f0aa-1.x_Y":        true,
		strings.Repeat("a", 64): true,
		strings.Repeat("a", 65): false,
		"a b":                   false,
		"a\nb":                  false,
		`a"b`:                   false,
	} {
		if got := TakeRequestID([]byte(sent)); (got == sent) != taken || got == "" {
			t.Errorf("%q: got %q, want taken over: %v", sent, got, taken)
		}
	}
}

func BenchmarkNewRequestID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		NewRequestID()
	}
}
