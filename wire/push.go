package wire

import "github.com/google/uuid"

// PushItem is one message of a push body.
//
// Payload is the raw JSON text as sent and aliases the body. Partition is DefaultPartition when absent or null.
// TransactionID is nil when absent, null or empty: the broker then makes a random one. It may alias the body, since a
// gateway checks it and has no use for it; Queue and Partition never do.
type PushItem struct {
	Queue         string
	Partition     string
	TransactionID []byte
	Payload       []byte
}

// Verdict is what became of one pushed message.
type Verdict string

const (
	Queued    Verdict = "queued"    // durable
	Duplicate Verdict = "duplicate" // seen within the dedup window; the ids are the original's
	Buffered  Verdict = "buffered"  // on this broker's disk spool, replayed when the database is back
	Failed    Verdict = "failed"    // not, or not surely: see PushResult.Outcome; the sender may repeat it
)

// PushResult is the verdict on one item, in request order.
type PushResult struct {
	Index         int
	MessageID     uuid.UUID // the original's for a duplicate
	TransactionID string
	Queue         string
	Status        Verdict
	Offset        int64   // -1 when there is none (buffered, failed)
	Error         string  // only for Failed
	Outcome       Outcome // only for Failed: unknown when it may have been stored all the same
}
