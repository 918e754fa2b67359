package wire

import (
	"bytes"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// Defaults of a pop (spec/broker-http.md 2.2).
const (
	DefaultBatch   = 200
	DefaultTimeout = 30 * time.Second
)

// The known keys of a pop; the index of a key is its bit in seen.
var popKeys = [...]string{
	"batch", "partitions", "autoAck", "wait", "timeout", "leaseSeconds", "consumerGroup", "subscriptionMode",
	"subscriptionFrom", "conflation", "autopilot", "namespace", "task",
}

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
		bit := slices.Index(popKeys[:], key)
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

func (q *PopQuery) set(key, value string) (err error) {
	switch key {
	case "batch":
		q.Batch, err = queryInt(key, value)
		q.Batch, q.BatchGiven = max(q.Batch, 1), true
	case "partitions":
		q.Partitions, err = queryInt(key, value)
		q.Partitions, q.PartitionsGiven = max(q.Partitions, 0), true
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
		q.Conflation, err = queryBool(key, value)
	case "autopilot":
		q.Autopilot, err = queryBool(key, value)
	case "consumerGroup":
		if value != "" {
			q.Group = value
		}
		err = queryName(key, value)
	case "namespace":
		q.Namespace, err = value, queryName(key, value)
	case "task":
		q.Task, err = value, queryName(key, value)
	case "subscriptionMode":
		q.SubscriptionMode = value
	case "subscriptionFrom":
		q.SubscriptionFrom = value
	}
	return err
}

func queryName(key, value string) error {
	if value == "." || value == ".." {
		return Errorf(InvalidRequest, "%s must not be %q", key, value)
	}
	if len(value) > MaxNameBytes {
		return Errorf(InvalidRequest, "%s is longer than %d bytes", key, MaxNameBytes)
	}
	if hasControl(value) {
		return Errorf(InvalidRequest, "control characters are not allowed in %s", key)
	}
	return nil
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
	return decodeEscapes(b)
}

// AppendQuery appends the canonical query of q, without the question mark: what a gateway sends upstream. It reads
// back through ParsePopQuery as q itself.
func (q PopQuery) AppendQuery(dst []byte) []byte {
	a := paramAppender{dst: dst}
	if q.BatchGiven {
		a.number("batch", int64(q.Batch))
	}
	if q.PartitionsGiven {
		a.number("partitions", int64(q.Partitions))
	}
	a.flag("autoAck", q.AutoAck)
	a.flag("wait", q.Wait)
	if q.TimeoutGiven {
		a.number("timeout", q.Timeout.Milliseconds())
	}
	if q.LeaseSeconds > 0 {
		a.number("leaseSeconds", int64(q.LeaseSeconds))
	}
	if q.Group != QueueModeGroup {
		a.text("consumerGroup", q.Group)
	}
	a.text("subscriptionMode", q.SubscriptionMode)
	a.text("subscriptionFrom", q.SubscriptionFrom)
	a.flag("conflation", q.Conflation)
	a.flag("autopilot", q.Autopilot)
	a.text("namespace", q.Namespace)
	a.text("task", q.Task)
	return a.dst
}

// paramAppender writes the parameters of a query. Texts that are empty and flags that are off are left out.
type paramAppender struct {
	dst  []byte
	some bool
}

func (a *paramAppender) key(key string) {
	if a.some {
		a.dst = append(a.dst, '&')
	}
	a.some = true
	a.dst = append(append(a.dst, key...), '=')
}

func (a *paramAppender) number(key string, n int64) {
	a.key(key)
	a.dst = strconv.AppendInt(a.dst, n, 10)
}

func (a *paramAppender) flag(key string, on bool) {
	if on {
		a.key(key)
		a.dst = append(a.dst, "true"...)
	}
}

func (a *paramAppender) text(key, value string) {
	if value != "" {
		a.key(key)
		a.dst = appendEscaped(a.dst, value)
	}
}
