package obs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"
)

// Buffer is a writer in front of a log file that gathers lines for a moment: a system call per request would cost more
// than judging the request. What it holds is lost with the process, so its owner flushes it before the end; a logger of
// NewLogger flushes it after every line of level Warn or above.
//
// Every Write must be a whole line, as those of log/slog are. Safe for concurrent use.
type Buffer struct {
	w io.Writer

	mu    sync.Mutex // guards all below; held while writing to w, which keeps lines in order
	lines bytes.Buffer
	armed bool // a flush is due
	err   error
}

// Bounds of what a Buffer holds.
const (
	bufferTime = 50 * time.Millisecond
	bufferSize = 64 << 10
)

// NewBuffer returns a buffer in front of w.
func NewBuffer(w io.Writer) *Buffer { return &Buffer{w: w} }

// Write takes a line. An error is that of an earlier flush.
func (b *Buffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines.Write(line)
	if b.lines.Len() >= bufferSize {
		b.flushLocked()
	} else if !b.armed {
		b.armed = true
		time.AfterFunc(bufferTime, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.armed = false
			b.flushLocked()
		})
	}
	err := b.err
	b.err = nil
	return len(line), err
}

// Flush writes out what is held.
func (b *Buffer) Flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushLocked()
	err := b.err
	b.err = nil
	return err
}

func (b *Buffer) flushLocked() {
	if b.lines.Len() == 0 {
		return
	}
	if _, err := b.w.Write(b.lines.Bytes()); err != nil {
		b.err = err
	}
	b.lines.Reset()
}

// prompt is a handler that does not let a line wait that somebody may be waiting for.
type prompt struct {
	slog.Handler
	buffer *Buffer
}

func (p prompt) Handle(ctx context.Context, r slog.Record) error {
	err := p.Handler.Handle(ctx, r)
	if r.Level >= slog.LevelWarn {
		err = errors.Join(err, p.buffer.Flush())
	}
	return err
}

func (p prompt) WithAttrs(attrs []slog.Attr) slog.Handler {
	return prompt{p.Handler.WithAttrs(attrs), p.buffer}
}

func (p prompt) WithGroup(name string) slog.Handler {
	return prompt{p.Handler.WithGroup(name), p.buffer}
}
