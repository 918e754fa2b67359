package wire

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestAnIDCarriesTheShareOfItsQueue(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"orders", "", "bücher", strings.Repeat("q", MaxNameBytes)} {
		want := QueueShare(queue)
		plain := uuid.Must(uuid.NewV7())
		id := want.Stamp(plain)
		if id.Version() != 8 || id.Variant() != uuid.RFC4122 || string(id[:6]) != string(plain[:6]) {
			t.Errorf("%q: the id is %s", queue, id)
		}
		for _, text := range []string{id.String(), strings.ToUpper(id.String())} {
			if got, ok := ShareOfID(text); !ok || got != want {
				t.Errorf("%q: %s carries %d, %v, want %d", queue, text, got, ok, want)
			}
		}
	}
}

func TestOtherIDsCarryNoShare(t *testing.T) {
	t.Parallel()
	stamped := Share(0xabcd).Stamp(uuid.New()).String()
	for _, id := range []string{
		"", "x", uuid.NewString(), uuid.Must(uuid.NewV7()).String(), stamped[:35], stamped + "0", stamped[:34] + "zz", "urn:uuid:" + stamped,
	} {
		if s, ok := ShareOfID(id); ok {
			t.Errorf("%q carries %d", id, s)
		}
	}
}

func TestSharesOfQueuesAndScopesLieEvenly(t *testing.T) {
	t.Parallel()
	const n, k = 8000, 8
	var count [k]int
	for i := range n / 2 {
		name := strings.Repeat("q", i%3+1) + string(rune('0'+i%10)) + "-" + strings.Repeat("x", i/10%50) + string(rune('a'+i/500))
		count[QueueShare(name)%k]++
		count[ScopeShare(name, "t")%k]++
	}
	for i, c := range count {
		if c < n/k*8/10 || c > n/k*12/10 {
			t.Errorf("share %d has %d of %d", i, c, n)
		}
	}
	if ScopeShare("a", "b") == ScopeShare("ab", "") {
		t.Error("the two parts of a scope run together")
	}
}

// TestEveryRouteSaysHowItFindsItsBroker holds the ways of the table against its patterns: what a path names decides.
func TestEveryRouteSaysHowItFindsItsBroker(t *testing.T) {
	t.Parallel()
	inBody := map[Op]bool{OpPush: true, OpConfigure: true, OpFetch: true, OpPartitionsChanged: true}
	for _, r := range Routes {
		name := r.Method + " " + r.Pattern
		has := func(param string) bool { return strings.Contains(r.Pattern+"/", "/:"+param+"/") }
		want := ByTenant
		switch {
		case r.Op == OpAck, r.Op == OpAckBatch, r.Op == OpTransaction:
			want = BySettled
		case has("lease"):
			want = ByLease
		case has("queue"), inBody[r.Op]:
			want = ByQueue
		case has("partition"):
			want = ByPartition
		case r.Op == OpPopDiscover:
			want = ByScope
		}
		if r.Way != want {
			t.Errorf("%s goes by %d, want %d", name, r.Way, want)
		}
	}
}

func TestAParameterIsFoundByItsName(t *testing.T) {
	t.Parallel()
	r, p, err := Match("POST", []byte("/api/v1/consumer-groups/g/queues/a%2Fb/partitions/p/seek"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"group": "g", "queue": "a/b", "partition": "p", "lease": ""} {
		if got := r.Param(&p, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
