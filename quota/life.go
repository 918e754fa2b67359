package quota

import (
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// pausedRetryAfter is what a paused cluster is told: long enough to be quiet, short enough to heal by itself.
const pausedRetryAfter = 30 * time.Second

// sentence is what a state of the life cycle means for a direction.
type sentence struct {
	refusal *wire.Error // nil: it passes
	last    bool        // judged with the plan, as the last of its limits, and then only of what stores messages
}

// Refusals are made once: they carry nothing of the request.
var (
	passes     = sentence{}
	held       = sentence{refusal: &wire.Error{Code: wire.PushBlocked}, last: true}
	export     = sentence{refusal: &wire.Error{Code: wire.ExportOnly}}
	exportHeld = sentence{refusal: export.refusal, last: true}
	paused     = sentence{refusal: &wire.Error{Code: wire.RateLimited, Detail: "the cluster is paused", RetryAfter: pausedRetryAfter}}
	shut       = sentence{refusal: &wire.Error{Code: wire.ClusterSuspended}}
)

// life is what each state of a cluster lets through, by direction; docs/design/life-cycle.md shows the same table, and
// says why. Every state refuses at least what the one before it refuses, so that of two states, the cluster's and its
// tenant's, the later one is the worse.
var life = [...]map[wire.Flow]sentence{
	plans.Active: {
		wire.FlowPush: passes, wire.FlowMixed: passes, wire.FlowWrite: passes,
		wire.FlowOut: passes, wire.FlowRead: passes, wire.FlowRemove: passes,
	},
	plans.PushBlocked: {
		wire.FlowPush: held, wire.FlowMixed: held, wire.FlowWrite: passes,
		wire.FlowOut: passes, wire.FlowRead: passes, wire.FlowRemove: passes,
	},
	plans.ExportOnly: {
		wire.FlowPush: export, wire.FlowMixed: exportHeld, wire.FlowWrite: export,
		wire.FlowOut: passes, wire.FlowRead: passes, wire.FlowRemove: passes,
	},
	plans.Paused: {
		wire.FlowPush: paused, wire.FlowMixed: paused, wire.FlowWrite: paused,
		wire.FlowOut: paused, wire.FlowRead: paused, wire.FlowRemove: paused,
	},
	plans.Suspended: {
		wire.FlowPush: shut, wire.FlowMixed: shut, wire.FlowWrite: shut,
		wire.FlowOut: shut, wire.FlowRead: shut, wire.FlowRemove: shut,
	},
	plans.Deleting: {
		wire.FlowPush: shut, wire.FlowMixed: shut, wire.FlowWrite: shut,
		wire.FlowOut: shut, wire.FlowRead: shut, wire.FlowRemove: shut,
	},
}

// sentenceOf looks the table up; what is not in it is shut.
func sentenceOf(s plans.Status, f wire.Flow) sentence {
	if int(s) < len(life) {
		if found, ok := life[s][f]; ok {
			return found
		}
	}
	return shut
}

// AskLife decides whether a cluster in that state lets a direction through, as far as a head tells: nil,
// wire.ClusterSuspended, wire.ExportOnly, or wire.RateLimited while the cluster is paused. What blocks nothing but the
// storing of messages is left to Admit, which knows the body, and its rank among the limits. Safe for concurrent use; it
// does not allocate.
func AskLife(s plans.Status, f wire.Flow) *wire.Error {
	if found := sentenceOf(s, f); !found.last {
		return found.refusal
	}
	return nil
}

// checkLife is asked of what stores messages, which is what a mixed body turned out to do if it comes here.
func checkLife(d *decision) (standing, float64) {
	if sentenceOf(d.c.Status, wire.FlowMixed).refusal != nil {
		return over, 0
	}
	return untouched, 0
}

func refuseLife(d *decision) *wire.Error { return sentenceOf(d.c.Status, wire.FlowMixed).refusal }

func reportLife(*decision) Report { return Report{} }
