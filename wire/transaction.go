package wire

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// TransactionPush is one message of a transaction. It is a PushItem with a trace id, "" when absent or no UUID. An
// absent payload is the empty object.
type TransactionPush struct {
	PushItem
	TraceID string // lower case
}

// TransactionAck is one acknowledgement of a transaction. Its ids are never empty.
type TransactionAck struct {
	AckItem
	Group string // QueueModeGroup when absent
}

// Transaction is a scanned transaction body, pushes and acks each in the order of the operations.
type Transaction struct {
	Pushes []TransactionPush
	Acks   []TransactionAck
	// Leases are the requiredLeases, without empty ones; whether they are UUIDs is not checked.
	Leases []string
}

// Fenced reports whether a lease is named anywhere: then every ack must be covered by one.
func (t *Transaction) Fenced() bool {
	if len(t.Leases) > 0 {
		return true
	}
	for i := range t.Acks {
		if t.Acks[i].LeaseID != "" {
			return true
		}
	}
	return false
}

// Reason says in one word why a transaction was rolled back.
type Reason string

const (
	ReasonBadRequest  Reason = "bad_request"
	ReasonDuplicate   Reason = "duplicate"    // a push repeats what is stored
	ReasonAckRejected Reason = "ack_rejected" // an ack cannot be carried out, or a lease is not held
)

// TransactionResult is the result of one element of a transaction that was committed.
type TransactionResult struct {
	Push          bool // else an ack
	TransactionID string
	MessageID     uuid.UUID // of a push, as the next three
	Queue         string
	PartitionID   uuid.UUID
	Duplicate     bool // repeats an item of this transaction, whose ids it has
	DLQ           bool // of an ack: this very message went to the dead letters
	Noop          bool // of an ack: the cursor had passed it already
}

// AppendTransactionResults appends the answer to a committed transaction: one result per pushed item, then one per ack,
// each in the order of the operations.
func AppendTransactionResults(dst []byte, id uuid.UUID, rs []TransactionResult) []byte {
	dst = append(dst, `{"transactionId":`...)
	dst = AppendUUID(dst, id)
	dst = append(dst, `,"success":true,"results":[`...)
	for i := range rs {
		r := &rs[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		if r.Push {
			dst = append(dst, `,"type":"push","success":true,"transactionId":`...)
			dst = AppendString(dst, r.TransactionID)
			dst = append(dst, `,"messageId":`...)
			dst = AppendUUID(dst, r.MessageID)
			dst = append(dst, `,"queueName":`...)
			dst = AppendString(dst, r.Queue)
			dst = append(dst, `,"partitionId":`...)
			dst = AppendUUID(dst, r.PartitionID)
			if r.Duplicate {
				dst = append(dst, `,"duplicate":true`...)
			}
		} else {
			dst = append(dst, `,"type":"ack","success":true,"transactionId":`...)
			dst = AppendString(dst, r.TransactionID)
			dst = append(dst, `,"error":null,"dlq":`...)
			dst = strconv.AppendBool(dst, r.DLQ)
			dst = append(dst, `,"noop":`...)
			dst = strconv.AppendBool(dst, r.Noop)
		}
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// AppendTransactionFailure appends the answer to a transaction that was rolled back. failed is the index that the
// element at fault would have had among the results, -1 when it is none of them.
func AppendTransactionFailure(dst []byte, id uuid.UUID, reason Reason, text string, failed int) []byte {
	dst = append(dst, '{')
	dst = appendFailure(dst, id, reason)
	if failed >= 0 {
		dst = append(dst, `,"failedIndex":`...)
		dst = strconv.AppendInt(dst, int64(failed), 10)
	}
	dst = append(dst, `,"error":`...)
	dst = AppendString(dst, text)
	return append(dst, '}')
}

func appendFailure(dst []byte, id uuid.UUID, reason Reason) []byte {
	dst = append(dst, `"transactionId":`...)
	dst = AppendUUID(dst, id)
	dst = append(dst, `,"success":false,"reason":`...)
	dst = AppendString(dst, string(reason))
	return append(dst, `,"results":[]`...)
}

// Texts of transactions that were rolled back. Clients look for QDUP and QTXN at the beginning.
const rolledBack = "; transaction rolled back"

// DuplicateText says which push repeats what is stored.
func DuplicateText(transactionID, queue string) string {
	return "QDUP push of transactionId " + quoted(transactionID) + " to queue " + quoted(queue) + " repeats a stored message" + rolledBack
}

// RejectedText says why an ack cannot be carried out.
func RejectedText(transactionID, why string) string {
	if strings.HasPrefix(why, "unresolvable") {
		return "QTXN ack references unknown transactionId " + quoted(transactionID) + ": " + why + rolledBack
	}
	return "QTXN ack of transactionId " + quoted(transactionID) + ": " + why + rolledBack
}

// LeaseText says that a required lease is not held.
func LeaseText(lease, why string) string {
	return "QTXN required lease " + quoted(lease) + ": " + why + rolledBack
}

// quoted cuts what a client sent to a length that fits a line.
func quoted(s string) string {
	const most = 120
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return `"` + s + `"`
}
