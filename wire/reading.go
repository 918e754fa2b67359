package wire

import (
	"math"
	"strconv"
	"time"
)

// Bounds of the reads by offset (spec/broker-http.md 2.8 and 2.9). Sizes and waits above theirs are served as the bound.
const (
	MaxFetchEntries   = 1024
	MaxFetchBytes     = 8 << 20 // of one entry
	MaxFetchWait      = 30 * time.Second
	MaxChangedEntries = 64
	MaxChangedLimit   = 1000

	defaultFetchBytes = 1 << 20
)

// FetchEntry asks for the messages of one partition from an offset on.
type FetchEntry struct {
	Queue     string
	Partition string // DefaultPartition when absent
	Offset    int64
	MaxBytes  int64 // of payload; the first message is delivered whatever its size
}

// FetchRequest is a scanned body of /fetch.
type FetchRequest struct {
	Entries  []FetchEntry
	MaxWait  time.Duration // how long to wait for MinBytes; 0: not at all
	MinBytes int64         // 0: answer at once
}

// Waits reports whether the request may be held.
func (r *FetchRequest) Waits() bool { return r.MaxWait > 0 && r.MinBytes > 0 && len(r.Entries) > 0 }

// ScanFetch reads {"entries":[{queue, partition, offset, maxBytes}], maxWaitMs, minBytes}. A partition may be written
// as a whole number, which means its digits.
func ScanFetch(body []byte) (FetchRequest, error) {
	s := scanner{b: body}
	req := FetchRequest{MinBytes: 1}
	var keys seen
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "entries":
			if err := keys.add(0, "entries"); err != nil {
				return err
			}
			return s.array(func(i int) error {
				if i == MaxFetchEntries {
					return bad("more than %d entries", MaxFetchEntries)
				}
				e, err := s.fetchEntry(i)
				req.Entries = append(req.Entries, e)
				return err
			})
		case "maxWaitMs":
			if err := keys.add(1, "maxWaitMs"); err != nil {
				return err
			}
			ms, err := s.size("maxWaitMs", 0)
			req.MaxWait = time.Duration(min(ms, MaxFetchWait.Milliseconds())) * time.Millisecond
			return err
		case "minBytes":
			if err := keys.add(2, "minBytes"); err != nil {
				return err
			}
			var err error
			req.MinBytes, err = s.size("minBytes", 1)
			return err
		}
		_, err := s.skip(1)
		return err
	})
	if err == nil && keys&1 == 0 {
		err = bad("entries is missing")
	}
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return FetchRequest{}, err
	}
	return req, nil
}

func (s *scanner) fetchEntry(index int) (FetchEntry, error) {
	e := FetchEntry{Partition: DefaultPartition, MaxBytes: defaultFetchBytes}
	if err := s.wantObject("entry", index); err != nil {
		return e, err
	}
	var keys seen
	err := s.object(func(key []byte) (err error) {
		switch string(key) {
		case "queue":
			if err := keys.add(0, "queue"); err != nil {
				return err
			}
			e.Queue, err = s.requiredName("queue", index)
		case "partition":
			if err := keys.add(1, "partition"); err != nil {
				return err
			}
			e.Partition, err = s.lane(index)
		case "offset":
			if err := keys.add(2, "offset"); err != nil {
				return err
			}
			e.Offset, err = s.whole("offset")
			if err == nil && e.Offset < 0 {
				err = bad("offset of entry %d must not be negative", index)
			}
		case "maxBytes":
			if err := keys.add(3, "maxBytes"); err != nil {
				return err
			}
			e.MaxBytes, err = s.size("maxBytes", defaultFetchBytes)
			e.MaxBytes = min(e.MaxBytes, MaxFetchBytes)
		default:
			_, err = s.skip(3)
		}
		return err
	})
	switch {
	case err != nil:
		return e, err
	case keys&1 == 0:
		return e, bad("queue of entry %d is missing", index)
	case keys&(1<<2) == 0:
		return e, bad("offset of entry %d is missing", index)
	}
	return e, nil
}

// ChangedEntry asks for the partitions of a queue that were written since a time.
type ChangedEntry struct {
	Queue string
	Since time.Time // zero: all
	After string    // cursor of the page before, as sent; "" for the first
	Limit int
}

