package wire

// AckStatus is the outcome a consumer reports for a message, after the wire's spellings have been folded.
type AckStatus uint8

const (
	AckCompleted AckStatus = iota // absent, null, completed, success, acked, ok
	AckRetry                      // release, redeliver, charge nothing
	AckFailed                     // redeliver and charge one attempt; any other string means this too
	AckDLQ                        // dead-letter now
)

// AckItem is one acknowledgement of a body. Strings do not alias the body.
type AckItem struct {
	TransactionID string
	PartitionID   string // as sent; not yet checked to be a UUID. "" when missing: fails alone
	LeaseID       string // "" when absent: no ownership check
	Status        AckStatus
	Error         string
}

// AckRequest is a scanned ack body. Group is QueueModeGroup when absent or null.
type AckRequest struct {
	Group string
	Items []AckItem
}

// AckResult is the answer to one item, in request order.
type AckResult struct {
	Index         int
	TransactionID string
	Success       bool    // the instruction was carried out
	Error         string  // "" is rendered as null
	LeaseReleased bool    // this call ended the lease of the item's partition
	DLQ           bool    // this very message went to the dead letters
	Noop          bool    // the cursor had passed it already
	Outcome       Outcome // of an item whose statement failed: unknown when it may have been carried out all the same; "" is not rendered
	Conflated     int64   // positions that a conflating ack skipped: on the first item of its group, 0 is not rendered
}

// ExtendResult answers a lease extension. ExpiresAt is the earliest new expiry, "" is rendered as null.
type ExtendResult struct {
	LeaseID   string
	Renewed   int
	ExpiresAt string
}
