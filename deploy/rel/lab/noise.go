package lab

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// machineEvery is how often Noise notes what the machine is like: the kernel counts in hundredths of a second.
const machineEvery = time.Second

// Noise measures, until ctx ends, how late a timer of 1 ms is on this machine, how much of the time somebody waited for a
// CPU, and how much of the CPUs was spent by others than this process and what it has started; and before that how long the
// disk takes to sync. It notes what it was like once a second, and over all when it ends: on a machine that stands still now
// and then, or works for others, nobody can judge latency.
func Noise(ctx context.Context, rec *hist.Writer, dir string) error {
	syncs, err := syncTimes(dir)
	if err != nil {
		return err
	}
	var all, late []time.Duration
	start, waited := time.Now(), cpuWaits()
	since, before, waits := start, spent(os.Getpid()), waited
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(time.Millisecond)
		late = append(late, time.Since(began)-time.Millisecond)
		if lasts := time.Since(since); lasts >= machineEvery {
			now, w := spent(os.Getpid()), cpuWaits()
			n := hist.MachineNote{ForMs: lasts.Milliseconds(), LateMs: ms(slices.Max(late)), Wait: float64(w-waits) / float64(lasts)}
			if n.Others = now.others(before); w == 0 {
				n.Wait = now.busy(before)
			}
			rec.Note(hist.Machine, &n)
			all, late = append(all, late...), late[:0]
			since, before, waits = time.Now(), now, w
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	rec.Note(hist.Noise, &hist.NoiseNote{
		TimerP99Ms: ms(p99(append(all, late...))), FsyncP99Ms: ms(p99(syncs)), CPUWait: float64(cpuWaits()-waited) / float64(time.Since(start)),
	})
	return nil
}

// cpuWaits is how long somebody on this machine has waited for a CPU, of all time; 0 where the kernel does not say.
func cpuWaits() time.Duration {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	_, total, _ := strings.Cut(line, "total=")
	n, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

func syncTimes(dir string) ([]time.Duration, error) {
	path := filepath.Join(dir, "noise")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close(); _ = os.Remove(path) }()
	var times []time.Duration
	for range 20 {
		began := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
	}
	return times, nil
}

func p99(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[len(d)*99/100]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
