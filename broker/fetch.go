package broker

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

const (
	// maxFetchRecords bounds the messages of one entry, maxFetchTotal the payload of one answer.
	maxFetchRecords = 10_000
	maxFetchTotal   = 64 << 20
	// fetchPause spaces the looks of a fetch that waits for more than there is, while somebody writes without pause.
	fetchPause = 20 * time.Millisecond
)

// fetch reads messages by offset, without a cursor and without a lease: 200 with one answer per entry. It may wait for
// minBytes; an entry that is in error ends the wait. A parked fetch asks the database nothing.
func (b *Broker) fetch(x *exchange) error {
	req, err := wire.ScanFetch(x.ctx.PostBody())
	if err != nil {
		return err
	}
	f := fetching{b: b, x: x, req: &req}
	defer f.close()
	if err := f.read(); err != nil {
		return err
	}
	if req.Waits() && !f.enough() {
		if err := f.wait(x.begin.Add(req.MaxWait)); err != nil || x.gone {
			return err
		}
	}
	return f.answer()
}

// fetching is one fetch on its way.
type fetching struct {
	b      *Broker
	x      *exchange
	req    *wire.FetchRequest
	ranges []store.Range
	hangup *httpkit.Watch
}

func (f *fetching) close() {
	if f.hangup != nil {
		f.hangup.Stop()
	}
}

func (f *fetching) read() (err error) {
	if len(f.req.Entries) == 0 {
		return nil
	}
	ctx, cancel := f.b.database()
	defer cancel()
	f.ranges, err = f.b.db.FetchRanges(ctx, f.x.who.tenant, f.req.Entries, maxFetchRecords, maxFetchTotal)
	return err
}

// enough reports whether the wait is over: the bytes asked for are there, or an entry is in error.
func (f *fetching) enough() bool {
	var n int64
	for i := range f.ranges {
		if fault(&f.req.Entries[i], &f.ranges[i]) != "" {
			return true
		}
		n += f.ranges[i].Bytes
	}
	return n >= f.req.MinBytes
}

// fault returns what is wrong with an entry, "" when nothing is.
func fault(e *wire.FetchEntry, r *store.Range) string {
	switch {
	case !r.Found:
		return wire.UnknownTopicOrPartition
	case e.Offset < r.LogStart || e.Offset > r.LastOffset+1:
		return wire.OffsetOutOfRange
	}
	return ""
}

func (f *fetching) wait(until time.Time) error {
	interests := make([]park.Interest, len(f.ranges))
	for i := range f.ranges {
		interests[i] = park.Interest{Queue: f.req.Entries[i].Queue, Partition: f.ranges[i].PartitionID}
	}
	w := f.b.park.Watch(f.x.who.tenant, interests)
	defer w.Leave()
	gone := f.gone()
	for {
		// What landed before the watch began is found here, what lands from here on is heard.
		if err := f.read(); err != nil || f.enough() {
			return err
		}
		switch w.Wait(until, gone) {
		case park.Ready:
		case park.Full:
			return &wire.Error{Code: wire.BrokerOverloaded, Detail: "too many polls are waiting", RetryAfter: time.Second}
		case park.Gone:
			f.b.metrics.hangups.Inc()
			f.x.gone = true
			f.x.ctx.SetConnectionClose()
			httpkit.WriteNoContent(f.x.ctx)
			return nil
		default:
			return f.read()
		}
		if f.req.MinBytes > 1 {
			pause := time.NewTimer(fetchPause)
			select {
			case <-pause.C:
			case <-gone:
			}
			pause.Stop()
		}
	}
}

func (f *fetching) gone() <-chan struct{} {
	c, ok := httpkit.Holdback(f.x.ctx.Conn())
	if !ok {
		return nil
	}
	f.hangup = c.Watch()
	return f.hangup.Gone()
}

// answer opens the segments that were found and answers with what fits.
func (f *fetching) answer() error {
	opened, err := f.b.openAll(f.ranges)
	if err != nil {
		return err
	}
	results := make([]wire.FetchResult, len(f.req.Entries))
	total, records := int64(0), 0
	for i := range results {
		e, r, out := &f.req.Entries[i], &f.ranges[i], &results[i]
		*out = wire.FetchResult{Queue: e.Queue, Partition: e.Partition, Error: fault(e, r)}
		if !r.Found {
			continue
		}
		out.HighWatermark, out.LogStart = r.LastOffset+1, r.LogStart
		if out.Error == "" {
			out.Records, out.Error = f.b.cutRecords(f.x.who.tenant, e, r, opened, &total)
			records += len(out.Records)
		}
	}
	f.x.reply(fasthttp.StatusOK, func(dst []byte) []byte { return wire.AppendFetchAnswer(dst, results) })
	f.x.ctx.Response.Header.Set(wire.HeaderDelivered, strconv.Itoa(records))
	return nil
}

