//go:build !linux

package pg

import "syscall"

// userTimeout is Linux's: elsewhere the keep-alive probes have to do.
func userTimeout(string, string, syscall.RawConn) error { return nil }
