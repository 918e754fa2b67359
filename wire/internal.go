package wire

import (
	"time"

	"github.com/google/uuid"
)

// MaxUsageTenants bounds one question about usage.
const MaxUsageTenants = 10_000

// UsageQuestion is the body of POST /internal/v1/tenants/usage: the tenants a gateway wants to know about.
type UsageQuestion struct {
	Tenants []uuid.UUID `json:"tenants"`
}

// UsageAnswer answers it; tenants the broker knows nothing of may be left out.
type UsageAnswer struct {
	Tenants []TenantUsage `json:"tenants"`
}

// TenantUsage is what a tenant occupies, as of ComputedAt on the database's clock.
type TenantUsage struct {
	Tenant        uuid.UUID `json:"tenant"`
	RetainedBytes int64     `json:"retained_bytes"` // raw payload bytes
	Queues        int64     `json:"queues"`
	ComputedAt    time.Time `json:"computed_at"`
}

// NamesPage answers GET /internal/v1/tenants/:tenant/names?limit=&after_queue=&after_partition=: the tenant's queues
// and partitions, in their order. With More the next page begins after the last name.
type NamesPage struct {
	Names []QueuePartition `json:"names"`
	More  bool             `json:"more"`
}

// QueuePartition names a partition, or with Partition "" a queue.
type QueuePartition struct {
	Queue     string `json:"queue"`
	Partition string `json:"partition"`
}

// WipeAnswer answers POST /internal/v1/tenants/:tenant/wipe: a few steps of the removal of a tenant were taken. Call again
// until Done.
type WipeAnswer struct {
	Rows          int64  `json:"rows"`           // removed by this call
	What          string `json:"what"`           // where it stands: redrives, dead letters, partitions, queues, log, …
	Done          bool   `json:"done"`           // nothing of the tenant is left
	Queues        int64  `json:"queues"`         // that are left
	RetainedBytes int64  `json:"retained_bytes"` // raw payload bytes that are left
}
