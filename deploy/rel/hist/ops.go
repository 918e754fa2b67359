package hist

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// PushItem is one message of a push or a transaction, as sent.
type PushItem struct {
	Queue         string         `json:"queue"`
	Partition     string         `json:"partition"`
	TransactionID string         `json:"transactionId"` // never empty: see ID
	Payload       jsontext.Value `json:"payload"`       // see Payload
}

// PushArgs is POST /api/v1/push.
type PushArgs struct {
	Items []PushItem `json:"items"`
}

// PushResult is the verdict on one item.
type PushResult struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	Status        string `json:"status"` // queued, duplicate, buffered, failed, error: see ItemOutcome
	Offset        *int64 `json:"offset,omitempty"`
	Error         string `json:"error,omitzero"`
	Outcome       string `json:"outcome,omitzero"` // of a failed one
}

// PushAnswer is the bare array of results, in the order of the items.
type PushAnswer []PushResult

// PopArgs is GET /api/v1/pop… . An empty Partition asks for any.
type PopArgs struct {
	Queue        string `json:"queue,omitzero"` // "" is a discovery pop
	Partition    string `json:"partition,omitzero"`
	Group        string `json:"consumerGroup,omitzero"` // "" is queue mode
	Batch        int    `json:"batch,omitzero"`
	Partitions   int    `json:"partitions,omitzero"`
	AutoAck      bool   `json:"autoAck,omitzero"`
	Wait         bool   `json:"wait,omitzero"`
	TimeoutMs    int    `json:"timeout,omitzero"`
	LeaseSeconds int    `json:"leaseSeconds,omitzero"`
	Subscription string `json:"subscriptionMode,omitzero"`
}

// Message is one delivered message.
type Message struct {
	ID              string         `json:"id"`
	TransactionID   string         `json:"transactionId"`
	Data            jsontext.Value `json:"data"`
	CreatedAt       time.Time      `json:"createdAt"` // microseconds
	PartitionID     string         `json:"partitionId"`
	Partition       string         `json:"partition"`
	Queue           string         `json:"queue"`
	Offset          int64          `json:"offset"`
	DeliveryAttempt int            `json:"deliveryAttempt,omitzero"`
}

// PopAnswer is the answer to a pop. 204 is one without messages.
type PopAnswer struct {
	LeaseID  string    `json:"leaseId,omitzero"` // one for the whole call, "" under autoAck
	Messages []Message `json:"messages,omitempty"`
}

// AckItem is one acknowledgement. Queue, Partition and Offset are those of the message as it was delivered: the wire
// names it by partition and transaction id only.
type AckItem struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId,omitzero"`
	Status        string `json:"status,omitzero"` // "", completed, retry, failed, dlq
	Error         string `json:"error,omitzero"`

	Queue     string `json:"q"`
	Partition string `json:"p"`
	Offset    int64  `json:"o"`
}

// AckArgs is POST /api/v1/ack or /ack/batch.
type AckArgs struct {
	Group string    `json:"consumerGroup,omitzero"` // "" is queue mode
	Items []AckItem `json:"acknowledgments"`
}

// AckResult is the answer to one item.
type AckResult struct {
	Index         int    `json:"index"`
	TransactionID string `json:"transactionId"`
	Success       bool   `json:"success"`
	Error         string `json:"error,omitzero"` // the wire's null is ""
	LeaseReleased bool   `json:"leaseReleased,omitzero"`
	DLQ           bool   `json:"dlq,omitzero"`
	Noop          bool   `json:"noop,omitzero"`
	Outcome       string `json:"outcome,omitzero"` // of one that could not be decided
}

// AckAnswer is the bare array of results, in the order of the items.
type AckAnswer []AckResult

// ExtendArgs is POST /api/v1/lease/:leaseId/extend.
type ExtendArgs struct {
	LeaseID string `json:"leaseId"`
	Seconds int    `json:"seconds"`
}

// ExtendAnswer is its answer. An operation whose answer says success:false is Fail.
type ExtendAnswer struct {
	Success bool `json:"success"`
	Renewed int  `json:"renewed"`
}

// TransactionAck is an ack of a transaction, which names its group itself.
type TransactionAck struct {
	AckItem
	Group string `json:"consumerGroup,omitzero"` // "" is queue mode
}

// TransactionArgs is POST /api/v1/transaction: all its pushes, then all its acks, each in the order of the operations.
type TransactionArgs struct {
	Pushes []PushItem       `json:"pushes,omitempty"`
	Acks   []TransactionAck `json:"acks,omitempty"`
	Leases []string         `json:"requiredLeases,omitempty"`
}

