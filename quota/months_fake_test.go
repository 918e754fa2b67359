package quota

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/google/uuid"

	"github.com/queengate/queengate/quota/meter"
)

type monthKey struct {
	cluster uuid.UUID
	month   meter.Month
}

// fakeMonths is the control database: what meter.Store keeps there, in plain maps.
type fakeMonths struct {
	mu      sync.Mutex
	rows    map[monthKey]map[string]int64
	warned  map[monthKey]map[int]bool
	told    []meter.Warning // those that were the first
	loads   int
	away    bool
	unheard bool // what is written is written, and the answer lost

	held chan struct{} // when there is one, loads wait until it is closed
}

var errDatabaseAway = errors.New("the database is away")

func newFakeMonths() *fakeMonths {
	return &fakeMonths{rows: map[monthKey]map[string]int64{}, warned: map[monthKey]map[int]bool{}}
}

func (f *fakeMonths) set(edit func(*fakeMonths)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit(f)
}

func (f *fakeMonths) total(cluster uuid.UUID, m meter.Month) (total int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.rows[monthKey{cluster, m}] {
		total += n
	}
	return total
}

func (f *fakeMonths) Load(_ context.Context, cluster uuid.UUID, m meter.Month) (map[string]int64, error) {
	f.mu.Lock()
	f.loads++
	held := f.held
	f.mu.Unlock()
	if held != nil {
		<-held
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return nil, errDatabaseAway
	}
	return maps.Clone(f.rows[monthKey{cluster, m}]), nil
}

func (f *fakeMonths) Save(_ context.Context, gateway string, counts []meter.Count) (totals []int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return nil, errDatabaseAway
	}
	for _, c := range counts {
		k := monthKey{c.Cluster, c.Month}
		if f.rows[k] == nil {
			f.rows[k] = map[string]int64{}
		}
		f.rows[k][gateway] = max(f.rows[k][gateway], c.Messages)
		total := int64(0)
		for _, n := range f.rows[k] {
			total += n
		}
		totals = append(totals, total)
	}
	if f.unheard {
		return nil, errDatabaseAway
	}
	return totals, nil
}

func (f *fakeMonths) Warn(_ context.Context, w meter.Warning) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return false, errDatabaseAway
	}
	k := monthKey{w.Cluster, w.Month}
	if f.warned[k] == nil {
		f.warned[k] = map[int]bool{}
	}
	if f.warned[k][w.Percent] {
		return false, nil
	}
	f.warned[k][w.Percent] = true
	f.told = append(f.told, w)
	return true, nil
}

func (f *fakeMonths) Fold(context.Context, meter.Month, int) (int64, error) { return 0, nil }
