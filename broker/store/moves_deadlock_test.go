package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// Everything that moves cursors, at the same time as everything that holds them: nobody waits in a circle.
func TestMovesAndConsumersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	const rounds = 25
	names := []string{"a", "b", "c", "d"}
	pairs := make([]Pair, len(names))
	for i, n := range names {
		pairs[i] = Pair{Queue: "q", Partition: n}
	}
	provision := func(ctx context.Context) []Partition {
		ps, err := w.Provision(ctx, w.tenant, pairs, Caps{})
		if e := wire.AsError(err); e != nil && e.Code != wire.NotFound { // the queue is being deleted over and over
			t.Error(err)
		}
		return ps
	}
	claims := func(group string, ps []Partition, reverse bool) []Claim {
		var cs []Claim
		for i := range ps {
			p := ps[i]
			if reverse {
				p = ps[len(ps)-1-i]
			}
			cs = append(cs, Claim{
				Candidates: []int64{p.ID}, QueueID: p.QueueID, Group: group, Worker: uuid.Must(uuid.NewV7()), Lease: time.Minute, Budget: 10,
			})
		}
		return cs
	}
	steps := map[string]func(ctx context.Context, i int) error{
		"push": func(ctx context.Context, i int) error {
			var segs []Segment
			for _, p := range provision(ctx) {
				segs = append(segs, w.segment(p, fmt.Sprint(i)))
			}
			_, err := w.PushBundle(ctx, segs)
			return err
		},
		"register": func(ctx context.Context, i int) error {
			_, err := w.Register(ctx, w.tenant, fmt.Sprint("g", i%2), "q", Seed{Mode: wire.SeedAll})
			return err
		},
		"consume": func(ctx context.Context, i int) error {
			ps := provision(ctx)
			group := fmt.Sprint("g", i%2)
			cs := claims(group, ps, i%3 == 0)
			got, err := w.ClaimBundle(ctx, cs)
			if err != nil {
				return err
			}
			var acks []AckGroup
			for k := range got {
				if v := got[k][0]; v.Status == ClaimTook {
					acks = append(acks, AckGroup{
						Tenant: w.tenant, Partition: v.UID, Group: group, Lease: cs[k].Worker.String(),
						Items: []AckItem{{Status: wire.AckCompleted, Offset: v.Through}},
					})
				}
			}
			_, err = w.AckBundle(ctx, acks)
			return err
		},
		"seek back": func(ctx context.Context, i int) error {
			_, err := w.Seek(ctx, w.tenant, fmt.Sprint("g", i%2), "q", "", wire.Seek{At: time.Now().Add(-time.Hour)})
			return err
		},
		"seek on": func(ctx context.Context, i int) error {
			_, err := w.Seek(ctx, w.tenant, fmt.Sprint("g", i%2), "q", names[i%len(names)], wire.Seek{ToEnd: true})
			return err
		},
		"delete group": func(ctx context.Context, i int) error {
			_, err := w.DeleteGroup(ctx, w.tenant, fmt.Sprint("g", i%2), "", i%3 > 0)
			return err
		},
		"subscription": func(ctx context.Context, i int) error {
			_, err := w.SetSubscription(ctx, w.tenant, fmt.Sprint("g", i%2), time.Now())
			return err
		},
		"clear": func(ctx context.Context, i int) error {
			_, err := w.ClearQueue(ctx, w.tenant, "q", names[i%len(names)])
			return err
		},
		"delete queue": func(ctx context.Context, i int) error {
			if i%5 > 0 {
				return nil
			}
			_, _, err := w.DeleteQueue(ctx, w.tenant, "q")
			return err
		},
		"feed": func(ctx context.Context, i int) error {
			_, _, err := w.Changes(ctx, time.Minute)
			return err
		},
	}
	var all sync.WaitGroup
	for name, step := range steps {
		for range 2 {
			all.Go(func() {
				for i := range rounds {
					if err := step(t.Context(), i); err != nil {
						t.Errorf("%s, round %d: %v", name, i, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if n := w.count("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}
