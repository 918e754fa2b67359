package wire

// Flow is the direction in which a route moves what a tenant keeps. The state of a cluster and the features of its plan
// close directions, not routes: what exists can be taken out and removed for longer than anything can be put in
// (docs/design/life-cycle.md).
type Flow uint8

const (
	FlowNone   Flow = iota // not for clients
	FlowPush               // stores messages: pushes, replays
	FlowMixed              // its body says whether it does: a transaction may only acknowledge, a redrive may be a dry run
	FlowWrite              // adds or changes what is no message: queues with their options, trace events
	FlowOut                // takes messages out, or says how far that has come: pops, acks, extensions, fetches, cursors
	FlowRead               // looks
	FlowRemove             // deletes, clears, ends
)

var flowNames = [...]string{"none", "push", "mixed", "write", "out", "read", "remove"}

// String returns the word that the documentation has for the direction.
func (f Flow) String() string { return flowNames[f] }

// Flows are the directions of the routes that clients have.
var Flows = []Flow{FlowPush, FlowMixed, FlowWrite, FlowOut, FlowRead, FlowRemove}

// In reports whether something of the tenant's may be more afterwards than before.
func (f Flow) In() bool { return f == FlowPush || f == FlowMixed || f == FlowWrite }

// flows has every Op that clients have; a test holds it and Routes together.
var flows = [...]Flow{
	OpPush:             FlowPush,
	OpRetryMessage:     FlowPush,
	OpReplayDeadLetter: FlowPush,

	OpTransaction: FlowMixed,
	OpRedrive:     FlowMixed,

	OpConfigure: FlowWrite,
	OpAddTrace:  FlowWrite,

	OpPop:               FlowOut,
	OpPopPartition:      FlowOut,
	OpPopDiscover:       FlowOut,
	OpAck:               FlowOut,
	OpAckBatch:          FlowOut,
	OpExtend:            FlowOut,
	OpFetch:             FlowOut,
	OpPartitionsChanged: FlowOut,
	OpSetSubscription:   FlowOut,
	OpSeekQueue:         FlowOut,
	OpSeekPartition:     FlowOut,
	OpDeadLetterMessage: FlowOut, // the end of a delivery, as an ack with that status is

	OpListQueues:           FlowRead,
	OpGetQueue:             FlowRead,
	OpHealth:               FlowRead,
	OpOverview:             FlowRead,
	OpNamespaces:           FlowRead,
	OpTasks:                FlowRead,
	OpListPartitions:       FlowRead,
	OpQueueDepth:           FlowRead,
	OpListGroups:           FlowRead,
	OpLaggingGroups:        FlowRead,
	OpGetGroup:             FlowRead,
	OpListMessages:         FlowRead,
	OpGetMessage:           FlowRead,
	OpListDeadLetters:      FlowRead,
	OpListRedrives:         FlowRead,
	OpRedriveStatus:        FlowRead,
	OpTraceNames:           FlowRead,
	OpTracesByName:         FlowRead,
	OpTracesOfMessage:      FlowRead,
	OpStatusQueues:         FlowRead,
	OpStatusQueue:          FlowRead,
	OpStatusAnalytics:      FlowRead,
	OpQueueLag:             FlowRead,
	OpQueueOps:             FlowRead,
	OpParkedReplicas:       FlowRead,
	OpRetentionHistory:     FlowRead,
	OpWorkload:             FlowRead,
	OpDeadLetterSignatures: FlowRead,
	OpPartitionLiveness:    FlowRead,
	OpOpenAPI:              FlowRead,

	OpDeleteQueue:      FlowRemove,
	OpClearQueue:       FlowRemove,
	OpDeleteGroup:      FlowRemove,
	OpDeleteGroupQueue: FlowRemove,
	OpDeleteMessage:    FlowRemove,
	OpPurgeDeadLetters: FlowRemove,
	OpCancelRedrive:    FlowRemove,
}

// Flow returns the route's direction; FlowNone for a route that is not for clients.
func (r *Route) Flow() Flow {
	if int(r.Op) >= len(flows) {
		return FlowNone
	}
	return flows[r.Op]
}

// Feature names what a plan includes or not, as it stands in the plan; "" is what every plan includes.
type Feature string

// FeatureTraces is the recording of trace events.
const FeatureTraces Feature = "traces"

// features has the operations that belong to one.
var features = map[Op]Feature{
	OpAddTrace:        FeatureTraces,
	OpTraceNames:      FeatureTraces,
	OpTracesByName:    FeatureTraces,
	OpTracesOfMessage: FeatureTraces,
}

// Feature returns the feature that the route belongs to.
func (r *Route) Feature() Feature { return features[r.Op] }

// Gate returns the feature without which the route is refused: only what puts something in is. What a withdrawn feature
// has left can be read, taken out and deleted.
func (r *Route) Gate() Feature {
	if !r.Flow().In() {
		return ""
	}
	return r.Feature()
}
