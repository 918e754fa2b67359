package broker

import (
	"context"
	"sync"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/mesh"
)

// Mesh carries hints to the other brokers of the cell; *mesh.Mesh is the real one.
type Mesh interface {
	Run(ctx context.Context, handle mesh.Handler) error
	Broadcast(kind mesh.Kind, payload []byte)
	Stats() mesh.Stats
}

// hints gathers what the other brokers should hear of. What comes while a frame is being written goes out with the
// next, each partition once, so frames grow with the load and a lone push is heard of at once.
type hints struct {
	mesh Mesh // nil: this broker is alone
	wake chan struct{}

	mu    sync.Mutex // guards all below
	marks map[int64]mark
	freed map[freedKey]freed
	names []named
	news  bool
}

type freedKey struct {
	partition int64
	group     string
}

const (
	// maxHints bounds what waits. Beyond it the others are told to read the feed, which knows of every push, if a little later.
	maxHints = 8192
	// hintFrame is where a frame is full. Names have at most 512 bytes, so the last entry fits too.
	hintFrame = 256 << 10
)

func newHints(m Mesh) *hints {
	return &hints{mesh: m, wake: make(chan struct{}, 1), marks: map[int64]mark{}, freed: map[freedKey]freed{}}
}

// alone reports that nobody would hear.
func (h *hints) alone() bool { return h.mesh == nil || h.mesh.Stats().Out == 0 }

// landed tells of new messages.
func (h *hints) landed(all []fuse.Landed) {
	if h.alone() {
		return
	}
	h.mu.Lock()
	for i := range all {
		l := &all[i]
		m := mark{tenant: l.Tenant, queue: l.Queue, partition: l.Partition, last: l.LastOffset, count: int64(l.Count)}
		if old, ok := h.marks[m.partition]; ok {
			m.count += old.count
			m.last = max(m.last, old.last)
		} else if len(h.marks) >= maxHints {
			h.news = true
			continue
		}
		h.marks[m.partition] = m
	}
	h.mu.Unlock()
	h.signal()
}

// free tells of a lease that has ended before its time.
func (h *hints) free(f freed) {
	if h.alone() {
		return
	}
	h.mu.Lock()
	// One that finds no room is found free by the probe of doubtful leases, within a second.
	if k := (freedKey{f.partition, f.group}); len(h.freed) < maxHints {
		h.freed[k] = f // the later one says more
	}
	h.mu.Unlock()
	h.signal()
}

// named tells of a partition that has come to be.
func (h *hints) named(p *store.Partition) {
	if h.alone() {
		return
	}
	h.mu.Lock()
	if len(h.names) < maxHints {
		h.names = append(h.names, named{p.Tenant, p.Queue, p.Name, p.ID})
	}
	h.mu.Unlock()
	h.signal()
}

// changed tells that the change feed has something that is not a message: a cursor that was moved, a queue that was
// configured or deleted, a switch.
func (h *hints) changed() {
	if h.alone() {
		return
	}
	h.mu.Lock()
	h.news = true
	h.mu.Unlock()
	h.signal()
}

func (h *hints) signal() {
	select {
	case h.wake <- struct{}{}:
	default: // the loop has not looked yet
	}
}

// run sends what was gathered, until ctx ends.
func (h *hints) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		}
		h.mu.Lock()
		marks, released, names, news := h.marks, h.freed, h.names, h.news
		h.marks, h.freed, h.names, h.news = map[int64]mark{}, map[freedKey]freed{}, nil, false
		h.mu.Unlock()
		h.send(marks, released, names, news)
	}
}

func (h *hints) send(marks map[int64]mark, released map[freedKey]freed, names []named, news bool) {
	var buf []byte
	// Names first: who waits for one looks the partition up and is then ready for its mark.
	for i := range names {
		buf = names[i].append(buf)
		buf = h.flush(hintNamed, buf, hintFrame)
	}
	buf = h.flush(hintNamed, buf, 1)
	for _, m := range marks {
		buf = m.append(buf)
		buf = h.flush(hintMarks, buf, hintFrame)
	}
	buf = h.flush(hintMarks, buf, 1)
	for _, f := range released {
		buf = f.append(buf)
		buf = h.flush(hintFreed, buf, hintFrame)
	}
	h.flush(hintFreed, buf, 1)
	if news {
		h.mesh.Broadcast(hintNews, nil)
	}
}

// flush sends buf when it has at least so many bytes, and returns what to go on with.
func (h *hints) flush(kind mesh.Kind, buf []byte, least int) []byte {
	if len(buf) < least {
		return buf
	}
	h.mesh.Broadcast(kind, buf)
	return nil // the frame keeps it
}

// hear follows a hint of another broker. What cannot be read is counted and left: the peer may be newer than this one.
func (b *Broker) hear(_ string, kind mesh.Kind, payload []byte) {
	var err error
	switch kind {
	case hintMarks:
		err = readHints(payload, (*fieldReader).mark, func(m mark) {
			b.park.Mark(m.tenant, m.queue, m.partition, m.last, m.count)
		})
	case hintFreed:
		err = readHints(payload, (*fieldReader).freed, func(f freed) {
			b.park.Release(park.Key{Tenant: f.tenant, Queue: f.queue, Group: f.group}, f.partition, f.committed, f.last)
		})
	case hintNamed:
		err = readHints(payload, (*fieldReader).named, func(n named) {
			b.park.Named(n.tenant, n.queue, n.name, n.partition)
		})
	case hintNews:
		b.feed.nudge()
	}
	if err != nil {
		b.metrics.badHints.Inc()
	}
}
