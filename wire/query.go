package wire

import (
	"bytes"
	"strconv"
	"time"
	"unicode/utf8"
)

// Defaults of a pop (spec/broker-http.md 2.2).
const (
	DefaultBatch   = 200
	DefaultTimeout = 30 * time.Second
)

// ParsePopQuery parses the raw query string of a pop once; every failure is InvalidRequest. Unknown keys are ignored,
// a known key given twice is refused, booleans are true or false and nothing else.
func ParsePopQuery(query []byte) (PopQuery, error) {
	q := PopQuery{Batch: DefaultBatch, Partitions: 1, Timeout: DefaultTimeout, Group: QueueModeGroup}
	var keys seen
	for len(query) > 0 {
		var pair []byte
		pair, query, _ = bytes.Cut(query, []byte{'&'})
		if len(pair) == 0 {
			continue
		}
		rawKey, rawValue, _ := bytes.Cut(pair, []byte{'='})
		key, ok := decodeQuery(rawKey)
		if !ok {
			return q, Errorf(InvalidRequest, "the query has an invalid escape")
		}
		bit := popKey(key)
		if bit < 0 {
			continue
		}
		value, ok := decodeQuery(rawValue)
		if !ok || !utf8.ValidString(value) {
			return q, Errorf(InvalidRequest, "the query has an invalid escape in %s", key)
		}
		if keys&(1<<bit) != 0 {
			return q, Errorf(InvalidRequest, "the query has %s twice", key)
		}
		keys |= 1 << bit
		if err := q.set(key, value); err != nil {
			return q, err
		}
	}
	return q, nil
}

func popKey(key string) int {
	switch key {
	case "batch":
		return 0
	case "partitions":
		return 1
	case "autoAck":
		return 2
	case "wait":
		return 3
	case "timeout":
		return 4
	case "leaseSeconds":
		return 5
	case "consumerGroup":
		return 6
	case "subscriptionMode":
		return 7
	case "subscriptionFrom":
		return 8
	case "conflation":
		return 9
	}
	return -1
}

func (q *PopQuery) set(key, value string) (err error) {
	switch key {
	case "batch":
		q.Batch, err = queryInt(key, value)
		q.Batch = max(q.Batch, 1)
	case "partitions":
		q.Partitions, err = queryInt(key, value)
		q.Partitions = max(q.Partitions, 0)
	case "leaseSeconds":
		q.LeaseSeconds, err = queryInt(key, value)
		q.LeaseSeconds = max(q.LeaseSeconds, 0)
	case "timeout":
		var ms int
		if ms, err = queryInt(key, value); err == nil && ms < 0 {
			err = Errorf(InvalidRequest, "the wait in the query must not be negative")
		}
		q.Timeout, q.TimeoutGiven = time.Duration(ms)*time.Millisecond, true
	case "autoAck":
		q.AutoAck, err = queryBool(key, value)
	case "wait":
		q.Wait, err = queryBool(key, value)
	case "conflation":
		// An SDK that asked for conflation stops when it is not echoed; say so at once instead.
		var on bool
		if on, err = queryBool(key, value); err == nil && on {
			err = Errorf(InvalidRequest, "conflation is not served")
		}
	case "consumerGroup":
		if value != "" {
			q.Group = value
		}
		if value == "." || value == ".." {
			err = Errorf(InvalidRequest, "consumerGroup must not be %q", value)
		} else if len(value) > MaxNameBytes {
			err = Errorf(InvalidRequest, "consumerGroup is longer than %d bytes", MaxNameBytes)
		} else if hasControl(value) {
			err = Errorf(InvalidRequest, "control characters are not allowed in consumerGroup")
		}
	case "subscriptionMode":
		q.SubscriptionMode = value
	case "subscriptionFrom":
		q.SubscriptionFrom = value
	}
	return err
}

func queryInt(key, value string) (int, error) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		if key == "timeout" { // the word itself must not stand in a 4xx
			key = "the wait in the query"
		}
		return 0, Errorf(InvalidRequest, "%s must be a whole number", key)
	}
	return int(n), nil
}

func queryBool(key, value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, Errorf(InvalidRequest, "%s must be true or false", key)
}

// decodeQuery undoes percent escapes and '+' once.
func decodeQuery(b []byte) (string, bool) {
	if bytes.IndexByte(b, '+') >= 0 {
		b = bytes.ReplaceAll(b, []byte{'+'}, []byte{' '})
	}
	return decodeSegment(b)
}

// AppendQuery appends the canonical query of q, without the question mark: what a gateway sends upstream. It reads
// back through ParsePopQuery as q itself.
func (q PopQuery) AppendQuery(dst []byte) []byte {
	dst = append(dst, "batch="...)
	dst = strconv.AppendInt(dst, int64(q.Batch), 10)
	dst = append(dst, "&partitions="...)
	dst = strconv.AppendInt(dst, int64(q.Partitions), 10)
	if q.AutoAck {
		dst = append(dst, "&autoAck=true"...)
	}
	if q.Wait {
		dst = append(dst, "&wait=true"...)
	}
	if q.TimeoutGiven {
		dst = append(dst, "&timeout="...)
		dst = strconv.AppendInt(dst, q.Timeout.Milliseconds(), 10)
	}
	if q.LeaseSeconds > 0 {
		dst = append(dst, "&leaseSeconds="...)
		dst = strconv.AppendInt(dst, int64(q.LeaseSeconds), 10)
	}
	if q.Group != QueueModeGroup {
		dst = appendParam(dst, "&consumerGroup=", q.Group)
	}
	dst = appendParam(dst, "&subscriptionMode=", q.SubscriptionMode)
	return appendParam(dst, "&subscriptionFrom=", q.SubscriptionFrom)
}

func appendParam(dst []byte, key, value string) []byte {
	if value == "" {
		return dst
	}
	return appendEscaped(append(dst, key...), value)
}
