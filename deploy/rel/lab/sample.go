package lab

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Sample notes once a second, until ctx ends, what the parts use: memory, threads and open files of brokers, sessions of
// PostgreSQL. What cannot be read now is left out.
func (l *Lab) Sample(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, b := range l.Brokers {
			if v := usage(b.PID()); v != nil {
				l.rec.Note(hist.Sample, &hist.SampleNote{Process: b.Name, Values: v})
			}
		}
	}
}

// usage reads what the kernel tells of a process, nil when it is gone.
func usage(pid int) map[string]float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil
	}
	v := map[string]float64{}
	for line := range strings.Lines(string(status)) {
		name, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if len(f) == 0 || name != "VmRSS" && name != "Threads" {
			continue
		}
		if n, err := strconv.ParseFloat(f[0], 64); err == nil {
			v[strings.ToLower(name)] = n
		}
	}
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		v["files"] = float64(len(fds))
	}
	return v
}

// SpoolsDrain waits until no spool holds anything.
func (l *Lab) SpoolsDrain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, b := range l.Brokers {
		for b.Spool != nil {
			files, err := b.Spool.Files()
			if err != nil {
				return err
			}
			if len(files) == 0 {
				break
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("the spool of %s does not drain: %d files are left", b.Name, len(files))
			}
		}
	}
	return nil
}
