package broker

import (
	"math"
	"time"

	"github.com/queengate/queengate/wire"
)

const (
	// maxConflated bounds a conflating pop: each message is the newest of a partition of its own.
	maxConflated = 64
	// pilotPause is the advice to a client that does not wait and has drained what is ready.
	pilotPause = 100 * time.Millisecond
)

// The modes of the autopilot.
const (
	autopilotOn     = "on"
	autopilotShadow = "shadow"
	autopilotOff    = "off"
)

// refusable says why a pop cannot be served as it is put.
func refusable(op wire.Op, q *wire.PopQuery) error {
	switch {
	case op == wire.OpPopDiscover && q.Namespace == "" && q.Task == "":
		return wire.Errorf(wire.InvalidRequest, "namespace or task is required")
	case q.Conflation && q.Group == wire.QueueModeGroup:
		return wire.Errorf(wire.InvalidRequest, "conflation requires consumerGroup: it is a property of a group")
	case q.Conflation && q.AutoAck:
		return wire.Errorf(wire.InvalidRequest, "conflation cannot be combined with autoAck: what is skipped is committed by the ack")
	}
	return nil
}

// size decides how much the pop asks for.
func (p *popping) size() {
	q := &p.q
	batch, partitions := q.Batch, q.Partitions
	switch {
	case p.pinned:
		partitions = 1
	case q.Conflation && !q.PartitionsGiven:
		partitions = min(batch, maxConflated)
	}
	if q.Conflation {
		batch = min(batch, maxConflated)
	}
	mode := p.b.cfg.Autopilot
	if mode != autopilotOff && q.Autopilot && !q.Conflation && !p.pinned && p.scope == nil && q.Group != wire.QueueModeGroup {
		choice := wire.Autopilot{Partitions: partitions, Batch: batch}
		if !q.BatchGiven {
			choice.Batch = p.b.cfg.AutopilotBatch
		}
		if !q.PartitionsGiven {
			choice.Partitions = p.steer(choice.Batch)
		}
		p.b.metrics.choices.Inc()
		p.b.metrics.chosen.Add(float64(choice.Partitions))
		if mode == autopilotOn {
			partitions, batch, p.pilot = choice.Partitions, choice.Batch, &choice
		}
	}
	p.budget = min(max(batch, 1), p.b.cfg.MaxPopMessages)
	p.partitions = partitions
	p.width = min(p.budget, maxCandidates)
	if partitions > 0 {
		p.width = min(p.width, partitions)
	}
}

// steer chooses how many partitions to claim: as many as lately it took to fill the batch, but no more than this pop's
// share of what is ready, so that consumers do not take from each other what each could serve at once. Without
// experience of the group it is one.
func (p *popping) steer(batch int) int {
	yield, claims := p.ticket.Ring().Yield()
	ready, tickets := p.ticket.Supply()
	if claims < int64(p.b.cfg.AutopilotDwellPops) {
		return 1
	}
	need := int(math.Ceil(float64(batch) / max(yield, 1)))
	share := (ready + tickets - 1) / max(tickets, 1)
	return max(1, min(need, share, maxCandidates))
}

// settleForm applies what the group's first registration has decided, which is known once the ring is prepared.
func (p *popping) settleForm() {
	conflating := p.ticket.Ring().Conflating()
	p.conflate = conflating && !p.q.AutoAck
	p.conflict = p.q.Conflation && !conflating
}

// advise completes what the broker says of the choices it made.
func (p *popping) advise(messages int) {
	if p.pilot == nil {
		return
	}
	if ready, _ := p.ticket.Supply(); ready == 0 && messages < p.budget {
		p.pilot.Wait = pilotPause
	}
}
