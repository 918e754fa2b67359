package broker

import (
	"net/url"
	"strings"
	"testing"

	"github.com/queengate/queengate/wire"
)

// TestIDsCarryTheShareOfTheirQueue holds SQL, which makes the ids of partitions, and Go, which makes those of leases and
// reads both, to one hash.
func TestIDsCarryTheShareOfTheirQueue(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	check := func(what, id string, want wire.Share) {
		t.Helper()
		if got, ok := wire.ShareOfID(id); !ok || got != want {
			t.Errorf("%s %s carries %d, %v, want %d", what, id, got, ok, want)
		}
	}
	for _, queue := range []string{"orders", "Überweisungen für 東京", "a.b.c", strings.Repeat("q", wire.MaxNameBytes)} {
		w.one(queue, "t1")
		got := w.pop(url.PathEscape(queue) + "?batch=1")
		if len(got.Messages) != 1 {
			t.Fatalf("%q: popped %+v", queue, got)
		}
		check("the partition", got.Messages[0].PartitionID, wire.QueueShare(queue))
		check("the lease", got.LeaseID, wire.QueueShare(queue))
		if done := w.ack("completed", wire.QueueModeGroup, got.Messages...); !done[0].Success {
			t.Errorf("%q: ack %+v", queue, done)
		}
	}
	w.one("shop.mail", "t1")
	a := w.do("GET", "/api/v1/pop?namespace=shop&task=mail&batch=1", "").want(t, 200)
	check("the lease of a discovery pop", decode[popped](t, a).LeaseID, wire.ScopeShare("shop", "mail"))
}
