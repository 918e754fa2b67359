package janitor

import (
	"errors"
	"fmt"
	"time"

	"github.com/queengate/queengate/broker/store"
)

// Config holds the values a janitor runs with. Zero values take the defaults named.
type Config struct {
	Interval       time.Duration // 5 s between turns; 200 ms at least
	BatchSize      int           // 1,000 rows of the log that a step removes of one partition
	Parallelism    int           // 1 step at a time; 16 at most
	CleanupDays    int           // 30 days after which an empty partition that nobody comes to is deleted
	KeepPartitions bool          // never delete one
	HistoryKeep    time.Duration // 90 days for history
}

// Least and largest values.
const (
	MinInterval    = 200 * time.Millisecond
	MaxInterval    = time.Hour
	MaxBatchSize   = 10_000
	MaxParallelism = 16
	MaxDays        = 3650
)

func (c Config) withDefaults() Config {
	set(&c.Interval, 5*time.Second)
	set(&c.BatchSize, 1000)
	set(&c.Parallelism, 1)
	set(&c.CleanupDays, 30)
	set(&c.HistoryKeep, 90*24*time.Hour)
	return c
}

func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// Validate reports every problem of the values, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Interval < MinInterval || c.Interval > MaxInterval {
		errs = append(errs, fmt.Errorf("janitor.interval = %v: want %v..%v", c.Interval, MinInterval, MaxInterval))
	}
	if c.HistoryKeep < foldAfter {
		errs = append(errs, fmt.Errorf("janitor.history_keep = %v: want at least %v", c.HistoryKeep, foldAfter))
	}
	for _, f := range []struct {
		name    string
		n, most int
	}{
		{"batch_size", c.BatchSize, MaxBatchSize},
		{"parallelism", c.Parallelism, MaxParallelism},
		{"cleanup_days", c.CleanupDays, MaxDays},
	} {
		if f.n < 1 || f.n > f.most {
			errs = append(errs, fmt.Errorf("janitor.%s = %d: want 1..%d", f.name, f.n, f.most))
		}
	}
	return errors.Join(errs...)
}

// tasks are what the janitor does, and how often the cell needs it. The sidecar keeps rows for a quarter of an hour at
// least, so looking for them a dozen times less often than for segments costs nothing.
func (c Config) tasks() []store.Task {
	tasks := []store.Task{
		{Name: store.TaskRetention, Period: c.Interval},
		{Name: store.TaskSidecar, Period: max(c.Interval, min(12*c.Interval, time.Minute))},
		{Name: store.TaskHistory, Period: time.Hour},
		{Name: store.TaskCursors, Period: c.Interval},
		{Name: store.TaskWrites, Period: max(c.Interval, time.Minute)},
	}
	if !c.KeepPartitions {
		tasks = append(tasks, store.Task{Name: store.TaskPartitions, Period: max(c.Interval, time.Minute)})
	}
	return tasks
}

func (c Config) idle() time.Duration { return time.Duration(c.CleanupDays) * 24 * time.Hour }
