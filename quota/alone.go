package quota

import (
	"context"
	"time"
)

// Absences is where gateways that do not reach Redis are heard of by those that do: the control database.
type Absences interface {
	// SayAlone notes that a gateway decides without Redis now. It is said again each second.
	SayAlone(ctx context.Context, gateway string) error

	// Alone returns the gateways that have said so within the last few seconds.
	Alone(ctx context.Context) (gateways []string, err error)
}

// absencesBudget bounds a call: what comes later is late for the next one.
const absencesBudget = time.Second

// watchAbsences runs until ctx ends.
func (f *fleet) watchAbsences(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.tellAbsences(ctx)
		}
	}
}

// tellAbsences says that this gateway is alone or, while others are missed in Redis, asks which of them are. What cannot be
// asked is not known: a gateway that is missed then counts as dead when its time has come, as one that says nothing does.
func (f *fleet) tellAbsences(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, absencesBudget)
	defer cancel()
	var alone []string
	var err error
	switch {
	case !f.asking():
		err = f.absences.SayAlone(ctx, f.name)
	case f.deaf.Load()+f.dead.Load() > 0:
		alone, err = f.absences.Alone(ctx)
	}
	f.alone.Store(&alone)
	if err != nil && !f.unheard {
		f.log.Warn("gateways without Redis are not heard of by the others: after eight seconds those go on with the whole plan", "err", err)
	}
	f.unheard = err != nil
}
