//go:build !linux

package httpkit

// sentriesStand says that Stand has something to stand on.
const sentriesStand = false

// enlist refuses: see Stand.
func (*Sentry) enlist(bool) bool { return false }

// Sound is never called, since no sentry stands.
func (*Sentry) Sound() {}

// Stop is never called, since no sentry stands.
func (*Sentry) Stop() {}
