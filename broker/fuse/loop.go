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
	if f.ready.len() == 0 || f.inFlight == maxFlushes {
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
	room := f.cfg.MaxBundleBytes
	for f.ready.len() > 0 && len(w.batches) < f.cfg.MaxBundlePartitions && room > 0 {
		l := f.ready.front()
		f.cache.attach(l)
		bt, bytes, frames := l.takeLocked(room, len(w.batches) == 0)
		if bt == nil {
			break // it leads the next bundle
		}
		f.ready.pop()
		l.state = laneFlying
		room -= bytes
		f.waiting -= frames
		w.batches = append(w.batches, bt)
	}
	f.inFlight++
	f.flights[w.index] = now
	return 0, true
}

// waitAloneLocked gives the lane's undecided batch a call of its own, now or when one of the others has ended.
func (f *Fuser) waitAloneLocked(l *lane) {
	l.state = laneFlying
	f.solo.queue.push(l)
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
		if f.solo.queue.len() == 0 {
			f.solo.active--
			f.mu.Unlock()
			return
		}
		l := f.solo.queue.pop()
		f.cache.attach(l)
		bt, _, _ := l.takeLocked(0, true)
		bt.skips, bt.alone = 0, false
		f.stats.Solos++
		f.mu.Unlock()
		w.batches = append(w.batches, bt)
		w.flush()
	}
}
