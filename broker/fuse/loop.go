package fuse

import (
	"runtime"
	"time"
)

// flushLoop takes bundles and flushes them until stopC closes.
func (f *Fuser) flushLoop(index int, stopC <-chan struct{}) {
	w := &worker{f: f, index: index}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		patience, ok := w.take()
		if ok {
			w.flush()
			// Those just answered may have their next push at hand: it costs nothing to let them run first, and the
			// bundles of 64 producers grow from 32 to 40 messages.
			runtime.Gosched()
			continue
		}
		var timeC <-chan time.Time
		if patience > 0 {
			timer.Reset(patience)
			timeC = timer.C
		}
		wakeC := f.wakeC
		if timeC != nil {
			wakeC = nil // the watch over a slow flush is not disturbed by what arrives behind it
		}
		select {
		case <-wakeC:
		case <-timeC:
		case <-stopC:
			return
		}
	}
}

// take fills the worker with the next bundle. When there is work that should leave the flush in flight alone for now,
// it returns how long.
func (w *worker) take() (patience time.Duration, ok bool) {
	f := w.f
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ready.Len() == 0 || f.inFlight == maxFlushes {
		f.armed = false
		return 0, false
	}
	if f.inFlight > 0 {
		age := now.Sub(f.flights[1-w.index])
		if patience = f.pace.patience(age, f.waiting); patience > 0 {
			f.armed = true
			return patience, false
		}
		f.stats.Seconds++
	}
	f.armed = false
	if w.fillLocked(); len(w.batches) == 0 {
		return 0, false
	}
	f.inFlight++
	f.flights[w.index] = now
	return 0, true
}

// fillLocked fills the worker's bundle from the tenants in turn. Each turn is for so much of the tenant's first lanes as
// it can pay for; a lane that is left with pushes stays first of its tenant and gives more when the turn comes round
// again. So several tenants share the bundle, and what one leaves of it is the others'.
func (w *worker) fillLocked() {
	f := w.f
	for room := f.cfg.MaxBundleBytes; room > 0; {
		l, credit, ok := f.ready.Next()
		if !ok {
			break
		}
		if l.retry == nil && !l.waits() { // all was given back
			f.ready.Take(0)
			f.settleLocked(l, time.Time{})
			continue
		}
		var cost int64
		joins := l.batch == nil
		if joins {
			if len(w.batches) == f.cfg.MaxBundlePartitions {
				break
			}
			f.cache.attach(l)
			cost = laneCost
		}
		bytes, done := l.takeLocked(min(room, credit-cost), len(w.batches) == 0)
		if bytes == 0 {
			break // it leads the next bundle
		}
		if joins {
			w.batches = append(w.batches, l.batch)
		}
		room -= bytes
		if cost += bytes; done {
			f.ready.Take(cost)
		} else {
			f.ready.Spend(cost)
		}
	}
	for _, bt := range w.batches {
		l := bt.lane
		if l.partial() {
			f.ready.Drop(l.part.Tenant) // it still stands there, as the first of its tenant
		}
		_, frames := l.flyLocked()
		f.waiting -= frames
	}
}

// waitAloneLocked gives the lane's undecided batch a call of its own, now or when one of the others has ended.
func (f *Fuser) waitAloneLocked(l *lane) {
	l.state = laneFlying
	f.solo.queue.Push(l.part.Tenant, l)
	if f.solo.active < f.solo.limit {
		f.solo.active++
		f.workers.Go(f.soloLoop)
	}
}

// soloLoop makes waiting calls until no lane needs one.
func (f *Fuser) soloLoop() {
	w := &worker{f: f, index: -1}
	for {
		f.mu.Lock()
		l := f.solo.next()
		if l == nil {
			f.solo.active--
			f.mu.Unlock()
			return
		}
		f.cache.attach(l)
		l.takeLocked(0, true)
		bt, _ := l.flyLocked()
		bt.skips, bt.alone = 0, false
		f.stats.Solos++
		f.mu.Unlock()
		w.batches = append(w.batches, bt)
		w.flush()
	}
}
