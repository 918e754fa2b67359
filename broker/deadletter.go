package broker

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

const (
	defaultLetters = 100
	maxPage        = 1000     // rows of a page of messages or dead letters
	maxSkip        = 100_000  // rows that a page may lie behind; deeper ones are reached by cursor
	maxPageBytes   = 16 << 20 // of payloads in a page, which then ends early
)

// listDeadLetters answers with a page of dead letters, the one that failed last first. nextCursor goes on where the page
// ends without reading what came before; the last page has none.
func (b *Broker) listDeadLetters(x *exchange) error {
	q := wire.ParseArgs(x.ctx.URI().QueryString(), "queue", "consumerGroup", "partition", "from", "to", "limit", "offset", "cursor")
	f := letterFilter(q)
	limit, skip := q.Int("limit", defaultLetters, 1, maxPage), q.Int("offset", 0, 0, maxSkip)
	if err := q.Err(); err != nil {
		return err
	}
	after, err := parseLetterCursor(q.Text("cursor"))
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	page, more, err := b.db.Letters(ctx, x.who.tenant, f, after, limit, skip, maxPageBytes)
	if err != nil {
		return err
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"messages":[`...)
		for i := range page {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = b.appendLetter(dst, &x.who, &page[i])
		}
		dst = appendInt(dst, `],"pagination":{"limit":`, int64(limit))
		dst = appendInt(dst, `,"offset":`, int64(skip))
		dst = appendInt(dst, `},"total":`, int64(len(page)))
		dst = append(dst, `,"nextCursor":`...)
		if !more {
			return append(dst, `null}`...)
		}
		last := &page[len(page)-1]
		return append(wire.AppendString(dst, letterCursor(store.LetterKey{FailedAt: last.FailedAt, ID: last.ID})), '}')
	})
	return nil
}

// letterFilter reads what chooses dead letters, for a listing and for a purge alike.
func letterFilter(q *wire.Args) store.LetterFilter {
	return store.LetterFilter{
		Queue: q.Name("queue"), Group: q.Name("consumerGroup"), Partition: q.Name("partition"),
		From: q.Time("from", time.Time{}), Before: throughMinute(q.Time("to", time.Time{})),
	}
}

func (b *Broker) appendLetter(dst []byte, who *identity, l *store.Letter) []byte {
	shown := b.showLetter(who.tenant, l, who.blind)
	dst = append(dst, `{"id":`...)
	dst = wire.AppendUUID(dst, l.ID)
	dst = append(dst, `,"transactionId":`...)
	dst = appendOptional(dst, l.TransactionID)
	dst = append(dst, `,"partitionId":`...)
	dst = wire.AppendUUID(dst, l.PartitionUID)
	dst = append(dst, `,"queue":`...)
	dst = wire.AppendString(dst, l.Queue)
	dst = append(dst, `,"partition":`...)
	dst = wire.AppendString(dst, l.Partition)
	dst = append(dst, `,"consumerGroup":`...)
	dst = wire.AppendString(dst, l.Group)
	dst = append(dst, `,"errorMessage":`...)
	dst = wire.AppendString(dst, l.Error)
	dst = appendInt(dst, `,"retryCount":`, int64(l.RetryCount))
	dst = append(dst, `,"data":`...)
	dst = appendJSON(dst, shown.payload)
	dst = shown.append(dst)
	dst = append(dst, `,"producerSub":null,"messageId":`...)
	if l.MessageID == uuid.Nil {
		dst = append(dst, "null"...)
	} else {
		dst = wire.AppendUUID(dst, l.MessageID)
	}
	dst = appendInt(dst, `,"offset":`, l.Offset)
	dst = append(dst, `,"messageCreatedAt":`...)
	dst = appendTime(dst, l.CreatedAt)
	// createdAt is that of the letter: what clients of the older broker sort by.
	dst = append(dst, `,"createdAt":`...)
	dst = appendTime(dst, l.FailedAt)
	dst = append(dst, `,"failedAt":`...)
	dst = appendTime(dst, l.FailedAt)
	return append(dst, '}')
}

// appendJSON appends a payload as it was sent, or null when it is gone.
func appendJSON(dst, payload []byte) []byte {
	if payload == nil {
		return append(dst, "null"...)
	}
	return append(dst, payload...)
}

// throughMinute makes a bound that includes its minute exclusive; the zero time stays.
func throughMinute(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Truncate(time.Minute).Add(time.Minute)
}

// purgeStep is how many letters a purge deletes in one commit, purgeTime how long one request goes on.
const (
	purgeStep = 1000
	purgeTime = 15 * time.Second
)

// purgeDeadLetters deletes dead letters of a queue in bounded commits: those that a listing with the same group, partition
// and times shows, the one that failed last first, and no more than limit of them. A parameter that a purge does not
// take is refused. more says that it gave up for the time being; asking again goes on, with a limit lowered by deleted.
func (b *Broker) purgeDeadLetters(x *exchange) error {
	q := wire.ParseExactArgs(x.ctx.URI().QueryString(), "queue", "consumerGroup", "partition", "from", "to", "limit")
	f := letterFilter(q)
	limit := int64(q.Int("limit", math.MaxInt, 1, wire.MaxRedriveLimit))
	if err := q.Err(); err != nil {
		return err
	}
	if f.Queue == "" {
		return wire.Errorf(wire.InvalidRequest, "queue is required")
	}
	var deleted int64
	more := true
	for more && time.Since(x.begin) < purgeTime {
		ctx, cancel := b.database()
		n, err := b.db.PurgeLetters(ctx, x.who.tenant, f, int(min(purgeStep, limit-deleted)))
		cancel()
		if err != nil {
			return err
		}
		deleted += n
		more = n > 0 && deleted < limit
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = appendInt(dst, `{"success":true,"deleted":`, deleted)
		dst = append(dst, `,"queue":`...)
		dst = wire.AppendString(dst, f.Queue)
		dst = append(dst, `,"consumerGroup":`...)
		dst = appendOptional(dst, f.Group)
		dst = append(dst, `,"partition":`...)
		dst = appendOptional(dst, f.Partition)
		return append(appendBool(append(dst, `,"more":`...), more), '}')
	})
	return nil
}

// deleteMessage deletes the dead letters of a message, of all groups unless the query names one. A message in the log
// cannot be deleted.
func (b *Broker) deleteMessage(x *exchange) error {
	q := wire.ParseArgs(x.ctx.URI().QueryString(), "consumerGroup")
	group := q.Name("consumerGroup")
	if err := q.Err(); err != nil {
		return err
	}
	at, err := x.address()
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	n, err := b.db.DeleteLettersAt(ctx, x.who.tenant, at.partition, at.transactionID, group)
	if err != nil {
		return err
	}
	if n == 0 {
		return x.messageMissing("Message not found")
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"success":true,"partitionId":`...)
		dst = wire.AppendUUID(dst, at.partition)
		dst = append(dst, `,"transactionId":`...)
		dst = wire.AppendString(dst, at.transactionID)
		dst = appendInt(dst, `,"deleted":`, n)
		return append(dst, `,"message":"Message deleted successfully"}`...)
	})
	return nil
}