// ScanChanged reads {"entries":[{queue, since, after, limit}]}. A time is RFC 3339 or milliseconds since 1970.
func ScanChanged(body []byte) ([]ChangedEntry, error) {
	s := scanner{b: body}
	var entries []ChangedEntry
	var keys seen
	err := s.object(func(key []byte) error {
		if string(key) != "entries" {
			_, err := s.skip(1)
			return err
		}
		if err := keys.add(0, "entries"); err != nil {
			return err
		}
		return s.array(func(i int) error {
			if i == MaxChangedEntries {
				return bad("more than %d entries", MaxChangedEntries)
			}
			e, err := s.changedEntry(i)
			entries = append(entries, e)
			return err
		})
	})
	if err == nil && keys&1 == 0 {
		err = bad("entries is missing")
	}
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	return entries, nil
}

func (s *scanner) changedEntry(index int) (ChangedEntry, error) {
	e := ChangedEntry{Limit: MaxChangedLimit}
	if err := s.wantObject("entry", index); err != nil {
		return e, err
	}
	var keys seen
	err := s.object(func(key []byte) (err error) {
		switch string(key) {
		case "queue":
			if err := keys.add(0, "queue"); err != nil {
				return err
			}
			e.Queue, err = s.requiredName("queue", index)
		case "since":
			if err := keys.add(1, "since"); err != nil {
				return err
			}
			e.Since, err = s.since("since")
		case "after":
			if err := keys.add(2, "after"); err != nil {
				return err
			}
			e.After, _, err = s.optionalText("after")
		case "limit":
			if err := keys.add(3, "limit"); err != nil {
				return err
			}
			var n int64
			n, err = s.size("limit", MaxChangedLimit)
			if err == nil && (n < 1 || n > MaxChangedLimit) {
				err = bad("limit of entry %d must be 1…%d", index, MaxChangedLimit)
			}
			e.Limit = int(min(n, MaxChangedLimit))
		default:
			_, err = s.skip(3)
		}
		return err
	})
	if err == nil && keys&1 == 0 {
		err = bad("queue of entry %d is missing", index)
	}
	return e, err
}

// requiredName consumes a name that must be a string.
func (s *scanner) requiredName(what string, index int) (string, error) {
	if k, err := s.peek(); err != nil {
		return "", err
	} else if k != kindString {
		return "", bad("%s of entry %d must be a string", what, index)
	}
	return s.name(what, "")
}

// lane consumes a partition: a name, a whole number, or null.
func (s *scanner) lane(index int) (string, error) {
	switch k, err := s.peek(); {
	case err != nil:
		return "", err
	case k == kindNull:
		return DefaultPartition, s.literal("null")
	case k == kindNumber:
		n, err := s.whole("partition")
		return strconv.FormatInt(n, 10), err
	case k != kindString:
		return "", bad("partition of entry %d must be a string or a whole number", index)
	}
	name, err := s.name("partition", "")
	if name == "" {
		name = DefaultPartition
	}
	return name, err
}

// whole consumes a whole number.
func (s *scanner) whole(what string) (int64, error) {
	if k, err := s.peek(); err != nil {
		return 0, err
	} else if k != kindNumber {
		return 0, bad("%s must be a whole number", what)
	}
	start := s.i
	if err := s.number(); err != nil {
		return 0, err
	}
	text := string(s.b[start:s.i])
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, bad("%s must be a whole number", what)
	}
	return int64(f), nil
}

// size consumes a whole number that is not negative; null means def.
func (s *scanner) size(what string, def int64) (int64, error) {
	if k, err := s.peek(); err != nil {
		return 0, err
	} else if k == kindNull {
		return def, s.literal("null")
	}
	n, err := s.whole(what)
	if err == nil && n < 0 {
		return 0, bad("%s must not be negative", what)
	}
	return n, err
}

// since consumes a time, as text or in milliseconds; null is the zero time.
func (s *scanner) since(what string) (time.Time, error) {
	k, err := s.peek()
	if err != nil {
		return time.Time{}, err
	}
	switch k {
	case kindNull:
		return time.Time{}, s.literal("null")
	case kindNumber:
		ms, err := s.size(what, 0)
		if err == nil && ms > maxMillis {
			return time.Time{}, bad("%s is too far in the future", what)
		}
		return time.UnixMilli(ms).UTC(), err
	case kindString:
		text, err := s.text()
		if err != nil {
			return time.Time{}, err
		}
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return time.Time{}, bad("%s must be a time like 2026-09-01T10:11:12Z", what)
		}
		return at.UTC(), nil
	}
	return time.Time{}, bad("%s must be a time", what)
}

