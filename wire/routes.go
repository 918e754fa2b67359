package wire

import "fmt"

// Op names what a route does. Handlers, metering and the cost rule hang on it.
type Op uint8

const (
	OpNone Op = iota
	OpPush
	OpPop
	OpPopPartition
	OpAck
	OpAckBatch
	OpExtend
	OpConfigure
	OpListQueues
	OpGetQueue
	OpDeleteQueue
	OpHealth
	OpLivez
	OpReadyz
	OpMetrics
	OpTransaction
	OpPopDiscover
	OpFetch
	OpPartitionsChanged
	OpOverview
	OpNamespaces
	OpTasks
	OpListPartitions
	OpQueueDepth
	OpClearQueue
	OpListGroups
	OpLaggingGroups
	OpGetGroup
	OpSetSubscription
	OpSeekQueue
	OpSeekPartition
	OpDeleteGroup
	OpDeleteGroupQueue
	OpListMessages
	OpGetMessage
	OpDeleteMessage
	OpRetryMessage
	OpDeadLetterMessage
	OpListDeadLetters
	OpPurgeDeadLetters
	OpReplayDeadLetter
	OpRedrive
	OpListRedrives
	OpRedriveStatus
	OpCancelRedrive
	OpAddTrace
	OpTraceNames
	OpTracesByName
	OpTracesOfMessage
	OpStatus
	OpStatusQueues
	OpStatusQueue
	OpStatusAnalytics
	OpStatusBuffers
	OpQueueLag
	OpQueueOps
	OpParkedReplicas
	OpRetentionHistory
	OpWorkload
	OpDeadLetterSignatures
	OpPartitionLiveness
	OpSystemMetrics
	OpWorkerMetrics
	OpPostgresStats
	OpRefreshStats
	OpMaintenance
	OpSetMaintenance
	OpPopMaintenance
	OpSetPopMaintenance
	OpSharedState
	OpMetricsJSON
	OpOpenAPI
	OpTenantUsage // internal: retained bytes and counts of tenants, for gateways
	OpTenantNames // internal: queue and partition names of one tenant, for gateways
	OpWipeTenant  // internal: some steps of the removal of a tenant
)

// Class is what a gateway asks of a principal before it lets a route through (spec/gateway.md 4.2).
type Class uint8

const (
	ClassBlocked    Class = iota // never through a gateway: 404 route_blocked
	ClassProduce                 // scope produce; roles admin, producer
	ClassConsume                 // scope consume; roles admin, consumer
	ClassQueueAdmin              // scope admin; role admin
	ClassRead                    // scope read or admin; any role
)

// Cost is how a request is counted against the plan beyond its one request.
type Cost uint8

const (
	CostRequest   Cost = iota // one request
	CostMessages              // plus one message per item; provisions pairs; payload and batch caps; blocked by storage
	CostDelivery              // plus a parked slot when it waits; delivered messages are settled afterwards; a fetch turns out as one
	CostSettle                // an ack, nack or extension: charged into debt down to -burst, not refused before
	CostMixed                 // CostMessages when its body pushes, else CostSettle: judged as the milder until the body is read
	CostReplay                // stored messages return: blocked by what blocks pushes and provisions a destination, but takes no rate
	CostConfigure             // plus one queue; the retention ceiling
)

// Access is the level a broker asks of a token: a set, not a ladder (spec/broker-http.md 1.4).
type Access uint8

const (
	AccessPublic Access = iota
	AccessReadOnly
	AccessWriteOnly
	AccessReadWrite
	AccessAdmin
	AccessInternal // gateways only
)

var accessNames = [...]string{"public", "ro", "wo", "rw", "admin", "internal"}

// String returns the level as it stands in a token.
func (a Access) String() string { return accessNames[a] }

// ParseAccess is the inverse of String.
func ParseAccess(s string) (Access, error) {
	for i, n := range accessNames {
		if n == s {
			return Access(i), nil
		}
	}
	return 0, fmt.Errorf("unknown access level %q", s)
}