// reasonByHand is the error of a letter that was filed by an operator who gave none.
const reasonByHand = "Dead-lettered by request"

// deadLetterMessage files the next message of a group as a dead letter and moves the cursor past it: the way to get rid
// of a message that blocks its partition. A message further on cannot be taken out of order, and one that is leased
// belongs to its worker.
func (b *Broker) deadLetterMessage(x *exchange) error {
	req, err := wire.ScanDeadLetter(x.ctx.PostBody())
	if err != nil {
		return err
	}
	at, err := x.address()
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	lane, err := b.db.Lane(ctx, x.who.tenant, at.partition)
	if err != nil {
		return err
	}
	if lane == nil {
		return x.messageMissing("Message not found")
	}
	if req.Group != wire.QueueModeGroup && !slices.ContainsFunc(lane.Cursors, func(c store.BrowseCursor) bool { return c.Group == req.Group }) {
		return x.messageMissing("Consumer group not found on the partition")
	}
	m, err := b.db.Message(ctx, lane, at.transactionID)
	if err != nil {
		return err
	}
	if m == nil {
		return x.messageMissing("Message not found")
	}
	v, err := b.db.DeadLetterHead(ctx, x.who.tenant, m, req.Group, cmp.Or(req.Error, reasonByHand))
	if err != nil {
		return err
	}
	switch v.Outcome {
	case store.HeadNoPartition, store.HeadNoCursor:
		return x.messageMissing("Message not found")
	case store.HeadConsumed:
		return wire.Errorf(wire.InvalidRequest, "the group has consumed the message already")
	case store.HeadLeased:
		return wire.Errorf(wire.InvalidRequest, "the group's next messages are leased until %s; their worker decides", wire.FormatMillis(v.Until))
	case store.HeadBehind:
		return wire.Errorf(wire.InvalidRequest, "the message is at offset %d and the group's next one is %d: only that one can be dead-lettered", m.Offset, v.Head)
	}
	b.released(freed{tenant: x.who.tenant, queue: v.Queue, group: req.Group, partition: v.PartitionID, committed: v.Committed, last: v.LastOffset})
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"success":true,"partitionId":`...)
		dst = wire.AppendUUID(dst, at.partition)
		dst = append(dst, `,"transactionId":`...)
		dst = wire.AppendString(dst, at.transactionID)
		dst = append(dst, `,"consumerGroup":`...)
		dst = wire.AppendString(dst, req.Group)
		dst = append(dst, `,"dlqId":`...)
		dst = wire.AppendUUID(dst, v.ID)
		return append(dst, `,"message":"Message moved to the dead letter queue"}`...)
	})
	return nil
}

// Bounds of an analysis of dead letters: it looks at the newest of them.
const (
	defaultSignatures = 200
	analysedLetters   = 10_000
)

// signature is a kind of failure: errors that differ only in numbers and ids.
type signature struct {
	text        string
	sample      string
	sampleID    uuid.UUID
	count       int64
	groups      []string
	first, last time.Time
}

// deadLetterSignatures groups the newest dead letters of a queue by kind of failure, the most frequent first.
func (b *Broker) deadLetterSignatures(x *exchange) error {
	q := wire.ParseArgs(x.ctx.URI().QueryString(), "queue", "limit")
	queue, limit := q.Name("queue"), q.Int("limit", defaultSignatures, 1, maxPage)
	if err := q.Err(); err != nil {
		return err
	}
	if queue == "" {
		return wire.Errorf(wire.InvalidRequest, "queue required")
	}
	ctx, cancel := b.database()
	defer cancel()
	raw, err := b.db.LetterSignatures(ctx, x.who.tenant, queue, analysedLetters)
	if err != nil {
		return err
	}
	kinds, letters := kindsOf(raw)
	total := len(kinds)
	kinds = kinds[:min(total, limit)]
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
		dst = append(dst, `{"queue":`...)
		dst = wire.AppendString(dst, queue)
		dst = appendInt(dst, `,"letters":`, letters)
		dst = appendInt(dst, `,"total":`, int64(total))
		dst = append(dst, `,"signatures":[`...)
		for i, k := range kinds {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"signature":`...)
			dst = wire.AppendString(dst, k.text)
			dst = appendInt(dst, `,"count":`, k.count)
			dst = append(dst, `,"consumerGroups":[`...)
			for j, g := range k.groups {
				if j > 0 {
					dst = append(dst, ',')
				}
				dst = wire.AppendString(dst, g)
			}
			dst = append(dst, `],"sampleError":`...)
			dst = wire.AppendString(dst, k.sample)
			dst = append(dst, `,"sampleId":`...)
			dst = wire.AppendUUID(dst, k.sampleID)
			dst = append(dst, `,"firstFailedAt":`...)
			dst = appendTime(dst, k.first)
			dst = append(dst, `,"lastFailedAt":`...)
			dst = append(appendTime(dst, k.last), '}')
		}
		return append(dst, `]}`...)
	})
	return nil
}

