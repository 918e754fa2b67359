package wire

import (
	"time"

	"github.com/google/uuid"
)

// PopQuery is the parsed query of a pop. Zero values are the wire's defaults where a field says so.
type PopQuery struct {
	Batch            int           // total message budget over all claimed partitions; default 200, at least 1
	BatchGiven       bool          // the query named it
	Partitions       int           // how many partitions one call may claim; default 1; 0 means no cap
	PartitionsGiven  bool          // the query named it
	AutoAck          bool          // the cursor moves on delivery, no lease
	Wait             bool          // long poll
	Timeout          time.Duration // of a waiting poll; DefaultTimeout unless TimeoutGiven
	TimeoutGiven     bool          // the query named it
	LeaseSeconds     int           // 0: the queue's own
	Group            string        // QueueModeGroup when absent
	SubscriptionMode string        // as sent: all, new and its spellings; "" when absent
	SubscriptionFrom string        // as sent: now or an RFC 3339 time; "" when absent
	Conflation       bool          // of each partition only the newest message
	Autopilot        bool          // the broker may choose what the query does not name of batch and partitions
	Namespace        string        // of a discovery pop: exact, "" matches any; ignored by the other forms
	Task             string        // likewise
}

// PollMargin returns how long before the end of its time a waiting poll is answered. SDKs give up at exactly that end; an
// answer that comes much too early has them ask again at once, so a short poll gives up no more than a quarter of its
// time.
func PollMargin(timeout time.Duration) time.Duration { return min(maxPollMargin, timeout/4) }

const maxPollMargin = 250 * time.Millisecond

// Message is one delivered message.
type Message struct {
	ID              uuid.UUID
	TransactionID   string
	TraceID         string // "" is rendered as null
	Data            []byte // raw JSON; aliases the segment
	ProducerSub     string // "" is rendered as null
	CreatedAt       time.Time
	PartitionID     uuid.UUID
	Partition       string
	Queue           string
	Offset          int64
	DeliveryAttempt int
}

// PopAnswer is a non-empty answer to a pop: messages grouped by partition, in offset order inside each.
type PopAnswer struct {
	Queue             string
	Partition         string    // of the first claimed partition
	PartitionID       uuid.UUID // likewise
	LeaseID           string    // one for the whole call; "" under autoAck
	LeaseExpiresAt    time.Time // zero under autoAck
	Group             string
	PartitionsClaimed int
	Messages          []Message

	Conflation bool // the caller asked for it, or it is what its group does
	Conflict   bool // the caller asked for it, and its group was first registered without: these are all messages
	Autopilot  *Autopilot
}

// Autopilot is what the broker chose for a pop that left it the choice.
type Autopilot struct {
	Partitions int
	Batch      int
	Wait       time.Duration // advice: how long to pause before the next pop that does not wait
}

// SeedMode is where a consumer group starts on a queue it has not read before.
type SeedMode uint8

const (
	SeedAll       SeedMode = iota // everything retained
	SeedNew                       // what is pushed from now on
	SeedTimestamp                 // what was pushed at or after a time
)
