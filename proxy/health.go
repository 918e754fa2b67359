package proxy

import (
	"context"
	"errors"
	"fmt"

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
	return fmt.Sprintf("change %d, %d clusters", s.Seq(), len(s.Clusters())), nil
}

func (g *Gateway) hasBrokers(context.Context) (string, error) {
	s := g.book.Snapshot()
	if s == nil {
		return "", nil
	}
	var errs []error
	refusing := 0
	for cell := range cellsInUse(s) {
		p, err := g.pools.of(s, cell)
		if err == nil {
			var n int
			n, err = p.health()
			refusing += n
		}
		errs = append(errs, err)
	}
	fact := fmt.Sprintf("%d cells", len(errs))
	if refusing > 0 {
		fact += fmt.Sprintf(", %d brokers refuse this gateway's key", refusing)
	}
	return fact, errors.Join(errs...)
}

// health returns what keeps the pool from serving, and how many of its live brokers refuse the gateway's key. Some may:
// were that a failure, one wrong broker would take every gateway out of service.
func (p *pool) health() (refusing int, _ error) {
	live := 0
	for _, b := range p.brokers {
		if b.able(needLive) {
			live++
			if b.refuses.Load() {
				refusing++
			}
		}
	}
	switch {
	case live == 0:
		return refusing, fmt.Errorf("cell %s has no live broker", p.cell)
	case refusing == live:
		return refusing, fmt.Errorf("cell %s: its brokers refuse this gateway's key (401): they must know its public key", p.cell)
	}
	return refusing, nil
}

func cellsInUse(s *plans.Snapshot) map[string]struct{} {
	cells := map[string]struct{}{}
	for _, c := range s.Clusters() {
		cells[c.Cell] = struct{}{}
	}
	return cells
}
