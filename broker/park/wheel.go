package park

import (
	"container/heap"
	"sync"
	"time"
)

// alarm is an element of the wheel. Its owner is called when its time has come, unless it was cleared before.
//
// at is written under the owner's mutex and the wheel's, so either is enough to read it; index belongs to the wheel.
type alarm struct {
	at    time.Time
	index int // in the heap, -1 when not set
	owner interface{ due(now time.Time) }
}

// wheel is the one clock of a registry: a heap of alarms behind a single timer, so that ten thousand parked polls and
// leases cost ten thousand words and not as many timers.
type wheel struct {
	mu      sync.Mutex // guards all below
	alarms  alarms
	timer   *time.Timer // runs fire; nil before the first alarm
	armed   time.Time   // what timer is set to; zero when it is not
	stopped bool
}

// set makes a ring at the given time, moving it when it is set already.
func (w *wheel) set(a *alarm, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.at = at
	if a.index >= 0 {
		heap.Fix(&w.alarms, a.index)
	} else {
		heap.Push(&w.alarms, a)
	}
	w.armLocked()
}

// clear takes a off the wheel. Its owner may still be called if it is being fired at this very moment.
func (w *wheel) clear(a *alarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.index >= 0 {
		heap.Remove(&w.alarms, a.index)
	}
}

// isSet reports whether a is on the wheel.
func (w *wheel) isSet(a *alarm) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return a.index >= 0
}

// armLocked sets the timer to the earliest alarm. A timer that is set too early is left alone: it fires once in vain,
// which is cheaper than moving it with every poll that ends before its time.
func (w *wheel) armLocked() {
	if len(w.alarms) == 0 || w.stopped {
		return
	}
	first := w.alarms[0].at
	if !w.armed.IsZero() && !first.Before(w.armed) {
		return
	}
	w.armed = first
	if d := time.Until(first); w.timer == nil {
		w.timer = time.AfterFunc(d, w.fire)
	} else {
		w.timer.Reset(d)
	}
}

func (w *wheel) fire() {
	now := time.Now()
	var due []*alarm
	w.mu.Lock()
	w.armed = time.Time{}
	for len(w.alarms) > 0 && !w.alarms[0].at.After(now) {
		due = append(due, heap.Pop(&w.alarms).(*alarm))
	}
	w.armLocked()
	w.mu.Unlock()
	for _, a := range due {
		a.owner.due(now)
	}
}

// stop ends the wheel: no alarm is fired any more.
func (w *wheel) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// alarms implements heap.Interface, the earliest first.
type alarms []*alarm

func (h alarms) Len() int           { return len(h) }
func (h alarms) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarms) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *alarms) Push(x any) {
	a := x.(*alarm)
	a.index = len(*h)
	*h = append(*h, a)
}

func (h *alarms) Pop() any {
	old := *h
	n := len(old) - 1
	a := old[n]
	old[n] = nil
	a.index = -1
	*h = old[:n]
	return a
}
