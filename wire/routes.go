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
	OpTenantUsage // internal: retained bytes and counts of tenants, for gateways
	OpTenantNames // internal: queue and partition names of one tenant, for gateways
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
	CostDelivery              // plus a parked slot when it waits; delivered messages are settled afterwards
	CostSettle                // an ack, nack or extension: charged into debt down to -burst, not refused before
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
	Doc     string
}

// Routes is the one table behind the gateway's classifier, the broker's router and the authorization tests. A path
// of the broker that is not here is 404 on both sides.
var Routes = []Route{
	{"POST", "/api/v1/push", OpPush, ClassProduce, CostMessages, AccessWriteOnly, true, "store messages"},
	{"GET", "/api/v1/pop/queue/:queue", OpPop, ClassConsume, CostDelivery, AccessReadWrite, true, "claim messages of a queue"},
	{"GET", "/api/v1/pop/queue/:queue/partition/:partition", OpPopPartition, ClassConsume, CostDelivery, AccessReadWrite, true, "claim messages of one partition"},
	{"POST", "/api/v1/ack", OpAck, ClassConsume, CostSettle, AccessReadWrite, true, "report the outcome of one message"},
	{"POST", "/api/v1/ack/batch", OpAckBatch, ClassConsume, CostSettle, AccessReadWrite, true, "report the outcome of many messages"},
	{"POST", "/api/v1/lease/:lease/extend", OpExtend, ClassConsume, CostSettle, AccessReadWrite, true, "extend a lease"},
	{"POST", "/api/v1/configure", OpConfigure, ClassQueueAdmin, CostConfigure, AccessReadWrite, true, "create a queue or set its options"},
	{"GET", "/api/v1/resources/queues", OpListQueues, ClassRead, CostRequest, AccessReadOnly, true, "list the queues"},
	{"GET", "/api/v1/resources/queues/:queue", OpGetQueue, ClassRead, CostRequest, AccessReadOnly, true, "one queue with its options and partitions"},
	{"DELETE", "/api/v1/resources/queues/:queue", OpDeleteQueue, ClassQueueAdmin, CostRequest, AccessAdmin, true, "delete a queue and all it holds"},
	{"GET", "/health", OpHealth, ClassRead, CostRequest, AccessPublic, false, "readiness with a database round trip"},
	{"GET", "/livez", OpLivez, ClassBlocked, CostRequest, AccessPublic, false, "the process is alive and takes pushes"},
	{"GET", "/readyz", OpReadyz, ClassBlocked, CostRequest, AccessPublic, false, "the database answers"},
	{"GET", "/metrics/prometheus", OpMetrics, ClassBlocked, CostRequest, AccessPublic, false, "metrics of the process"},
	{"POST", "/internal/v1/tenants/usage", OpTenantUsage, ClassBlocked, CostRequest, AccessInternal, false, "usage of tenants, for gateways"},
	{"GET", "/internal/v1/tenants/:tenant/names", OpTenantNames, ClassBlocked, CostRequest, AccessInternal, false, "queue and partition names of a tenant, for gateways"},
}
