package httpkit

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sentriesStand says that Stand has something to stand on.
const sentriesStand = true

// lookout is an epoll descriptor with the connections that sentries stand on, and the one goroutine that serves it. The
// descriptor is itself waited for by the runtime's poller, so a quiet look-out occupies no thread.
//
// A sentry is known to the kernel by the number of its post, which is never used again: an event that was on its way when
// its sentry was stopped, or when the descriptor was closed and opened as another connection, finds nobody.
type lookout struct {
	raw syscall.RawConn // of the epoll descriptor

	mu    sync.Mutex // guards all below and the alarms of the sentries; held while an alarm is called
	posts map[uint64]*Sentry
	last  uint64
}

// openLookout returns the look-out of the process, nil when the system refuses one.
var openLookout = sync.OnceValue(func() *lookout {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	// The runtime's poller takes what does not block. Nobody reads or writes this descriptor.
	err = unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), "epoll")
	if err != nil || f.SetReadDeadline(time.Time{}) != nil {
		_ = f.Close() // it was opened for nothing
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	l := &lookout{raw: raw, posts: map[uint64]*Sentry{}}
	go l.run()
	return l
})

// run calls alarms for ever: sentries of any server may stand up at any time.
func (l *lookout) run() {
	events := make([]unix.EpollEvent, 128)
	err := l.raw.Read(func(epoll uintptr) bool {
		for {
			n, err := unix.EpollWait(int(epoll), events, 0)
			switch {
			case err == unix.EINTR:
			case err != nil:
				panic(fmt.Sprintf("epoll_wait: %v", err)) // only a wrong descriptor or address can cause it
			case n == 0:
				return false // wait for more
			default:
				l.report(events[:n])
			}
		}
	})
	panic(fmt.Sprintf("the look-out for hang-ups ended: %v", err)) // its descriptor is never closed
}

func (l *lookout) report(events []unix.EpollEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		if s := l.posts[postOf(&events[i])]; s != nil {
			s.soundLocked()
		}
	}
}

// soundLocked calls the alarm, once.
func (s *Sentry) soundLocked() {
	if alarm := s.alarm; alarm != nil {
		s.alarm = nil
		alarm()
	}
}

func (s *Sentry) enlist(input bool) bool {
	l := openLookout()
	if l == nil {
		return false
	}
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return false
	}
	l.mu.Lock()
	l.last++
	s.post = l.last
	l.posts[s.post] = s
	l.mu.Unlock()
	// One event and no more: level-triggered, so what has happened already is an event too.
	e := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(uint32(s.post)), Pad: int32(uint32(s.post >> 32))}
	if input {
		e.Events |= unix.EPOLLIN
	}
	var refused error
	closed := l.control(raw, unix.EPOLL_CTL_ADD, &e, &refused)
	switch {
	case closed != nil:
		s.Sound() // nothing will happen to it any more
	case refused != nil:
		l.discharge(s)
		return false
	}
	return true
}

func postOf(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// control changes what the kernel looks out for on a connection. The error is that of a connection that is closed.
func (l *lookout) control(raw syscall.RawConn, op int, e *unix.EpollEvent, refused *error) error {
	return raw.Control(func(fd uintptr) {
		if err := l.raw.Control(func(epoll uintptr) { *refused = unix.EpollCtl(int(epoll), op, int(fd), e) }); err != nil {
			*refused = err
		}
	})
}

func (l *lookout) discharge(s *Sentry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.posts, s.post)
	s.alarm = nil
}

// Sound calls the alarm as if something had happened. Whoever closes a connection with a sentry on it must: the system
// does not tell.
func (s *Sentry) Sound() {
	l := openLookout()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.soundLocked()
}

// Stop ends the look-out. An alarm that is being called is waited for; afterwards none is.
func (s *Sentry) Stop() {
	l := openLookout()
	l.discharge(s)
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return
	}
	// A descriptor that is closed has left the look-out by itself.
	var refused error
	_ = l.control(raw, unix.EPOLL_CTL_DEL, &unix.EpollEvent{}, &refused)
}
