package wire

// The bounds both sides apply to what a client sends (design.md 2). They are properties of the protocol, not of a
// plan: what exceeds them is malformed and answered 400, whatever the tenant pays.
const (
	MaxNesting            = 64    // levels of arrays and objects in a request body
	MaxNameBytes          = 512   // queue, partition and consumer group names, in UTF-8 bytes
	MaxTransactionIDBytes = 65535 // a segment frame stores its length in 16 bits
)

// DefaultPartition is the partition of an item that names none.
const DefaultPartition = "Default"

// QueueModeGroup is the consumer group of pops and acks that name none: one shared cursor per partition.
const QueueModeGroup = "__QUEUE_MODE__"

// TimerGroup is the group under which timers that could not fire are dead letters; no consumer may bear the name, and
// none of its letters can return to the log.
const TimerGroup = "__timer__"