// kindsOf merges counted errors that differ in details only, and returns how many letters they stand for.
func kindsOf(raw []store.LetterSignature) (kinds []*signature, letters int64) {
	byText := map[string]*signature{}
	for i := range raw {
		r := &raw[i]
		letters += r.Count
		text := signatureOf(r.Error)
		k := byText[text]
		if k == nil {
			k = &signature{text: text, sample: r.Error, sampleID: r.Newest, first: r.First, last: r.Last}
			byText[text] = k
			kinds = append(kinds, k)
		}
		k.count += r.Count
		if r.First.Before(k.first) {
			k.first = r.First
		}
		if r.Last.After(k.last) {
			k.last, k.sample, k.sampleID = r.Last, r.Error, r.Newest
		}
		if !slices.Contains(k.groups, r.Group) {
			k.groups = append(k.groups, r.Group)
		}
	}
	for _, k := range kinds {
		slices.Sort(k.groups)
	}
	slices.SortStableFunc(kinds, func(a, b *signature) int {
		return cmp.Or(cmp.Compare(b.count, a.count), b.last.Compare(a.last), strings.Compare(a.text, b.text))
	})
	return kinds, letters
}

var (
	hexWords = regexp.MustCompile(`\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{16,}\b`)
	numbers  = regexp.MustCompile(`[0-9]+`)
)

// signatureOf replaces what differs between failures of one kind.
func signatureOf(text string) string {
	return numbers.ReplaceAllString(hexWords.ReplaceAllString(text, "<id>"), "<n>")
}
