package broker

import (
	"time"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

const (
	// maxSpan bounds what one question about the past reads.
	maxSpan     = 400 * 24 * time.Hour
	defaultSpan = time.Hour
)

// bucketWidth is how wide the buckets of a span are, so that no answer has more than a few hundred of them
// (spec/broker-http.md 3.6).
func bucketWidth(span time.Duration) time.Duration {
	switch {
	case span <= time.Hour:
		return time.Minute
	case span <= 6*time.Hour:
		return 5 * time.Minute
	case span <= 24*time.Hour:
		return 15 * time.Minute
	case span <= 7*24*time.Hour:
		return time.Hour
	}
	return 6 * time.Hour
}

// spanOf reads from and to; without them it is the last so long. The bucket that to lies in belongs to the span.
func spanOf(args *wire.Args, now time.Time, last time.Duration) (store.Span, error) {
	s := store.Span{To: args.Time("to", now)}
	s.From = args.Time("from", s.To.Add(-last))
	if err := args.Err(); err != nil {
		return s, err
	}
	d := s.To.Sub(s.From)
	if d < 0 {
		return s, wire.Errorf(wire.InvalidRequest, "from must not be later than to")
	}
	if d > maxSpan {
		return s, wire.Errorf(wire.InvalidRequest, "from and to lie more than %d days apart", int(maxSpan.Hours()/24))
	}
	s.Width = bucketWidth(d)
	s.From = s.From.Truncate(time.Minute)
	return s, nil
}

// timeRange echoes a span.
type timeRange struct {
	From millis `json:"from"`
	To   millis `json:"to"`
}

func rangeOf(s store.Span) timeRange { return timeRange{millis(s.From), millis(s.To)} }

func minutesOf(d time.Duration) int { return int(d.Minutes()) }

// covered is how many seconds of a bucket that begins at at lie within the span and in the past: what a rate is by.
func covered(s store.Span, at, now time.Time) float64 {
	from, to := at, at.Add(s.Width)
	if from.Before(s.From) {
		from = s.From
	}
	if end := minTime(s.To, now); to.After(end) {
		to = end
	}
	return max(to.Sub(from).Seconds(), 1)
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
