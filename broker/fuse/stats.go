package fuse

// Stats is a reading of a fuser's counters (since New) and gauges (now).
type Stats struct {
	Flushes    uint64 // calls that offered a bundle, waiting ones included
	Segments   uint64 // segments offered in them
	Stored     uint64 // frames committed
	Duplicates uint64 // frames the database called duplicates
	Followers  uint64 // frames that repeated another of their segment
	CacheHits  uint64 // pushes set apart because the cache had seen one of their frames
	BusySkips  uint64 // segments skipped because another session held the row
	Solos      uint64 // segments that waited for their row in a call of their own
	Splits     uint64 // halvings after a permanent error
	Seconds    uint64 // flushes that left while another was in flight
	Hydrations uint64 // partitions read into the cache
	TopUps     uint64 // gaps left by other brokers read into the cache
	ReadErrors uint64 // sidecar reads that ended early
	Evictions  uint64 // partitions dropped from the cache for room
	Refused    uint64 // pushes answered wire.BrokerOverloaded
	Turns      uint64 // how often the turn passed from one tenant to another

	InFlight        int   // flushes
	Pending         int   // accepted pushes without a full verdict
	PendingBytes    int64 // and their cost
	PendingTenants  int   // and the tenants they are from
	Reading         int   // lanes that wait for a sidecar read
	CachePartitions int
	CacheBytes      int64
}

// Stats returns the counters and gauges.
func (f *Fuser) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.InFlight = f.inFlight
	s.Pending = f.pending
	s.PendingBytes = f.budget.Used()
	s.PendingTenants = f.budget.Owners()
	s.Turns = f.ready.Turns()
	s.Refused = f.budget.Refused()
	s.Reading = f.reading.active + f.reading.queue.Len()
	s.CachePartitions = len(f.cache.entries)
	s.CacheBytes = f.cache.bytes
	s.Evictions = f.cache.evictions
	return s
}

// add counts what a flush has done.
func (s *Stats) add(o *Stats) {
	s.Flushes += o.Flushes
	s.Segments += o.Segments
	s.Stored += o.Stored
	s.Duplicates += o.Duplicates
	s.Followers += o.Followers
	s.CacheHits += o.CacheHits
	s.BusySkips += o.BusySkips
	s.Splits += o.Splits
}
