package hist

import (
	"slices"
	"time"
)

// Format is the version of the file format that this package writes and reads.
const Format = 1

// Header is the first line of a history: what is needed to judge the run, and to run it again.
type Header struct {
	Format   int               `json:"format"` // set by the writer
	Run      string            `json:"run"`    // unique name; the judge refuses files of another run
	Seed     uint64            `json:"seed"`
	Git      string            `json:"git,omitzero"`
	Cmd      string            `json:"cmd"` // what to type to run it again
	Began    time.Time         `json:"began"`
	Config   map[string]string `json:"config,omitempty"`   // what differs from the defaults: fusion, build tags, mutant
	Versions map[string]string `json:"versions,omitempty"` // go, postgres, kernel
	Topology Topology          `json:"topology"`
	Queues   []Queue           `json:"queues"`             // every queue whose messages are judged
	Clusters []Cluster         `json:"clusters,omitempty"` // every cluster whose limits are judged
	Floors   Floors            `json:"floors"`
}

// Topology is who took part. Addresses are those of Event.Node.
type Topology struct {
	Brokers  []string `json:"brokers"`
	Gateways []string `json:"gateways,omitempty"`
	Mesh     bool     `json:"mesh,omitzero"` // the brokers can hear each other
	Spool    bool     `json:"spool,omitzero"`
	Quota    string   `json:"quota,omitzero"` // who decides: local, exact or leased; "" is the product's own choice
}

// Queue is how a queue is configured and used.
type Queue struct {
	Tenant      string   `json:"tenant,omitzero"`
	Name        string   `json:"name"`
	Workload    string   `json:"workload"` // W1… : decides which rules are judged
	Partitions  []string `json:"partitions"`
	LeaseMs     int64    `json:"leaseMs"`
	DedupMs     int64    `json:"dedupMs"` // 0: no window
	RetryLimit  int      `json:"retryLimit"`
	DeadLetters bool     `json:"deadLetters,omitzero"`
	// What deletes messages; 0 is never.
	RetentionMs          int64   `json:"retentionMs,omitzero"`
	CompletedRetentionMs int64   `json:"completedRetentionMs,omitzero"`
	MaxWaitMs            int64   `json:"maxWaitMs,omitzero"`
	Groups               []Group `json:"groups,omitempty"`
}

// Lease is the lease time of a pop that names none.
func (q *Queue) Lease() time.Duration { return time.Duration(q.LeaseMs) * time.Millisecond }

// Dedup is the dedup window, 0 when there is none.
func (q *Queue) Dedup() time.Duration { return time.Duration(q.DedupMs) * time.Millisecond }

// Deletes reports whether messages may vanish from the queue.
func (q *Queue) Deletes() bool {
	return q.RetentionMs > 0 || q.CompletedRetentionMs > 0 || q.MaxWaitMs > 0
}

// Group is a consumer group that reads a queue.
type Group struct {
	Name    string `json:"name"` // "" is queue mode
	AutoAck bool   `json:"autoAck,omitzero"`
	// Drains says that the group reads from the start and has seen everything when the phase Drain ends (A3, Q7).
	Drains bool `json:"drains,omitzero"`
}

// Floors are the counts below which a run proves nothing, 0 where it does not matter. All counts are of the whole run.
type Floors struct {
	Pushes       int `json:"pushes,omitzero"`       // items answered queued
	Acks         int `json:"acks,omitzero"`         // items answered success and not noop, transactions' included
	Redeliveries int `json:"redeliveries,omitzero"` // messages delivered to a group again
	Infos        int `json:"infos,omitzero"`        // operations of unknown outcome
	Buffered     int `json:"buffered,omitzero"`     // items answered buffered
	Duplicates   int `json:"duplicates,omitzero"`   // items answered duplicate
	Transactions int `json:"transactions,omitzero"` // committed
	Fenced       int `json:"fenced,omitzero"`       // acks and transactions that were refused after their lease was superseded
	DeadLetters  int `json:"deadLetters,omitzero"`  // in the final list
	Deleted      int `json:"deleted,omitzero"`      // records that retention removed
	Wakes        int `json:"wakes,omitzero"`        // waiting pops answered with what was pushed on another broker meanwhile
	Reads        int `json:"reads,omitzero"`        // records fetched before the final reads
	Admitted     int `json:"admitted,omitzero"`     // requests to gateways that were let in
	Refused      int `json:"refused,omitzero"`      // and that were not, for a limit
}

// Smoke are the floors of the combined smoke run, Nightly those of one nightly cell.
var (
	Smoke   = Floors{Pushes: 3000, Acks: 2000, Redeliveries: 5}
	Nightly = Floors{Pushes: 20000, Acks: 15000, Redeliveries: 5}
)

// Queue returns the queue of a tenant, nil when the header does not name it.
func (h *Header) Queue(tenant, name string) *Queue {
	i := slices.IndexFunc(h.Queues, func(q Queue) bool { return q.Tenant == tenant && q.Name == name })
	if i < 0 {
		return nil
	}
	return &h.Queues[i]
}
