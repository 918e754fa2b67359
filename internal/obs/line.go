package obs

import (
	"context"
	"log/slog"
	"time"

	"github.com/rs/zerolog"
)

// Line is a line of the log in the making: Str, Int and Float64 add to it, in the order of their calls, and Send, the last
// call, writes it. It belongs to one goroutine.
type Line = zerolog.Event

// Beginner is a handler that can write a line without a slog.Record.
type Beginner interface {
	slog.Handler
	// Begin returns a line with the time, the level, the message and what WithAttrs gave to all of them, or nil if
	// the level is not enabled or the line must go through Handle.
	Begin(at time.Time, level slog.Level, msg string) *Line
}

// Begin begins a line that reads like one of log/slog and costs a quarter: for what is told of every request. It is nil if
// log's handler is no Beginner, or has none for this; then log/slog is to be used. A logger of NewLogger has lines if it
// writes JSON to a *Buffer, has no group and was given no attributes but texts.
func Begin(log *slog.Logger, at time.Time, level slog.Level, msg string) *Line {
	if b, ok := log.Handler().(Beginner); ok {
		return b.Begin(at, level, msg)
	}
	return nil
}

// jsonLines is a handler that leaves records to log/slog and has lines of zerolog's. Both go to the same buffer, which
// takes whole lines.
type jsonLines struct {
	prompt
	gathered, atOnce *zerolog.Logger
	with             []slog.Attr // texts; zerolog's own context would come before the time
}

func newJSONLines(p prompt) *jsonLines {
	gathered, atOnce := zerolog.New(sink{p.buffer, false}), zerolog.New(sink{p.buffer, true})
	return &jsonLines{prompt: p, gathered: &gathered, atOnce: &atOnce}
}

func (j *jsonLines) Begin(at time.Time, level slog.Level, msg string) *Line {
	if !j.Enabled(context.Background(), level) {
		return nil
	}
	log := j.gathered
	if level >= slog.LevelWarn {
		log = j.atOnce
	}
	// An event of no level: what zerolog writes of time, level and message itself is ruled by its global variables.
	line := log.Log()
	if !at.IsZero() {
		var room [len(time.RFC3339Nano)]byte
		line.Bytes(slog.TimeKey, at.AppendFormat(room[:0], time.RFC3339Nano))
	}
	line.Str(slog.LevelKey, level.String()).Str(slog.MessageKey, msg)
	for i := range j.with {
		line.Str(j.with[i].Key, j.with[i].Value.String())
	}
	return line
}

// WithAttrs returns a handler that has lines as long as all attributes are texts. One with a group, by prompt, has none.
func (j *jsonLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	p := prompt{j.Handler.WithAttrs(attrs), j.buffer}
	for i := range attrs {
		if attrs[i].Value.Kind() != slog.KindString {
			return p
		}
	}
	with := append(j.with[:len(j.with):len(j.with)], attrs...)
	return &jsonLines{prompt: p, gathered: j.gathered, atOnce: j.atOnce, with: with}
}

// sink is where a line goes. It has no errors: zerolog would tell standard error of each, and that is where the log may go.
type sink struct {
	buffer *Buffer
	flush  bool
}

func (s sink) Write(line []byte) (int, error) {
	_, _ = s.buffer.Write(line)
	if s.flush {
		_ = s.buffer.Flush()
	}
	return len(line), nil
}
