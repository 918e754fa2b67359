package hist

// Seen is what a client that makes no retries saw of one operation.
type Seen struct {
	// Sent says that a byte of the request may have left: false when the dial was refused or the name or the TLS
	// handshake failed.
	Sent bool
	// Status is that of a whole answer, 0 when there was none: reset, end of file, deadline, body cut short.
	Status int
	// Outcome is "outcome" of an error body: none, unknown, or "" when it says nothing.
	Outcome string
	// Refused says that a 2xx answer has success:false for the operation as a whole (extend, transaction, replay).
	Refused bool
}

// Outcome labels an operation. It is, with ItemOutcome, the only place where the meaning of answers is defined:
//
//   - 2xx: OK, Fail if the body refuses the operation as a whole. Items of a push and of an ack have their own outcome.
//   - never sent: Fail.
//   - 400 401 403 404 405 413 414 421 429 431: Fail. Any other 4xx: Info, nobody promised what it means.
//   - 5xx whose body says outcome none: Fail. The product is held to that word (D2).
//   - any other 5xx, no answer, half an answer: Info.
//
// A pop that is Info may hold a lease, and under autoAck has consumed what nobody saw.
func Outcome(s Seen) Kind {
	switch {
	case !s.Sent:
		return Fail
	case s.Status >= 200 && s.Status <= 299:
		if s.Refused {
			return Fail
		}
		return OK
	}
	switch s.Status {
	case 400, 401, 403, 404, 405, 413, 414, 421, 429, 431:
		return Fail
	}
	if s.Status >= 500 && s.Outcome == "none" {
		return Fail
	}
	return Info
}

// Item is the outcome of one item of a push.
type Item uint8

// The outcomes of items. Unknown is that of every item of an operation that is Info or never came back.
const (
	ItemUnknown   Item = iota
	ItemQueued         // durable: D1
	ItemDuplicate      // an earlier push of the same transaction id is durable: X2
	ItemBuffered       // on a spool, durable if the spool survives: D4
	ItemFailed         // never to be seen: D2
)

// AckOutcome labels one item of an ack that was answered: Info when the broker does not know what became of it.
func AckOutcome(op Kind, r *AckResult) Kind {
	if op == OK && !r.Success && r.Outcome == "unknown" {
		return Info
	}
	return op
}

// ItemOutcome labels one item of a push that was answered. op is the outcome of the whole operation, outcome the word of
// a failed item, "" when it says nothing.
func ItemOutcome(op Kind, status, outcome string) Item {
	switch op {
	case Fail:
		return ItemFailed
	case OK:
		switch status {
		case "queued":
			return ItemQueued
		case "duplicate":
			return ItemDuplicate
		case "buffered":
			return ItemBuffered
		case "failed", "error":
			if outcome != "unknown" {
				return ItemFailed
			}
		}
	}
	return ItemUnknown
}
