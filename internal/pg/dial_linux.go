package pg

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// userTimeout bounds how long bytes may stay unacknowledged. Keep-alive probes are not sent while some are.
func userTimeout(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var set error
	if err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
	}); err != nil {
		return err
	}
	return set
}
