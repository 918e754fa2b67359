package wire

import "time"

// Destination is where dead letters shall return to; the zero value means where they came from.
type Destination struct{ Queue, Partition string }

// ScanReplay reads the body of a replay: absent, or {"queue":…,"partition":…} with both or none of the two. A blank
// name is refused, so that a mistake does not become the default partition. null counts as absent.
func ScanReplay(body []byte) (Destination, error) {
	s := scanner{b: body}
	if s.absent() {
		return Destination{}, nil
	}
	to, err := s.destination(func([]byte) error {
		_, err := s.skip(1)
		return err
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return Destination{}, err
	}
	return to, nil
}

// absent reports a body of nothing but white space.
func (s *scanner) absent() bool {
	s.space()
	return s.i == len(s.b)
}

// destination consumes an object that names a partition; other is called for a member that does neither.
func (s *scanner) destination(other func(key []byte) error) (to Destination, err error) {
	var keys seen
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "queue":
			return s.filled(&keys, 0, "queue", &to.Queue)
		case "partition":
			return s.filled(&keys, 1, "partition", &to.Partition)
		}
		return other(key)
	})
	if err == nil && (to.Queue == "") != (to.Partition == "") {
		err = bad("a destination names both queue and partition, or neither")
	}
	return to, err
}

// filled consumes a name that may be null but not blank.
func (s *scanner) filled(keys *seen, bit uint, key string, into *string) error {
	if err := keys.add(bit, key); err != nil {
		return err
	}
	name, null, err := s.optionalText(key)
	switch {
	case err != nil || null:
		return err
	case name == "":
		return bad("%s must not be blank", key)
	}
	*into = name
	return checkName(key, name)
}

// Bounds of a redrive; rates are in messages per second.
const (
	DefaultRedriveRate = 100
	MaxRedriveRate     = 10_000
	MaxRedriveLimit    = 1_000_000_000

	maxRedriveIDs = 10_000
)

// RedriveRequest is a scanned body of POST /api/v1/dlq/redrive.
type RedriveRequest struct {
	Queue          string
	Group          string // "": of every group
	Partition      string // "": of every partition
	ErrorPart      string // contained in the error; "": any
	From, Before   time.Time
	TransactionIDs []string // nil: any
	Destination    Destination
	Limit          int // how many at most, the ones that failed first; 0: all
	Rate           int
	DryRun         bool // only count
}

// Bits of the known keys of a redrive, and of its filter.
const (
	redriveQueue = iota
	redriveGroup
	redriveRate
	redriveDryRun
	redriveTo
	redriveFilter
	redrivePartition
	redriveLimit

	filterPartition = iota - redriveLimit - 1
	filterError
	filterFrom
	filterTo
	filterIDs
)

// ScanRedrive reads
//
//	{"queue":…, "consumerGroup":…, "partition":…, "limit":…, "rate":…, "dryRun":…,
//	 "destination":{"queue":…,"partition":…},
//	 "filter":{"partition":…, "error":…, "from":…, "to":…, "transactionIds":[…]}}
//
// of which only queue is required; null counts as absent. partition may stand in either place, not in both. from and to
// are RFC 3339 times of failing, to is exclusive. A key that is not known is refused wherever it stands: what it was meant
// to leave out would be moved, and a move cannot be undone.
func ScanRedrive(body []byte) (RedriveRequest, error) {
	s := scanner{b: body}
	r := RedriveRequest{Rate: DefaultRedriveRate}
	var keys seen
	var filtered string // the partition that the filter names
	err := s.object(func(key []byte) (err error) {
		var there bool
		switch string(key) {
		case "queue":
			return s.filled(&keys, redriveQueue, "queue", &r.Queue)
		case "consumerGroup":
			return s.filled(&keys, redriveGroup, "consumerGroup", &r.Group)
		case "partition":
			return s.filled(&keys, redrivePartition, "partition", &r.Partition)
		case "limit":
			if there, err = s.known(&keys, redriveLimit, "limit", kindNumber, "a whole number"); there {
				r.Limit, err = s.integer("limit")
				if err == nil && (r.Limit < 1 || r.Limit > MaxRedriveLimit) {
					err = bad("limit must be 1…%d dead letters", MaxRedriveLimit)
				}
			}
		case "rate":
			if there, err = s.known(&keys, redriveRate, "rate", kindNumber, "a whole number"); there {
				r.Rate, err = s.integer("rate")
				if err == nil && (r.Rate < 1 || r.Rate > MaxRedriveRate) {
					err = bad("rate must be 1…%d messages per second", MaxRedriveRate)
				}
			}
		case "dryRun":
			return s.truth(&keys, redriveDryRun, "dryRun", &r.DryRun)
		case "destination":
			if there, err = s.known(&keys, redriveTo, "destination", kindObject, "an object"); there {
				r.Destination, err = s.destination(func([]byte) error {
					return bad("destination has a key that is not known; its keys are queue and partition")
				})
			}
		case "filter":
			if there, err = s.known(&keys, redriveFilter, "filter", kindObject, "an object"); there {
				err = s.redriveFilter(&r, &filtered)
			}
		default:
			// The key is not repeated: a text of a 4xx must be free of words that clients search for.
			err = bad("the redrive has a key that is not known; its keys are queue, consumerGroup, partition, limit, rate, dryRun, destination and filter")
		}
		return err
	})
	if err == nil {
		err = s.end()
	}
	switch {
	case err != nil:
	case r.Queue == "":
		err = bad("queue is missing")
	case r.Partition == "":
		r.Partition = filtered
	case filtered != "":
		err = bad("partition stands beside the filter and in it")
	}
	if err != nil {
		return RedriveRequest{}, err
	}
	return r, nil
}

