package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota/meter"
)

// Months keeps what months have used beyond the life of a gateway and of Redis; *meter.Store is the real one.
type Months interface {
	Load(ctx context.Context, cluster uuid.UUID, m meter.Month) (byGateway map[string]int64, err error)
	Save(ctx context.Context, gateway string, counts []meter.Count) (totals []int64, err error)
	Warn(ctx context.Context, w meter.Warning) (first bool, err error)
	Fold(ctx context.Context, before meter.Month, limit int) (folded int64, err error)
}

// WithMonths names where months are kept. Without it they begin with the gate.
func WithMonths(m Months) Option { return func(g *Gate) { g.months.store = m } }

const (
	// saveEvery is how often what was counted is saved: what a gateway counted for so long is lost when it is killed.
	saveEvery = time.Second

	saveBudget = 5 * time.Second // for one round of saving
	saveBatch  = 1000            // counts in one commit

	// foldEvery is how often months that are over for foldAfter are folded, foldBatch rows at a time.
	foldEvery = time.Hour
	foldAfter = 3
	foldBatch = 10_000
)

// warnings are the marks of an allowance that are told, in percent, each once a month.
var warnings = [...]int{80, 90, 100}

// months is what a gate has to save. Its mutex comes after those of ledgers.
type months struct {
	store  Months // nil: nobody keeps them
	warned *prometheus.CounterVec
	saves  *prometheus.CounterVec

	shelf Shelf // nil: what cannot be saved is lost at a stop

	mu        sync.Mutex // guards dirty and forgotten
	dirty     map[uuid.UUID]*ledger
	forgotten map[uuid.UUID]struct{} // clusters counted once whose ledgers were given up since

	saving   sync.Mutex // held by who saves; guards all below
	folded   time.Time
	recalled bool            // the shelf was read
	left     []meter.Unsaved // of earlier lives
	shelved  bool            // something lies on the shelf
}

func (ms *months) init() {
	ms.dirty, ms.forgotten = map[uuid.UUID]*ledger{}, map[uuid.UUID]struct{}{}
	ms.warned = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_quota_month_warnings_total", Help: "Marks of monthly allowances that were passed and told by this gateway, in percent.",
	}, []string{"percent"})
	ms.saves = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_quota_month_saves_total", Help: "Rounds of saving what months have used, by result.",
	}, []string{"result"})
}

// count counts messages of an admission in its month.
func (g *Gate) count(l *ledger, a *Admission, messages int64) {
	acc := &l.acc
	acc.month.count(a.month, messages)
	if g.months.store != nil && acc.live[limitMonth] && messages > 0 {
		g.months.note(a.id, l)
	}
}

// note keeps a locked ledger among those with something to save.
func (ms *months) note(id uuid.UUID, l *ledger) {
	if l.unsaved {
		return
	}
	l.unsaved = true
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.dirty[id] = l
}

