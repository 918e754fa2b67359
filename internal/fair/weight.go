package fair

import (
	"math"
	"sync"
)

// Weight is what a turn of an owner is worth, in parts of Usual. The zero value is no weight: use Usual or WeightOf.
type Weight int64

// Usual is the weight of an owner of whom nothing is known. Weights lie between a sixteenth of it, since an item waits for
// as many turns as its owner is lighter, and 128 times as much, since a turn of one is the wait of all others.
const (
	Usual    Weight = 256
	lightest        = Usual / 16
	heaviest        = Usual * 128
)

// usualRate is the rate of requests per second that weighs Usual.
const usualRate = 100

// WeightOf returns the weight of an owner who has bought that many requests per second: proportional to it from 6.25 to
// 12,800, and no more and no less beyond.
func WeightOf(requestsPerSecond float64) Weight {
	w := math.Round(requestsPerSecond / usualRate * float64(Usual))
	return Weight(min(max(w, float64(lightest)), float64(heaviest)))
}

// Weights remembers what owners weigh. The zero value knows of nobody. Safe for concurrent use.
type Weights[K comparable] struct {
	mu sync.RWMutex // guards by
	by map[K]Weight // of those that do not weigh Usual
}

// Of returns the weight of an owner, Usual when none was set.
func (ws *Weights[K]) Of(k K) Weight {
	ws.mu.RLock()
	defer ws.mu.RUnlock()
	if w, ok := ws.by[k]; ok {
		return w
	}
	return Usual
}

// Set has an owner weigh w from now on.
func (ws *Weights[K]) Set(k K, w Weight) {
	if ws.Of(k) == w {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w == Usual {
		delete(ws.by, k)
		return
	}
	if ws.by == nil {
		ws.by = map[K]Weight{}
	}
	ws.by[k] = w
}
