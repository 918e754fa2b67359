package httpkit

import (
	"net"

	"golang.org/x/sys/unix"
)

// HungUp reports whether the peer of a TCP connection has closed it or at least its writing side, also when bytes came
// before and are not read yet. It looks through TLS and other wrappers with NetConn, reads nothing and does not block.
// What is no socket never hangs up.
//
// The end of a stream stands behind its bytes: it cannot be seen while the peer still has more to send than the
// system's receive buffer takes.
func HungUp(c net.Conn) bool {
	sc := socketOf(c)
	if sc == nil {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true // closed here
	}
	const ended = unix.POLLRDHUP | unix.POLLHUP | unix.POLLERR
	gone := false
	err = raw.Control(func(fd uintptr) {
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(look, 0)
		gone = err == nil && n > 0 && look[0].Revents&ended != 0
	})
	return gone || err != nil
}
