package wire

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[from:i]...)
			dst = append(dst, "\uFFFD"...)
			from = i + 1
		}
		i += n
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// appendNullable appends s, or null when it is empty.
func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, s)
}

// AppendUUID appends id in canonical lower-case form, quoted.
func AppendUUID(dst []byte, id uuid.UUID) []byte {
	dst = append(dst, '"')
	for i, b := range id {
		switch i {
		case 4, 6, 8, 10:
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[b>>4], hexDigits[b&15])
	}
	return append(dst, '"')
}

// Layouts of timestamps: always UTC with a literal Z, because published SDKs drop what RFC 3339 in Go refuses.
const (
	microLayout = "2006-01-02T15:04:05.000000Z"
	milliLayout = "2006-01-02T15:04:05.000Z"
)

// AppendMicros appends t quoted with microseconds: popped messages.
func AppendMicros(dst []byte, t time.Time) []byte {
	dst = append(dst, '"')
	dst = t.UTC().AppendFormat(dst, microLayout)
	return append(dst, '"')
}

// FormatMillis renders t with milliseconds: every other surface.
func FormatMillis(t time.Time) string { return t.UTC().Format(milliLayout) }

// AppendPushResults appends the bare array of a push answer, one object per item in the order of rs.
func AppendPushResults(dst []byte, rs []PushResult) []byte {
	dst = append(dst, '[')
	for i := range rs {
		r := &rs[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(r.Index), 10)
		dst = append(dst, `,"message_id":`...)
		dst = AppendUUID(dst, r.MessageID)
		dst = append(dst, `,"transaction_id":`...)
		dst = AppendString(dst, r.TransactionID)
		dst = append(dst, `,"queueName":`...)
		dst = AppendString(dst, r.Queue)
		dst = append(dst, `,"status":`...)
		dst = AppendString(dst, string(r.Status))
		if r.Offset >= 0 {
			dst = append(dst, `,"offset":`...)
			dst = strconv.AppendInt(dst, r.Offset, 10)
		}
		if r.Error != "" {
			dst = append(dst, `,"error":`...)
			dst = AppendString(dst, r.Error)
		}
		dst = append(appendOutcome(dst, r.Outcome), '}')
	}
	return append(dst, ']')
}

// appendOutcome appends what may have become of an item that failed.
func appendOutcome(dst []byte, o Outcome) []byte {
	if o == "" {
		return dst
	}
	return AppendString(append(dst, `,"outcome":`...), string(o))
}

