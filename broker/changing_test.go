package broker

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// vanishing stands before a store whose queues are deleted between every look-up and what is stored in them.
type vanishing struct {
	Store
	left atomic.Int64 // how often that happens
}

func (s *vanishing) gone() bool { return s.left.Add(-1) >= 0 }

func (s *vanishing) PushBundle(ctx context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	if !s.gone() {
		return s.Store.PushBundle(ctx, segs)
	}
	out := make([]store.PushVerdict, len(segs))
	for i := range out {
		out[i].Status = store.PushMissing
	}
	return out, nil
}

func (s *vanishing) Transact(ctx context.Context, t *store.Transaction) (store.TransactionVerdict, error) {
	if !s.gone() {
		return s.Store.Transact(ctx, t)
	}
	return store.TransactionVerdict{Status: store.TransactionMissing}, nil
}

func TestWhatMeetsAQueueThatIsDeletedAgainAndAgainIsToldToRepeat(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	db := &vanishing{Store: store.New(pool)}
	w := serveFrom(t, pool, db, nil)
	for path, body := range map[string]string{
		"/api/v1/push":        `{"items":[{"queue":"q","payload":1}]}`,
		"/api/v1/transaction": `{"operations":[{"type":"push","queue":"q","payload":1}]}`,
	} {
		db.left.Store(3)
		if a := w.do("POST", path, body); a.status >= 300 {
			t.Errorf("%s: three deletions in a row: %d %s", path, a.status, a.body)
		}
		db.left.Store(1000)
		a := w.do("POST", path, body).want(t, http.StatusServiceUnavailable)
		if a.header.Get(wire.HeaderRetryAfter) != "1" || !strings.Contains(a.body, `"code":"queue_changing"`) ||
			!strings.Contains(a.body, `"retryable":true`) || !strings.Contains(a.body, `"outcome":"none"`) {
			t.Errorf("%s: %v %s", path, a.header, a.body)
		}
		if asked := 1000 - db.left.Load(); asked != 4 {
			t.Errorf("%s: offered %d times, want 4", path, asked)
		}
	}
}
