package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/plans"
)

// Health returns what readiness of the gateway consists of, by name: that it serves and does not drain, that it has a
// snapshot to decide with, and that each cell with clusters has a live broker and one that accepts the gateway's key. A
// cell whose brokers are alive but not ready does not make a gateway unready: pushes are buffered there and polls are
// held.
func (g *Gateway) Health() map[string]obs.Health {
	return map[string]obs.Health{"gateway": g.healthy, "snapshot": g.hasSnapshot, "brokers": g.hasBrokers}
}

func (g *Gateway) healthy(context.Context) (string, error) {
	if !g.serving.Load() {
		return "", errors.New("not serving")
	}
	return fmt.Sprintf("%d connections", g.walls.open.Load()), nil
}

func (g *Gateway) hasSnapshot(context.Context) (string, error) {
	s := g.book.Snapshot()
	if s == nil {
		return "", errors.New("no snapshot of the control database")
	}
	n, noun := len(s.Clusters()), "clusters"
	if n == 1 {
		noun = "cluster"
	}
	return fmt.Sprintf("change %d, %d %s", s.Seq(), n, noun), nil
}

func (g *Gateway) hasBrokers(context.Context) (string, error) {
	s := g.book.Snapshot()
	if s == nil {
		return "", nil
	}
	var errs []error
	var facts []string
	for _, cell := range slices.Sorted(maps.Keys(cellsInUse(s))) {
		p, err := g.pools.of(s, cell)
		if err == nil {
			var fact string
			fact, err = p.health()
			facts = append(facts, fact)
		}
		errs = append(errs, err)
	}
	return strings.Join(facts, "; "), errors.Join(errs...)
}

// health shows the brokers of the pool and returns what keeps it from serving. Some brokers may refuse the gateway's
// key: were that a failure, one wrong broker would take every gateway out of service.
func (p *pool) health() (fact string, _ error) {
	live, refusing := 0, 0
	var each []string
	for _, b := range p.brokers() {
		word := b.word()
		if b.is(isLive) {
			live++
			if b.refuses.Load() {
				refusing++
				word += ", refuses this gateway's key"
			}
		}
		each = append(each, b.address+" "+word)
	}
	fact = p.cell + ": " + strings.Join(each, ", ")
	switch {
	case live == 0:
		return fact, fmt.Errorf("cell %s has no live broker", p.cell)
	case refusing == live:
		return fact, fmt.Errorf("cell %s: its brokers refuse this gateway's key (401): they must know its public key", p.cell)
	}
	return fact, nil
}

func cellsInUse(s *plans.Snapshot) map[string]struct{} {
	cells := map[string]struct{}{}
	for _, c := range s.Clusters() {
		cells[c.Cell] = struct{}{}
	}
	return cells
}
