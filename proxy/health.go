package proxy

import (
	"context"
	"errors"
	"fmt"

	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/plans"
)

// Health returns what readiness of the gateway consists of, by name: that it serves and does not drain, that it has a
// snapshot to decide with, and that each cell with clusters has a live broker. A cell whose brokers are alive but not
// ready does not make a gateway unready: pushes are buffered there and polls are held.
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
	for cell := range cellsInUse(s) {
		p, err := g.pools.of(s, cell)
		if err == nil && !p.any(needLive) {
			err = fmt.Errorf("cell %s has no live broker", cell)
		}
		errs = append(errs, err)
	}
	return fmt.Sprintf("%d cells", len(errs)), errors.Join(errs...)
}

func cellsInUse(s *plans.Snapshot) map[string]struct{} {
	cells := map[string]struct{}{}
	for _, c := range s.Clusters() {
		cells[c.Cell] = struct{}{}
	}
	return cells
}