// cutRecords takes the messages of an entry until its bytes, its records or the bytes of the whole answer are spent. The
// first one is taken whatever its size, unless the answer is full. It stops before a message that cannot be decrypted;
// when that is the first, fault says so.
func (b *Broker) cutRecords(tenant uuid.UUID, e *wire.FetchEntry, r *store.Range, opened map[segmentKey]*segment.Reader, total *int64) (out []wire.Record, fault string) {
	at := seal.Place{Tenant: tenant, Queue: e.Queue, Partition: r.PartitionID}
	var bytes int64
	for j := range r.Segments {
		s := &r.Segments[j]
		reader := opened[segmentKey{r.Life, r.PartitionID, s.Base}]
		if reader == nil {
			return out, "" // retention was quicker; the next fetch learns where the log begins now
		}
		for offset := max(s.Base, e.Offset); offset <= s.End; offset++ {
			m := reader.Frame(int(offset - s.Base))
			payload, err := b.payload(&at, &m)
			switch {
			case err == nil:
			case len(out) > 0:
				return out, ""
			case wire.AsError(err).Code == wire.EncryptionKeyMissing:
				return nil, wire.KeyMissing
			default:
				return nil, wire.CorruptMessage
			}
			n := int64(len(payload))
			if len(out) == maxFetchRecords || (len(out) > 0 && bytes+n > e.MaxBytes) || (*total > 0 && *total+n > maxFetchTotal) {
				return out, ""
			}
			out = append(out, wire.Record{Offset: offset, TransactionID: m.TransactionID, Payload: payload, At: s.CreatedAt})
			bytes += n
			*total += n
		}
	}
	return out, ""
}

// openAll opens the segments of all ranges, which are of one life of the database: those that are not in the cache after one statement that reads their bytes.
// A segment that retention has removed meanwhile is missing.
func (b *Broker) openAll(ranges []store.Range) (map[segmentKey]*segment.Reader, error) {
	opened := map[segmentKey]*segment.Reader{}
	asked := map[segmentKey]struct{}{}
	var missing []store.SegmentKey
	for i := range ranges {
		for j := range ranges[i].Segments {
			k := segmentKey{ranges[i].Life, ranges[i].PartitionID, ranges[i].Segments[j].Base}
			if _, again := asked[k]; again {
				continue
			}
			asked[k] = struct{}{}
			if r := b.segments.cached(k); r != nil {
				opened[k] = r
			} else {
				missing = append(missing, store.SegmentKey{Partition: k.partition, Base: k.base})
			}
		}
	}
	if len(missing) == 0 {
		return opened, nil
	}
	ctx, cancel := b.database()
	defer cancel()
	blobs, err := b.db.Blobs(ctx, ranges[0].Life, missing)
	if err != nil {
		return nil, err
	}
	for i := range blobs {
		if blobs[i].Blob == nil {
			continue
		}
		r, err := b.segments.open(missing[i].Partition, &blobs[i])
		if err != nil {
			return nil, fmt.Errorf("segment %d of partition %d: %w", missing[i].Base, missing[i].Partition, err)
		}
		if int64(r.Len()) != blobs[i].End-blobs[i].Base+1 {
			return nil, fmt.Errorf("segment %d of partition %d has %d messages, its row says %d",
				missing[i].Base, missing[i].Partition, r.Len(), blobs[i].End-blobs[i].Base+1)
		}
		opened[segmentKey{blobs[i].Life, missing[i].Partition, missing[i].Base}] = r
	}
	return opened, nil
}

// partitionsChanged lists the partitions of queues that were written since a time, and says up to when the lists are
// complete: a reader that asks again since then misses nothing.
func (b *Broker) partitionsChanged(x *exchange) error {
	entries, err := wire.ScanChanged(x.ctx.PostBody())
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	answer := wire.ChangedAnswer{Entries: make([]wire.ChangedResult, len(entries))}
	if answer.SafeTime, answer.Degraded, err = b.db.SafeTime(ctx); err != nil {
		return err
	}
	for i := range entries {
		e, out := &entries[i], &answer.Entries[i]
		out.Queue = e.Queue
		after, ok := parseCursor(e.After)
		if !ok {
			out.Error = wire.BadCursor
			continue
		}
		page, exists, err := b.db.Changed(ctx, x.who.tenant, e.Queue, e.Since, after, e.Limit)
		if err != nil {
			return err
		}
		if !exists {
			out.Error = wire.UnknownTopicOrPartition
			continue
		}
		out.Partitions = page
		if len(page) == e.Limit {
			out.Next = makeCursor(page[len(page)-1].Name)
		}
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte { return wire.AppendChangedAnswer(dst, &answer) })
	return nil
}

// cursorForm is what a cursor begins with: another order of the list would have another one.
const cursorForm = "n1:"

// makeCursor returns the cursor behind a partition. Clients must not look into it.
func makeCursor(name string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorForm + name))
}

func parseCursor(s string) (name string, ok bool) {
	if s == "" {
		return "", true
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) <= len(cursorForm) || string(raw[:len(cursorForm)]) != cursorForm {
		return "", false
	}
	name = string(raw[len(cursorForm):])
	return name, len(name) <= wire.MaxNameBytes && utf8.ValidString(name) && strings.IndexByte(name, 0) < 0
}
