//go:build !linux

package httpkit

import "net"

// FirstRead is of no use here: see its form on Linux.
type FirstRead struct{}

// NewFirstRead returns a reader that is not Able.
func NewFirstRead(net.Conn) *FirstRead { return nil }

// Able reports false.
func (f *FirstRead) Able() bool { return false }

// Wait is never called.
func (f *FirstRead) Wait() ([]byte, error) { return nil, net.ErrClosed }

// Done does nothing.
func (f *FirstRead) Done() {}
