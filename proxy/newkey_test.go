package proxy

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
)

// TestAKeyThatIsNewerThanTheSnapshotIsLookedFor: whoever made it may use it before the gateway has heard of it.
func TestAKeyThatIsNewerThanTheSnapshotIsLookedFor(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	plaintext, publicID, hash := auth.NewKey("live")
	var asked atomic.Int64
	made := func(context.Context) bool {
		if asked.Add(1) == 1 {
			w.facts.Keys = append(w.facts.Keys, &plans.Key{
				ID: uuid.New(), Hash: hash, PublicID: publicID, Cluster: w.cluster, Scopes: plans.ScopeProduce,
			})
			w.publish()
		}
		return true
	}
	w.book.catchUp.Store(&made)
	with := func(key string) string { return strings.Replace(w.push(aPush), w.key, key, 1) }
	for range 2 {
		if r := w.ask(with(plaintext)); r.StatusCode != 201 {
			t.Errorf("a new key: got %d %q", r.StatusCode, r.body)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the database was asked %d times, want once", n)
	}
	unknown, _, _ := auth.NewKey("live")
	for name, key := range map[string]string{"that nobody made": unknown, "that is none": plaintext + "x", "that is a token": "eyJ"} {
		if r := w.ask(with(key)); r.StatusCode != 401 {
			t.Errorf("a key %s: got %d %q", name, r.StatusCode, r.body)
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the database was asked %d times, want once more for the key that nobody made", n)
	}
}

// TestUnknownKeysDoNotPileUp: beyond a number of them they are refused at once.
func TestUnknownKeysDoNotPileUp(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	hold, asked := make(chan struct{}), make(chan struct{}, maxNewKeys)
	held := func(context.Context) bool {
		asked <- struct{}{}
		<-hold
		return false
	}
	w.book.catchUp.Store(&held)
	unknown, _, _ := auth.NewKey("live")
	request := strings.Replace(w.push(aPush), w.key, unknown, 1)
	var waiting []*wireConn
	for range maxNewKeys {
		c := w.dial()
		c.send(request)
		waiting = append(waiting, c)
	}
	for range waiting {
		await(t, asked)
	}
	if r := w.ask(request); r.StatusCode != 401 {
		t.Errorf("one more: got %d %q", r.StatusCode, r.body)
	}
	close(hold)
	for _, c := range waiting {
		if r := c.read(); r.StatusCode != 401 {
			t.Fatalf("got %d %q", r.StatusCode, r.body)
		}
	}
}