// maxMillis is the end of the year 9999.
const maxMillis = 253402300799999

// Errors of an entry, in an answer that is 200 as a whole.
const (
	UnknownTopicOrPartition = "UNKNOWN_TOPIC_OR_PARTITION" // the queue does not exist
	OffsetOutOfRange        = "OFFSET_OUT_OF_RANGE"        // before the log's start or behind its end
	KeyMissing              = "ENCRYPTION_KEY_MISSING"     // the message at the offset is encrypted with a key the broker lacks
	CorruptMessage          = "CORRUPT_MESSAGE"            // the message at the offset is not what was stored
	BadCursor               = "BAD_CURSOR"
)

// Record is a message read by its offset.
type Record struct {
	Offset        int64
	TransactionID string
	Payload       []byte // raw JSON; aliases the segment
	At            time.Time
}

// FetchResult answers one entry.
type FetchResult struct {
	Queue, Partition string
	Records          []Record
	HighWatermark    int64 // the offset the next message will have
	LogStart         int64 // the lowest offset that is retained
	Error            string
}

// AppendFetchAnswer appends the body of an answer to /fetch.
func AppendFetchAnswer(dst []byte, rs []FetchResult) []byte {
	dst = append(dst, `{"entries":[`...)
	for i := range rs {
		r := &rs[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"queue":`...)
		dst = AppendString(dst, r.Queue)
		dst = append(dst, `,"partition":`...)
		dst = AppendString(dst, r.Partition)
		dst = append(dst, `,"records":[`...)
		for j := range r.Records {
			m := &r.Records[j]
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"offset":`...)
			dst = strconv.AppendInt(dst, m.Offset, 10)
			dst = append(dst, `,"transactionId":`...)
			dst = AppendString(dst, m.TransactionID)
			dst = append(dst, `,"payload":`...)
			dst = append(dst, m.Payload...)
			dst = append(dst, `,"ts":`...)
			dst = AppendString(dst, FormatMillis(m.At))
			dst = append(dst, '}')
		}
		dst = append(dst, `],"highWatermark":`...)
		dst = strconv.AppendInt(dst, r.HighWatermark, 10)
		dst = append(dst, `,"logStartOffset":`...)
		dst = strconv.AppendInt(dst, r.LogStart, 10)
		if r.Error != "" {
			dst = append(dst, `,"error":`...)
			dst = AppendString(dst, r.Error)
		}
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// ChangedPartition is a partition that was written.
type ChangedPartition struct {
	Name        string
	LastOffset  int64
	LogStart    int64
	LastWriteAt time.Time
}

// ChangedResult answers one entry.
type ChangedResult struct {
	Queue      string
	Partitions []ChangedPartition
	Next       string // cursor of the next page, "" when this is the last
	Error      string
}

// ChangedAnswer is the answer to /partitions/changed.
type ChangedAnswer struct {
	SafeTime time.Time // everything that was committed before it is in the answer
	Degraded bool      // it lags, since something has been writing for long, or it is a guess
	Entries  []ChangedResult
}

// AppendChangedAnswer appends the body of an answer to /partitions/changed.
func AppendChangedAnswer(dst []byte, a *ChangedAnswer) []byte {
	dst = append(dst, `{"safeTime":`...)
	dst = AppendMicros(dst, a.SafeTime)
	dst = append(dst, `,"safeTimeDegraded":`...)
	dst = strconv.AppendBool(dst, a.Degraded)
	dst = append(dst, `,"entries":[`...)
	for i := range a.Entries {
		r := &a.Entries[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"queue":`...)
		dst = AppendString(dst, r.Queue)
		if r.Error != "" {
			dst = append(dst, `,"error":`...)
			dst = AppendString(dst, r.Error)
			dst = append(dst, '}')
			continue
		}
		dst = append(dst, `,"partitions":[`...)
		for j := range r.Partitions {
			p := &r.Partitions[j]
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"name":`...)
			dst = AppendString(dst, p.Name)
			dst = append(dst, `,"lastOffset":`...)
			dst = strconv.AppendInt(dst, p.LastOffset, 10)
			dst = append(dst, `,"logStart":`...)
			dst = strconv.AppendInt(dst, p.LogStart, 10)
			dst = append(dst, `,"lastWriteAt":`...)
			dst = AppendMicros(dst, p.LastWriteAt)
			dst = append(dst, '}')
		}
		dst = append(dst, `],"next":`...)
		dst = appendNullable(dst, r.Next)
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}