// TransactionResult is the result of one element.
type TransactionResult struct {
	Index         int    `json:"index"`
	Type          string `json:"type"` // push or ack
	Success       bool   `json:"success"`
	TransactionID string `json:"transactionId"`
	MessageID     string `json:"messageId,omitzero"`
	Duplicate     bool   `json:"duplicate,omitzero"`
	DLQ           bool   `json:"dlq,omitzero"`
	Noop          bool   `json:"noop,omitzero"`
}

// TransactionAnswer is its answer. An operation whose answer says success:false is Fail.
type TransactionAnswer struct {
	TransactionID string              `json:"transactionId"`
	Success       bool                `json:"success"`
	Reason        string              `json:"reason,omitzero"`
	Error         string              `json:"error,omitzero"`
	Results       []TransactionResult `json:"results,omitempty"`
}

// FetchEntry asks for the log of one partition from an offset on.
type FetchEntry struct {
	Queue     string `json:"queue"`
	Partition string `json:"partition"`
	Offset    int64  `json:"offset"`
}

// FetchArgs is POST /api/v1/fetch. The fetches that are invoked in the phase Final are the final reads: together they
// must cover every partition of every queue from its start to its high watermark, from each broker.
type FetchArgs struct {
	Entries   []FetchEntry `json:"entries"`
	MaxWaitMs int          `json:"maxWaitMs,omitzero"`
	MinBytes  int          `json:"minBytes,omitzero"`
}

// Record is one message of a fetch.
type Record struct {
	Offset        int64          `json:"offset"`
	TransactionID string         `json:"transactionId"`
	Payload       jsontext.Value `json:"payload"`
	TS            time.Time      `json:"ts"` // milliseconds
}

// FetchResult answers one entry.
type FetchResult struct {
	Queue          string   `json:"queue"`
	Partition      string   `json:"partition"`
	Records        []Record `json:"records,omitempty"`
	HighWatermark  int64    `json:"highWatermark"`
	LogStartOffset int64    `json:"logStartOffset,omitzero"`
	Error          string   `json:"error,omitzero"` // UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE
}

// FetchAnswer has one result per entry, in order.
type FetchAnswer struct {
	Entries []FetchResult `json:"entries"`
}

// SeekArgs is POST …/queues/:queue/seek, or of one partition when Partition is not empty.
type SeekArgs struct {
	Group     string    `json:"consumerGroup"`
	Queue     string    `json:"queue"`
	Partition string    `json:"partition,omitzero"`
	ToEnd     bool      `json:"toEnd,omitzero"`
	Timestamp time.Time `json:"timestamp,omitzero"`
}

// ConfigureArgs is POST /api/v1/configure.
type ConfigureArgs struct {
	Queue   string         `json:"queue"`
	Mode    string         `json:"mode,omitzero"`
	Options jsontext.Value `json:"options,omitzero"`
}

// TargetArgs names what is deleted: a queue, a group, or a group's place in a queue.
type TargetArgs struct {
	Queue string `json:"queue,omitzero"`
	Group string `json:"consumerGroup,omitzero"`
}

// DeadLettersArgs is GET /api/v1/dlq. Those that are invoked in the phase Final are the final reads; pages are joined
// by the judge.
type DeadLettersArgs struct {
	Queue  string `json:"queue"`
	Group  string `json:"consumerGroup,omitzero"`
	Cursor string `json:"cursor,omitzero"`
}

// DeadLetter is one of them.
type DeadLetter struct {
	ID            string         `json:"id"`
	TransactionID string         `json:"transactionId"`
	Queue         string         `json:"queue"`
	Partition     string         `json:"partition"`
	Group         string         `json:"consumerGroup"` // __QUEUE_MODE__ is "" here as everywhere in a history
	Offset        int64          `json:"offset"`
	Data          jsontext.Value `json:"data,omitzero"` // null when the payload is gone
	Error         string         `json:"errorMessage,omitzero"`
	RetryCount    int            `json:"retryCount,omitzero"`
}

// DeadLettersAnswer is one page. An empty Next ends the list.
type DeadLettersAnswer struct {
	Messages []DeadLetter `json:"messages,omitempty"`
	Next     string       `json:"nextCursor,omitzero"`
}

// ReplayArgs is POST /api/v1/dlq/:id/replay. The others are those of the letter.
type ReplayArgs struct {
	ID            string `json:"id"`
	TransactionID string `json:"tx"`
	Queue         string `json:"q"`
	Partition     string `json:"p"`
	Group         string `json:"g,omitzero"`
}

// ReplayAnswer is its answer.
type ReplayAnswer struct {
	Success    bool   `json:"success"`
	Result     string `json:"result"` // moved, duplicate, gone
	ReplayedAs string `json:"transaction_id,omitzero"`
}

// HealthArgs is GET /health.
type HealthArgs struct{}

// HealthAnswer is its answer; the status of the event says healthy (200) or not (503).
type HealthAnswer struct {
	Status   string `json:"status"`
	Database string `json:"database"`
}
