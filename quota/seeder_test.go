package quota

import (
	"context"
	"sync"

	"github.com/queengate/queengate/plans"
)

// fakeSeeder is a broker's listing of names.
type fakeSeeder struct {
	mu     sync.Mutex
	pairs  []Pair
	err    error
	called int
	during func() // runs while a listing is under way, after the names were read
}

func (f *fakeSeeder) set(pairs ...Pair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pairs, f.err = pairs, nil
}

func (f *fakeSeeder) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeSeeder) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.called
}

func (f *fakeSeeder) Seed(ctx context.Context, _ *plans.Cluster, each func(Pair) error) error {
	f.mu.Lock()
	f.called++
	pairs, err, during := f.pairs, f.err, f.during
	f.mu.Unlock()
	for _, p := range pairs {
		if err := each(p); err != nil {
			return err
		}
	}
	if during != nil {
		during()
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}
