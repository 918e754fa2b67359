package hist

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/gzip"
)

// flushEvery is how much of a history a crash of the harness may cost.
const flushEvery = time.Second

// Writer writes a history. It is safe for concurrent use, and its methods never wait for anything but the disk.
//
// Errors of the disk do not stop a run: the first one is kept and returned by Close.
type Writer struct {
	began time.Time // with its monotonic reading

	mu      sync.Mutex // guards all below
	file    *os.File
	zip     *gzip.Writer
	buf     *bufio.Writer
	ops     int64
	flushed time.Time
	err     error
	closed  bool
}

// Create begins a history in a new file: an existing one is an error. h.Format and h.Began are set here, and the clock
// of the run starts.
func Create(path string, h Header) (*Writer, error) {
	h.Format = Format
	if h.Run == "" {
		return nil, errors.New("begin a history: the run has no name")
	}
	began := time.Now()
	h.Began = began
	head, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode the header: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("begin a history: %w", err)
	}
	zip, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w := &Writer{began: began, file: f, zip: zip, buf: bufio.NewWriterSize(zip, 64<<10), flushed: began}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.putLocked(head)
	w.flushLocked()
	return w, w.err
}

// Now is the time of the run, as it stands in events.
func (w *Writer) Now() time.Duration { return time.Since(w.began) }

// Call is who does an operation, and where.
type Call struct {
	W      string // workload
	Client int    // thread; one operation at a time
	Node   string // the address that is asked
	Tenant string // "" is the default tenant
	F      Func
}

// Open is an operation that was invoked and has not come back.
type Open struct {
	w    *Writer
	call Call
	op   int64
	at   time.Duration
}

// At is when the operation was invoked.
func (o Open) At() time.Duration { return o.at }

// Invoke notes that an operation begins; call it right before the request is sent. args is the pointer that belongs to
// c.F and may be reused when Invoke has returned.
func (w *Writer) Invoke(c Call, args any) Open {
	a, err := encode(args)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(err)
	w.ops++
	at := w.eventLocked(line{Kind: Invoked, Op: w.ops, W: c.W, Client: c.Client, Node: c.Node, Tenant: c.Tenant, F: c.F, A: a})
	return Open{w: w, call: c, op: w.ops, at: at}
}

// Complete notes that the operation came back; call it once, right after the answer. outcome is Outcome of what was
// seen, status the HTTP status or 0, answer the pointer that belongs to the Func or nil, err what the client saw
// instead of an answer (its text is kept).
func (o Open) Complete(outcome Kind, status int, answer any, err error) {
	v, bad := encode(answer)
	l := line{
		Kind: outcome, Op: o.op, W: o.call.W, Client: o.call.Client, Node: o.call.Node, Tenant: o.call.Tenant,
		F: o.call.F, Status: status, V: v,
	}
	if err != nil {
		l.Err = err.Error()
	}
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.w.failLocked(bad)
	o.w.eventLocked(l)
}

// Fault notes a step of a fault. It reaches the disk before the call returns.
func (w *Writer) Fault(f Fault) {
	w.now(line{Kind: Nemesis, Node: f.Target}, &f)
}

// Note notes something else: what is a pointer to one of the notes of f. It reaches the disk before the call returns,
// except samples.
func (w *Writer) Note(f Func, what any) {
	w.now(line{Kind: Noted, F: f}, what)
}

// Phase notes that a phase of the run begins.
func (w *Writer) Phase(phase string) { w.Note(Phase, &PhaseNote{Phase: phase}) }

func (w *Writer) now(l line, what any) {
	a, err := encode(what)
	l.A = a
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(err)
	w.eventLocked(l)
	if l.F != Sample {
		w.flushLocked()
	}
}

// Close ends the history and syncs it to disk. It returns the first error there was. Whatever is written later is lost.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return w.err
	}
	w.failLocked(w.buf.Flush())
	w.failLocked(w.zip.Close())
	w.failLocked(w.file.Sync())
	w.failLocked(w.file.Close())
	w.closed = true
	return w.err
}

// eventLocked stamps and writes a line. The stamp is taken under the lock, so that the order of the file is the order of the
// stamps.
func (w *Writer) eventLocked(l line) time.Duration {
	at := time.Since(w.began)
	l.T = int64(at)
	text, err := json.Marshal(&l)
	w.failLocked(err)
	if err == nil {
		w.putLocked(text)
	}
	if time.Since(w.flushed) > flushEvery {
		w.flushLocked()
	}
	return at
}

func (w *Writer) putLocked(text []byte) {
	if w.closed {
		w.failLocked(errors.New("an event came after the end of the history"))
		return
	}
	_, err := w.buf.Write(text)
	w.failLocked(err)
	w.failLocked(w.buf.WriteByte('\n'))
}

func (w *Writer) flushLocked() {
	if w.closed {
		return
	}
	w.failLocked(w.buf.Flush())
	w.failLocked(w.zip.Flush())
	w.flushed = time.Now()
}

func (w *Writer) failLocked(err error) {
	if w.err == nil && err != nil {
		w.err = fmt.Errorf("write the history: %w", err)
	}
}

func encode(v any) (jsontext.Value, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a %T: %w", v, err)
	}
	return b, nil
}