// Admits reports whether a token of level a may use a route that needs level need.
func (a Access) Admits(need Access) bool {
	switch need {
	case AccessPublic:
		return true
	case AccessReadOnly:
		return a == AccessReadOnly || a == AccessReadWrite || a == AccessAdmin
	case AccessWriteOnly:
		return a == AccessWriteOnly || a == AccessReadWrite || a == AccessAdmin
	case AccessReadWrite:
		return a == AccessReadWrite || a == AccessAdmin
	case AccessAdmin:
		return a == AccessAdmin
	case AccessInternal:
		return a == AccessInternal
	}
	return false
}

// Route is one line of the protocol. Segments of Pattern that begin with ':' are parameters, decoded once.
type Route struct {
	Method  string
	Pattern string
	Op      Op
	Class   Class
	Cost    Cost
	Access  Access
	Tenant  bool // scoped to the tenant of the request
	Way     Way
	Doc     string
}

// Routes is the one table behind the gateway's classifier, the broker's router and the authorization tests. A path
// of the broker that is not here is 404 on both sides.
var Routes = []Route{
	{"POST", "/api/v1/push", OpPush, ClassProduce, CostMessages, AccessWriteOnly, true, ByQueue, "store messages"},
	{"GET", "/api/v1/pop/queue/:queue", OpPop, ClassConsume, CostDelivery, AccessReadWrite, true, ByQueue, "claim messages of a queue"},
	{"GET", "/api/v1/pop/queue/:queue/partition/:partition", OpPopPartition, ClassConsume, CostDelivery, AccessReadWrite, true, ByQueue, "claim messages of one partition"},
	{"POST", "/api/v1/ack", OpAck, ClassConsume, CostSettle, AccessReadWrite, true, BySettled, "report the outcome of one message"},
	{"POST", "/api/v1/ack/batch", OpAckBatch, ClassConsume, CostSettle, AccessReadWrite, true, BySettled, "report the outcome of many messages"},
	{"POST", "/api/v1/lease/:lease/extend", OpExtend, ClassConsume, CostSettle, AccessReadWrite, true, ByLease, "extend a lease"},
	{"POST", "/api/v1/configure", OpConfigure, ClassQueueAdmin, CostConfigure, AccessReadWrite, true, ByQueue, "create a queue or set its options"},
	{"GET", "/api/v1/resources/queues", OpListQueues, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "list the queues"},
	{"GET", "/api/v1/resources/queues/:queue", OpGetQueue, ClassRead, CostRequest, AccessReadOnly, true, ByQueue, "one queue with its options and partitions"},
	{"DELETE", "/api/v1/resources/queues/:queue", OpDeleteQueue, ClassQueueAdmin, CostRequest, AccessAdmin, true, ByQueue, "delete a queue and all it holds"},
	{"POST", "/api/v1/transaction", OpTransaction, ClassProduce, CostMixed, AccessReadWrite, true, BySettled, "push and acknowledge, all or nothing"},
	{"GET", "/api/v1/pop", OpPopDiscover, ClassConsume, CostDelivery, AccessReadWrite, true, ByScope, "claim messages of any queue of a namespace or task"},
	{"POST", "/api/v1/fetch", OpFetch, ClassConsume, CostRequest, AccessReadOnly, true, ByQueue, "read messages by offset, without a cursor"},
	{"POST", "/api/v1/partitions/changed", OpPartitionsChanged, ClassConsume, CostRequest, AccessReadOnly, true, ByQueue, "partitions written since a time"},
	{"GET", "/api/v1/resources/overview", OpOverview, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "totals of the tenant"},
	{"GET", "/api/v1/resources/namespaces", OpNamespaces, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "namespaces with totals"},
	{"GET", "/api/v1/resources/tasks", OpTasks, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "tasks with totals"},
	{"GET", "/api/v1/resources/partitions", OpListPartitions, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "partitions with totals"},
	{"GET", "/api/v1/resources/queues/:queue/depth", OpQueueDepth, ClassRead, CostRequest, AccessReadOnly, true, ByQueue, "what a group has to read in a queue"},
	{"DELETE", "/api/v1/queues/:queue/clear", OpClearQueue, ClassQueueAdmin, CostRequest, AccessAdmin, true, ByQueue, "delete the messages of a queue and keep the queue"},
	{"GET", "/api/v1/consumer-groups", OpListGroups, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "list the consumer groups"},
	{"GET", "/api/v1/consumer-groups/lagging", OpLaggingGroups, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "groups behind by more than a time"},
	{"GET", "/api/v1/consumer-groups/:group", OpGetGroup, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "one consumer group"},
	{"POST", "/api/v1/consumer-groups/:group/subscription", OpSetSubscription, ClassQueueAdmin, CostRequest, AccessReadWrite, true, ByTenant, "change where a group starts"},
	{"POST", "/api/v1/consumer-groups/:group/queues/:queue/seek", OpSeekQueue, ClassQueueAdmin, CostRequest, AccessReadWrite, true, ByQueue, "move the cursors of a group on a queue"},
	{"POST", "/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek", OpSeekPartition, ClassQueueAdmin, CostRequest, AccessReadWrite, true, ByQueue, "move the cursor of a group on a partition"},
	{"DELETE", "/api/v1/consumer-groups/:group", OpDeleteGroup, ClassQueueAdmin, CostRequest, AccessAdmin, true, ByTenant, "forget a group"},
	{"DELETE", "/api/v1/consumer-groups/:group/queues/:queue", OpDeleteGroupQueue, ClassQueueAdmin, CostRequest, AccessAdmin, true, ByQueue, "forget a group on a queue"},
	{"GET", "/api/v1/messages", OpListMessages, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "browse messages"},
	{"GET", "/api/v1/messages/:partition/:transaction", OpGetMessage, ClassRead, CostRequest, AccessReadOnly, true, ByPartition, "one message"},
	{"DELETE", "/api/v1/messages/:partition/:transaction", OpDeleteMessage, ClassQueueAdmin, CostRequest, AccessReadWrite, true, ByPartition, "delete a dead letter"},
	{"POST", "/api/v1/messages/:partition/:transaction/retry", OpRetryMessage, ClassQueueAdmin, CostReplay, AccessReadWrite, true, ByPartition, "replay a dead letter"},
	{"POST", "/api/v1/messages/:partition/:transaction/dlq", OpDeadLetterMessage, ClassQueueAdmin, CostRequest, AccessReadWrite, true, ByPartition, "dead-letter a message"},
	{"GET", "/api/v1/dlq", OpListDeadLetters, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "list dead letters"},
	{"DELETE", "/api/v1/dlq", OpPurgeDeadLetters, ClassQueueAdmin, CostRequest, AccessAdmin, true, ByTenant, "delete dead letters of a queue"},
	{"POST", "/api/v1/dlq/redrive", OpRedrive, ClassQueueAdmin, CostReplay, AccessReadWrite, true, ByTenant, "replay many dead letters"},
	{"GET", "/api/v1/dlq/redrive", OpListRedrives, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "list redrives"},
	{"GET", "/api/v1/dlq/redrive/:id", OpRedriveStatus, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "progress of a redrive"},
	{"DELETE", "/api/v1/dlq/redrive/:id", OpCancelRedrive, ClassQueueAdmin, CostRequest, AccessReadWrite, true, ByTenant, "end a redrive"},
	{"POST", "/api/v1/dlq/:id/replay", OpReplayDeadLetter, ClassQueueAdmin, CostReplay, AccessReadWrite, true, ByTenant, "replay one dead letter"},
	{"POST", "/api/v1/traces", OpAddTrace, ClassConsume, CostRequest, AccessReadWrite, true, ByTenant, "add a trace event to a message"},
	{"GET", "/api/v1/traces/names", OpTraceNames, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "names of traces"},
	{"GET", "/api/v1/traces/by-name/:name", OpTracesByName, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "events of a trace"},
	{"GET", "/api/v1/traces/:partition/:transaction", OpTracesOfMessage, ClassRead, CostRequest, AccessReadOnly, true, ByPartition, "trace events of a message"},
	{"GET", "/status", OpStatus, ClassBlocked, CostRequest, AccessReadOnly, false, ByTenant, "facts of the process"},
	{"GET", "/api/v1/status", OpStatus, ClassBlocked, CostRequest, AccessReadOnly, false, ByTenant, "facts of the process"},
	{"GET", "/api/v1/status/queues", OpStatusQueues, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "queues with their state"},
	{"GET", "/api/v1/status/queues/:queue", OpStatusQueue, ClassRead, CostRequest, AccessReadOnly, true, ByQueue, "one queue with its state"},
	{"GET", "/api/v1/status/analytics", OpStatusAnalytics, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "throughput over time"},
	{"GET", "/api/v1/status/buffers", OpStatusBuffers, ClassBlocked, CostRequest, AccessReadOnly, false, ByTenant, "the outage spool"},
	{"GET", "/api/v1/analytics/queue-lag", OpQueueLag, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "queue lag"},
	{"GET", "/api/v1/analytics/queue-ops", OpQueueOps, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "queue ops"},
	{"GET", "/api/v1/analytics/queue-parked-replicas", OpParkedReplicas, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "queue parked replicas"},
	{"GET", "/api/v1/analytics/retention", OpRetentionHistory, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "retention"},
	{"GET", "/api/v1/analytics/workload", OpWorkload, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "workload"},
	{"GET", "/api/v1/analytics/dlq-signatures", OpDeadLetterSignatures, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "dlq signatures"},
	{"GET", "/api/v1/analytics/partition-liveness", OpPartitionLiveness, ClassRead, CostRequest, AccessReadOnly, true, ByTenant, "partition liveness"},
	{"GET", "/api/v1/analytics/system-metrics", OpSystemMetrics, ClassBlocked, CostRequest, AccessReadOnly, false, ByTenant, "system metrics"},
	{"GET", "/api/v1/analytics/worker-metrics", OpWorkerMetrics, ClassBlocked, CostRequest, AccessReadOnly, false, ByTenant, "worker metrics"},
	{"GET", "/api/v1/analytics/postgres-stats", OpPostgresStats, ClassBlocked, CostRequest, AccessReadOnly, false, ByTenant, "postgres stats"},
	{"POST", "/api/v1/stats/refresh", OpRefreshStats, ClassBlocked, CostRequest, AccessAdmin, false, ByTenant, "kept for clients that ask; statistics are always fresh"},
	{"GET", "/api/v1/system/maintenance", OpMaintenance, ClassBlocked, CostRequest, AccessAdmin, false, ByTenant, "is push maintenance on"},
	{"POST", "/api/v1/system/maintenance", OpSetMaintenance, ClassBlocked, CostRequest, AccessAdmin, false, ByTenant, "switch push maintenance"},
	{"GET", "/api/v1/system/maintenance/pop", OpPopMaintenance, ClassBlocked, CostRequest, AccessAdmin, false, ByTenant, "is pop maintenance on"},
	{"POST", "/api/v1/system/maintenance/pop", OpSetPopMaintenance, ClassBlocked, CostRequest, AccessAdmin, false, ByTenant, "switch pop maintenance"},
	{"GET", "/api/v1/system/shared-state", OpSharedState, ClassBlocked, CostRequest, AccessAdmin, false, ByTenant, "what brokers share"},
	{"GET", "/metrics", OpMetricsJSON, ClassBlocked, CostRequest, AccessPublic, false, ByTenant, "metrics of the process as JSON"},
	{"GET", "/openapi.json", OpOpenAPI, ClassRead, CostRequest, AccessPublic, false, ByTenant, "the OpenAPI document"},
	{"GET", "/health", OpHealth, ClassRead, CostRequest, AccessPublic, false, ByTenant, "readiness with a database round trip"},
	{"GET", "/livez", OpLivez, ClassBlocked, CostRequest, AccessPublic, false, ByTenant, "the process is alive and takes pushes"},
	{"GET", "/readyz", OpReadyz, ClassBlocked, CostRequest, AccessPublic, false, ByTenant, "the database answers"},
	{"GET", "/metrics/prometheus", OpMetrics, ClassBlocked, CostRequest, AccessPublic, false, ByTenant, "metrics of the process"},
	{"POST", "/internal/v1/tenants/usage", OpTenantUsage, ClassBlocked, CostRequest, AccessInternal, false, ByTenant, "usage of tenants, for gateways"},
	{"GET", "/internal/v1/tenants/:tenant/names", OpTenantNames, ClassBlocked, CostRequest, AccessInternal, false, ByTenant, "queue and partition names of a tenant, for gateways"},
	{"POST", "/internal/v1/tenants/:tenant/wipe", OpWipeTenant, ClassBlocked, CostRequest, AccessInternal, false, ByTenant, "take some steps of the removal of a tenant"},
}
