package tracing

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// maxLinks bounds the links of one span.
const maxLinks = 32

// Trip is one round trip to the database that several requests share. Each of them that is sampled gets a span of it
// below its own, so that every trace is whole; the spans link to the requests that shared the trip. The zero Trip is
// ready for use, and used again after End. Not safe for concurrent use.
type Trip struct {
	riders []Span
	seen   map[Span]struct{} // riders, once they are many
}

// compareAll is up to how many riders a look through all of them is cheaper than a map.
const compareAll = 8

// Board adds a request; one that is not sampled, or that is there already, adds nothing.
func (t *Trip) Board(s Span) {
	if !s.Sampled() {
		return
	}
	if len(t.riders) <= compareAll {
		if !slices.Contains(t.riders, s) {
			t.riders = append(t.riders, s)
		}
		return
	}
	if len(t.seen) == 0 {
		t.seen = make(map[Span]struct{}, 4*compareAll)
		for _, r := range t.riders {
			t.seen[r] = struct{}{}
		}
	}
	if _, there := t.seen[s]; !there {
		t.seen[s] = struct{}{}
		t.riders = append(t.riders, s)
	}
}

// Empty reports that no request on board is sampled: then End does nothing, and what the trip carries need not be counted.
func (t *Trip) Empty() bool { return len(t.riders) == 0 }

// Drop empties the trip without a trace: for one that broke.
func (t *Trip) Drop() {
	clear(t.riders)
	clear(t.seen)
	t.riders = t.riders[:0]
}

// Cargo is what a round trip carried.
type Cargo struct {
	Requests int // calls of requests, sampled or not
	Items    int // what they consist of: messages, acknowledgements; of a claim the partitions it looks at
	Lanes    int // partitions of a push; 0 is not told
}

// End makes the spans of a trip called name that began at began and ends now, and empties it. failed is "" for one that
// went well, else a reason that is no secret. Without riders it does nothing.
func (t *Trip) End(name string, began time.Time, c Cargo, failed string) {
	if len(t.riders) == 0 {
		return
	}
	for i, r := range t.riders {
		r.ChildAt(name, Client, began, t.links(i)).EndTrip(c, failed)
	}
	t.Drop()
}

// EndTrip ends the span of a round trip to the database: of one that a request makes alone, or of its part in one.
func (s Span) EndTrip(c Cargo, failed string) {
	if !s.Sampled() {
		return
	}
	s.Set(attribute.String("db.system.name", "postgresql"),
		attribute.Int("queengate.fused.requests", c.Requests), attribute.Int("queengate.fused.items", c.Items))
	if c.Lanes > 0 {
		s.Set(attribute.Int("queengate.fused.partitions", c.Lanes))
	}
	if failed != "" {
		s.Fail(failed)
	}
	s.End()
}

// links are to those who share the trip with rider i: the next ones, so that every request is linked to.
func (t *Trip) links(i int) []trace.Link {
	n := min(len(t.riders)-1, maxLinks)
	links := make([]trace.Link, 0, n)
	for k := 1; k <= n; k++ {
		links = append(links, trace.Link{SpanContext: t.riders[(i+k)%len(t.riders)].s.SpanContext()})
	}
	return links
}
