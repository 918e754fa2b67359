package store

// Option changes a Store that New returns.
type Option func(*options)

type options struct {
	leaseAsync bool
	wide       chan struct{} // a slot per wide scan that may run at once
}

// maxWideScans bounds the acknowledgements that read far more of the hash sidecar than their batch: they are answered,
// but never by more than these sessions at a time.
const maxWideScans = 2

func defaultOptions() options {
	return options{wide: make(chan struct{}, maxWideScans)}
}

// LeaseAsyncCommit lets a bundle that only grants leases commit without waiting for the disk
// (QUEENGATE_LEASE_ASYNC_COMMIT, design.md 5.5). A crash of the database may then forget a lease it granted, and two
// workers overlap on one batch; the test of the lease at the ack still protects the cursor. A seal that is forgotten
// is made again. Every other move of a cursor, registrations and seeds always wait.
func LeaseAsyncCommit(on bool) Option { return func(o *options) { o.leaseAsync = on } }
