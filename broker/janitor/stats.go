package janitor

import (
	"maps"
	"time"
)

// Stats is a reading of a janitor's counters since New.
type Stats struct {
	Runs   map[string]uint64 // of tasks claimed here, by task
	Errors uint64            // turns and runs that failed
	Fenced uint64            // runs that another janitor took over
	Busy   time.Duration     // time spent in runs

	ByAge, ByCompletion, ByWait uint64 // messages removed, by the rule that let them go

	Segments   uint64 // removed
	Txns       uint64 // hash rows removed
	Bytes      uint64 // payload bytes given back
	Rows       uint64 // of the log deleted behind them
	Partitions uint64 // deleted because nobody came
	Skipped    uint64 // partitions passed over because others held them
}

// Stats returns the counters.
func (j *Janitor) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.stats
	s.Runs = maps.Clone(s.Runs)
	return s
}