// AppendPopAnswer appends the body of a non-empty pop.
func AppendPopAnswer(dst []byte, a *PopAnswer) []byte {
	dst = append(dst, `{"success":true,"queue":`...)
	dst = AppendString(dst, a.Queue)
	dst = append(dst, `,"partition":`...)
	dst = AppendString(dst, a.Partition)
	dst = append(dst, `,"partitionId":`...)
	dst = AppendUUID(dst, a.PartitionID)
	dst = append(dst, `,"leaseId":`...)
	dst = AppendString(dst, a.LeaseID)
	dst = append(dst, `,"consumerGroup":`...)
	dst = AppendString(dst, a.Group)
	dst = append(dst, `,"partitionsClaimed":`...)
	dst = strconv.AppendInt(dst, int64(a.PartitionsClaimed), 10)
	dst = append(dst, `,"messages":[`...)
	for i := range a.Messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendMessage(dst, a, &a.Messages[i])
	}
	dst = append(dst, ']')
	dst = appendConflation(dst, a.Conflation, a.Conflict)
	if p := a.Autopilot; p != nil {
		dst = append(dst, `,"autopilot":{"partitions":`...)
		dst = strconv.AppendInt(dst, int64(p.Partitions), 10)
		dst = append(dst, `,"batch":`...)
		dst = strconv.AppendInt(dst, int64(p.Batch), 10)
		dst = append(dst, `,"waitMs":`...)
		dst = strconv.AppendInt(dst, p.Wait.Milliseconds(), 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

func appendConflation(dst []byte, on, conflict bool) []byte {
	if on {
		dst = append(dst, `,"conflation":true`...)
	}
	if conflict {
		dst = append(dst, `,"conflationConflict":true`...)
	}
	return dst
}

// AppendEmptyPop appends the body of an answer without messages to a pop that asked for conflation: its caller stops
// when the word is not echoed. Every other empty pop is a 204 without a body.
func AppendEmptyPop(dst []byte, group string, conflict, paused bool) []byte {
	dst = append(dst, `{"success":true,"queue":"","partition":"","partitionId":"","leaseId":"","consumerGroup":`...)
	dst = AppendString(dst, group)
	dst = append(dst, `,"partitionsClaimed":0,"messages":[]`...)
	if paused {
		dst = append(dst, `,"paused":true`...)
	}
	return append(appendConflation(dst, true, conflict), '}')
}

func appendMessage(dst []byte, a *PopAnswer, m *Message) []byte {
	dst = append(dst, `{"id":`...)
	dst = AppendUUID(dst, m.ID)
	dst = append(dst, `,"transactionId":`...)
	dst = AppendString(dst, m.TransactionID)
	dst = append(dst, `,"traceId":`...)
	dst = appendNullable(dst, m.TraceID)
	dst = append(dst, `,"data":`...)
	dst = append(dst, m.Data...)
	dst = append(dst, `,"producerSub":`...)
	dst = appendNullable(dst, m.ProducerSub)
	dst = append(dst, `,"createdAt":`...)
	dst = AppendMicros(dst, m.CreatedAt)
	dst = append(dst, `,"partitionId":`...)
	dst = AppendUUID(dst, m.PartitionID)
	dst = append(dst, `,"partition":`...)
	dst = AppendString(dst, m.Partition)
	dst = append(dst, `,"queue":`...)
	dst = AppendString(dst, m.Queue)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, m.Offset, 10)
	dst = append(dst, `,"leaseId":`...)
	dst = AppendString(dst, a.LeaseID)
	dst = append(dst, `,"leaseExpiresAt":`...)
	if a.LeaseExpiresAt.IsZero() {
		dst = append(dst, "null"...)
	} else {
		dst = AppendMicros(dst, a.LeaseExpiresAt)
	}
	dst = append(dst, `,"consumerGroup":`...)
	dst = AppendString(dst, a.Group)
	dst = append(dst, `,"deliveryAttempt":`...)
	dst = strconv.AppendInt(dst, int64(max(m.DeliveryAttempt, 1)), 10)
	return append(dst, '}')
}

// AppendAckResults appends the bare array of an ack answer, with all seven base keys in each item: one published SDK
// decodes strictly.
func AppendAckResults(dst []byte, rs []AckResult) []byte {
	dst = append(dst, '[')
	for i := range rs {
		r := &rs[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(r.Index), 10)
		dst = append(dst, `,"transactionId":`...)
		dst = AppendString(dst, r.TransactionID)
		dst = append(dst, `,"success":`...)
		dst = strconv.AppendBool(dst, r.Success)
		dst = append(dst, `,"error":`...)
		dst = appendNullable(dst, r.Error)
		dst = append(dst, `,"leaseReleased":`...)
		dst = strconv.AppendBool(dst, r.LeaseReleased)
		dst = append(dst, `,"dlq":`...)
		dst = strconv.AppendBool(dst, r.DLQ)
		dst = append(dst, `,"noop":`...)
		dst = strconv.AppendBool(dst, r.Noop)
		if r.Conflated > 0 {
			dst = append(dst, `,"conflated":`...)
			dst = strconv.AppendInt(dst, r.Conflated, 10)
		}
		dst = append(appendOutcome(dst, r.Outcome), '}')
	}
	return append(dst, ']')
}

// AppendExtendResult appends the answer to a lease extension. Three keys carry the one expiry: each SDK generation
// reads another.
func AppendExtendResult(dst []byte, r ExtendResult) []byte {
	dst = append(dst, `{"leaseId":`...)
	dst = AppendString(dst, r.LeaseID)
	dst = append(dst, `,"success":`...)
	dst = strconv.AppendBool(dst, r.Renewed > 0)
	dst = append(dst, `,"renewed":`...)
	dst = strconv.AppendInt(dst, int64(r.Renewed), 10)
	for _, key := range [...]string{`,"newExpiresAt":`, `,"expiresAt":`, `,"lease_expires_at":`} {
		dst = append(dst, key...)
		dst = appendNullable(dst, r.ExpiresAt)
	}
	return append(dst, '}')
}

// AppendOptions appends the options object of a queue with all its keys.
func AppendOptions(dst []byte, o QueueOptions) []byte {
	dst = append(dst, '{')
	for i := range options {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, options[i].name)
		dst = append(dst, ':')
		switch {
		case options[i].num != nil:
			dst = strconv.AppendInt(dst, int64(*options[i].num(&o)), 10)
		case options[i].str != nil:
			dst = AppendString(dst, *options[i].str(&o))
		default:
			dst = strconv.AppendBool(dst, *options[i].flag(&o))
		}
	}
	return append(dst, '}')
}
