package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota/meter"
)

// dutyChunk bounds the clusters of one call.
const dutyChunk = 1000

// duty tells Redis which clusters of a cell this gateway has served, and returns those that it is to ask for: all that
// anybody has served, when it is its turn.
func (f *fleet) duty(ctx context.Context, cell string, served []uuid.UUID, interval time.Duration) ([]uuid.UUID, time.Time, error) {
	chunks := slices.Collect(slices.Chunk(served, dutyChunk))
	if len(chunks) == 0 {
		chunks = [][]uuid.UUID{nil}
	}
	var all []any
	for _, chunk := range chunks {
		ids := make([]any, len(chunk))
		for i, id := range chunk {
			ids[i] = id.String()
		}
		var err error
		if all, err = f.askDuty(ctx, cell, 2*interval, ids); err != nil {
			return nil, time.Time{}, err
		}
	}
	mine, _ := all[0].(int64)
	text, _ := all[1].(string)
	now, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("duty of cell %s: time %q: %w", cell, text, err)
	}
	var ask []uuid.UUID
	for _, field := range all[2:] {
		text, _ := field.(string)
		if id, err := uuid.Parse(text); err == nil && mine == 1 {
			ask = append(ask, id)
		}
	}
	return ask, time.UnixMicro(now), nil
}

// askDuty makes one call of duty.lua.
func (f *fleet) askDuty(ctx context.Context, cell string, span time.Duration, ids []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, max(f.pipe.budget, dutyBudget))
	defer cancel()
	stem := f.prefix + "{cell:" + cell + "}:"
	args := append([]any{f.ask(time.Now()), f.name, span.Microseconds()}, ids...)
	all, err := f.pipe.client.Eval(ctx, dutyText, []string{stem + "served", stem + "asker"}, args...).Slice()
	if err != nil {
		return nil, fmt.Errorf("duty of cell %s: %w", cell, err)
	}
	if len(all) < 2 {
		return nil, fmt.Errorf("duty of cell %s: %w", cell, errShortAnswer)
	}
	return all, nil
}

// dutyBudget is what a call about duties may take: nobody waits for it.
const dutyBudget = time.Second

var errShortAnswer = errors.New("the answer is too short")

// UsageFailed says that the brokers of a cell did not answer this gateway: another one is to ask them, if there is one.
func (g *Gate) UsageFailed(ctx context.Context, cell string) {
	if f := g.fleet; f != nil && f.asking() {
		_, _ = f.askDuty(ctx, cell, 0, nil) // otherwise it is taken over a little later
	}
}

// time is the clock of the fleet's Redis; the zero time without one.
func (f *fleet) time(ctx context.Context) time.Time {
	if f == nil || !f.asking() {
		return time.Time{}
	}
	ctx, cancel := context.WithTimeout(ctx, dutyBudget)
	defer cancel()
	now, err := f.clock(ctx)
	if err != nil {
		return time.Time{}
	}
	return now
}

// measured tells Redis of a measure. false: Redis is away, and the measure is this gateway's own to keep.
func (f *fleet) measured(l *ledger, c *plans.Cluster, u Usage) bool {
	s := f.join(l, c.ID, l.acc.touched)
	if !s.mirrors {
		return false
	}
	since := u.Since
	if since.IsZero() {
		since = u.ComputedAt
	}
	f.pipe.send(s.keys.lane, &call{
		script: measuredScript, keys: []string{s.keys.storage},
		args: []any{since.UnixMicro(), max(0, u.RetainedBytes), min(*c.Limits.MaxRetainedBytes, maxShared)},
	})
	f.pipe.push(s.keys.lane)
	return true
}

// seedMonth tells Redis what the control database has of a month.
func (f *fleet) seedMonth(l *ledger, id uuid.UUID, m meter.Month, counted map[string]int64) {
	s := f.join(l, id, l.acc.touched)
	if !s.mirrors {
		return
	}
	x := &call{script: monthScript, keys: []string{s.keys.months + m.String()}}
	for gateway, n := range counted {
		x.args = append(x.args, gateway, n)
	}
	f.pipe.send(s.keys.lane, x)
	f.pipe.push(s.keys.lane)
}
