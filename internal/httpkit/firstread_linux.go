package httpkit

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// FirstRead reads the beginning of a request. A server that gives an idle connection's reader back waits for one byte,
// gets a reader and then reads the rest: two system calls for what came in one packet. FirstRead waits as well without
// a buffer and takes one from a pool only when there is something to put into it, and then reads all of it.
//
// The zero value reads byte by byte. It belongs to the goroutine that reads the connection.
type FirstRead struct {
	raw  syscall.RawConn
	room *firstRoom // whose bytes Wait returned last
	n    int
	err  error
	look func(fd uintptr) bool // f.take, bound once
}

type firstRoom [4 << 10]byte

var firstRooms = sync.Pool{New: func() any { return new(firstRoom) }}

// NewFirstRead returns the reader of c, which is of use when c is a socket.
func NewFirstRead(c net.Conn) *FirstRead {
	f := &FirstRead{}
	if sc, ok := c.(syscall.Conn); ok {
		f.raw, _ = sc.SyscallConn() // it fails on a closed connection, whose reads then say so
		f.look = f.take
	}
	return f
}

// Able reports whether Wait can be called.
func (f *FirstRead) Able() bool { return f != nil && f.raw != nil }

// Wait blocks until something comes and returns it, at most 4 KiB. The bytes are the caller's until Done.
func (f *FirstRead) Wait() ([]byte, error) {
	f.n, f.err = 0, nil
	if err := f.raw.Read(f.look); err != nil {
		return nil, err // a deadline, or closed
	}
	switch {
	case f.err != nil:
		f.Done()
		return nil, f.err
	case f.n == 0:
		f.Done()
		return nil, io.EOF
	}
	return f.room[:f.n], nil
}

// take reads what is there. It reports false when that is nothing, and is called again when there is something.
func (f *FirstRead) take(fd uintptr) bool {
	if f.room == nil {
		f.room = firstRooms.Get().(*firstRoom)
	}
	for {
		n, err := syscall.Read(int(fd), f.room[:])
		switch err {
		case nil:
			f.n = n
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			f.Done() // the wait costs no memory
			return false
		default:
			f.err = err
			return true
		}
	}
}

// Done gives the bytes of Wait back.
func (f *FirstRead) Done() {
	if f != nil && f.room != nil {
		firstRooms.Put(f.room)
		f.room = nil
	}
}