// saveUntil saves at once, each second until ctx ends, and then once more.
func (g *Gate) saveUntil(ctx context.Context) error {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	failing := false
	for ctx.Err() == nil {
		switch err := g.SaveMonths(ctx); {
		case err != nil && !failing && ctx.Err() == nil:
			g.log.Warn("what months have used is not saved, and is kept until it is", "err", err)
			failing = true
		case err == nil && failing:
			g.log.Info("what months have used is saved again")
			failing = false
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	// It is no failure of the stop: a fleet's Redis has the counts, and so has the shelf.
	switch err := g.SaveMonths(context.WithoutCancel(ctx)); {
	case err == nil:
	case g.months.shelved:
		g.log.Warn("what months have used since it was saved last is kept for the next start", "err", err)
	default:
		g.log.Error("what months have used since it was saved last is lost to the control database", "err", err)
	}
	return nil
}

// SaveMonths saves what was counted since the last call, and tells whoever passed a mark of an allowance; Run does both
// each second. What is not saved because of an error is saved with the next call: counts are saved as a whole, so that
// none is ever counted twice. What cannot be saved it puts on the shelf, and what lies there from an earlier life it saves
// first. It waits for the database, for at most five seconds.
func (g *Gate) SaveMonths(ctx context.Context) error {
	ms := &g.months
	if ms.store == nil {
		return nil
	}
	ms.saving.Lock()
	defer ms.saving.Unlock()
	ctx, cancel := context.WithTimeout(ctx, saveBudget)
	defer cancel()
	errs := []error{g.recall(), g.saveLeft(ctx)}
	ms.mu.Lock()
	due := ms.dirty
	ms.dirty = make(map[uuid.UUID]*ledger, len(due))
	ms.mu.Unlock()

	var batch []unsaved
	flush := func() {
		if len(batch) > 0 {
			errs = append(errs, g.saveBatch(ctx, batch))
			batch = batch[:0]
		}
	}
	for id, l := range due {
		if err := g.learnMonth(ctx, id, l); err != nil {
			errs = append(errs, err)
			(&unsaved{Count: meter.Count{Cluster: id}, ledger: l}).again(g)
			continue
		}
		batch = append(batch, l.takeUnsaved(id)...)
		if len(batch) >= saveBatch {
			flush()
		}
	}
	flush()
	errs = append(errs, g.foldMonths(ctx))
	err := errors.Join(errs...)
	err = errors.Join(err, g.shelve(err != nil))
	result := "ok"
	if err != nil {
		result = "failed"
	}
	ms.saves.WithLabelValues(result).Inc()
	return err
}

// learnMonth loads the month of a ledger that has counted without knowing what it goes on from.
func (g *Gate) learnMonth(ctx context.Context, id uuid.UUID, l *ledger) error {
	l.mu.Lock()
	l.unsaved = false
	known, m := l.acc.month.known, l.acc.month.month
	l.mu.Unlock()
	if known {
		return nil
	}
	if err := g.loadMonth(ctx, id, l, m); err != nil {
		return fmt.Errorf("load month: %w", err)
	}
	return nil
}

// unsaved is a count on its way to the database.
type unsaved struct {
	meter.Count
	ledger *ledger
	most   int64 // the allowance; negative: none
}

// takeUnsaved returns what is to be saved of a ledger. A month of which nobody knew what it goes on from is left out.
func (l *ledger) takeUnsaved(id uuid.UUID) (counts []unsaved) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.acc.month
	most := int64(-1)
	if l.acc.live[limitMonth] && l.acc.modes[limitMonth] != plans.Off {
		most = *l.acc.limits.MonthlyMessages
	}
	if m.known && m.own > m.saved {
		counts = append(counts, unsaved{meter.Count{Cluster: id, Month: m.month, Messages: m.own}, l, most})
	}
	if m.past.own > m.past.saved && m.pastKnown {
		counts = append(counts, unsaved{meter.Count{Cluster: id, Month: m.past.month, Messages: m.past.own}, l, -1})
	}
	return counts
}

func (g *Gate) saveBatch(ctx context.Context, batch []unsaved) error {
	counts := make([]meter.Count, len(batch))
	for i := range batch {
		counts[i] = batch[i].Count
	}
	totals, err := g.months.store.Save(ctx, g.name, counts)
	if err != nil {
		for _, u := range batch {
			u.again(g)
		}
		return fmt.Errorf("save months: %w", err)
	}
	var errs []error
	for i, u := range batch {
		from := u.saved(g, totals[i])
		if err := g.warn(ctx, &u, from, totals[i]); err != nil {
			u.unwarned(g, from)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// again keeps the ledger among those to be saved.
func (u *unsaved) again(g *Gate) {
	u.ledger.mu.Lock()
	defer u.ledger.mu.Unlock()
	g.months.note(u.Cluster, u.ledger)
}

// saved takes what all gateways have saved of the month, and returns the mark up to which this gateway has warned.
func (u *unsaved) saved(g *Gate, total int64) (warned int) {
	l := u.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.acc.month
	if m.past.month == u.Month {
		m.past.saved = max(m.past.saved, u.Messages)
		return 100
	}
	if m.month != u.Month {
		return 100
	}
	m.saved = max(m.saved, u.Messages)
	switch s := l.partaking; {
	case s == nil || !s.mirrors: // it hears of the others by the database alone
		m.others, m.anchor, m.heard = max(0, total-u.Messages), u.Messages, g.clock().Unix()
	case total > m.others+m.own: // Redis has lost something
		s.month.lost = true
	}
	warned = m.warned
	if u.most > 0 {
		m.warned = max(warned, mark(total, u.most))
	}
	return warned
}

// mark is the highest mark of an allowance that was passed; 0: none.
func mark(used, most int64) (passed int) {
	for _, percent := range warnings {
		if most > 0 && float64(used) >= float64(most)*float64(percent)/100 {
			passed = percent
		}
	}
	return passed
}

// warn tells the marks above from that the month has passed, the lowest first.
func (g *Gate) warn(ctx context.Context, u *unsaved, from int, total int64) error {
	for _, percent := range warnings {
		if percent <= from || u.most <= 0 || percent > mark(total, u.most) {
			continue
		}
		first, err := g.months.store.Warn(ctx, meter.Warning{
			Cluster: u.Cluster, Month: u.Month, Percent: percent, Messages: total, Allowance: u.most,
		})
		if err != nil {
			return fmt.Errorf("warn of a month: %w", err)
		}
		if first {
			g.months.warned.WithLabelValues(fmt.Sprint(percent)).Inc()
			g.log.Warn("a monthly allowance is used up to a mark", "cluster", u.Cluster, "month", u.Month.String(),
				"percent", percent, "messages", total, "allowance", u.most)
		}
	}
	return nil
}

// unwarned makes the next saving warn again from a mark.
func (u *unsaved) unwarned(g *Gate, from int) {
	l := u.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := &l.acc.month; m.month == u.Month {
		m.warned, m.saved = from, min(m.saved, m.own-1)
		g.months.note(u.Cluster, l)
	}
}

// foldMonths folds, now and then, what nobody counts into any more.
func (g *Gate) foldMonths(ctx context.Context) error {
	now := g.clock()
	if now.Sub(g.months.folded) < foldEvery {
		return nil
	}
	id, _, _ := meter.MonthOf(now, nil)
	folded, err := g.months.store.Fold(ctx, id-foldAfter, foldBatch)
	if err == nil && folded < foldBatch {
		g.months.folded = now
	}
	return err
}
