//go:build !linux

package httpkit

import "net"

// HungUp reports nothing here: the system cannot tell the end of a stream before the bytes in front of it are read.
func HungUp(net.Conn) bool { return false }