func (s *scanner) redriveFilter(r *RedriveRequest, partition *string) error {
	var keys seen
	return s.object(func(key []byte) (err error) {
		switch string(key) {
		case "partition":
			return s.filled(&keys, filterPartition, "partition", partition)
		case "error":
			if err := keys.add(filterError, "error"); err != nil {
				return err
			}
			r.ErrorPart, _, err = s.optionalText("error")
			if err == nil && hasControl(r.ErrorPart) {
				err = bad("control characters are not allowed in error")
			}
		case "from":
			return s.instant(&keys, filterFrom, "from", &r.From)
		case "to":
			return s.instant(&keys, filterTo, "to", &r.Before)
		case "transactionIds":
			var there bool
			if there, err = s.known(&keys, filterIDs, "transactionIds", kindArray, "an array"); there {
				r.TransactionIDs = []string{}
				err = s.array(func(i int) error { return s.transactionID(i, r) })
			}
		default:
			err = bad("filter has a key that is not known; its keys are partition, error, from, to and transactionIds")
		}
		return err
	})
}

func (s *scanner) transactionID(i int, r *RedriveRequest) error {
	if i == maxRedriveIDs {
		return bad("transactionIds has more than %d elements", maxRedriveIDs)
	}
	if k, err := s.peek(); err != nil {
		return err
	} else if k != kindString {
		return bad("transactionIds must be strings")
	}
	id, err := s.text()
	if err == nil && hasControl(id) {
		err = bad("control characters are not allowed in transactionIds")
	}
	r.TransactionIDs = append(r.TransactionIDs, id)
	return err
}

// known begins the value of a known key that is of one kind or null, which it consumes; there says that the scanner
// stands at a value of that kind.
func (s *scanner) known(keys *seen, bit uint, key string, want kind, what string) (there bool, err error) {
	if err := keys.add(bit, key); err != nil {
		return false, err
	}
	k, err := s.peek()
	switch {
	case err != nil:
		return false, err
	case k == kindNull:
		return false, s.literal("null")
	case k != want:
		return false, bad("%s must be %s", key, what)
	}
	return true, nil
}

// truth consumes true, false or null.
func (s *scanner) truth(keys *seen, bit uint, key string, into *bool) error {
	if err := keys.add(bit, key); err != nil {
		return err
	}
	k, err := s.peek()
	if err != nil {
		return err
	}
	switch k {
	case kindTrue:
		*into = true
		return s.literal("true")
	case kindFalse:
		return s.literal("false")
	case kindNull:
		return s.literal("null")
	}
	return bad("%s must be true or false", key)
}

// instant consumes an RFC 3339 time or null.
func (s *scanner) instant(keys *seen, bit uint, key string, into *time.Time) error {
	if err := keys.add(bit, key); err != nil {
		return err
	}
	text, null, err := s.optionalText(key)
	if err != nil || null {
		return err
	}
	if *into, err = time.Parse(time.RFC3339Nano, text); err != nil {
		return bad("%s must be a time like 2026-09-01T10:11:12Z", key)
	}
	return nil
}

// DeadLetterRequest is a scanned body of POST /api/v1/messages/:partition/:transaction/dlq.
type DeadLetterRequest struct {
	Group string // QueueModeGroup when absent
	Error string // "" when absent
}

// ScanDeadLetter reads {"consumerGroup":…,"error":…}, both optional, or an absent body. null counts as absent.
func ScanDeadLetter(body []byte) (DeadLetterRequest, error) {
	r := DeadLetterRequest{Group: QueueModeGroup}
	s := scanner{b: body}
	if s.absent() {
		return r, nil
	}
	var keys seen
	err := s.object(func(key []byte) (err error) {
		switch string(key) {
		case "consumerGroup":
			return s.filled(&keys, 0, "consumerGroup", &r.Group)
		case "error":
			if err := keys.add(1, "error"); err != nil {
				return err
			}
			r.Error, _, err = s.optionalText("error")
			return err
		}
		_, err = s.skip(1)
		return err
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return DeadLetterRequest{}, err
	}
	return r, nil
}
