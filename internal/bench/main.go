// Command bench measures the product beside PostgreSQL's own ceiling for the same rows, in one run on one machine, and
// writes a report with ratios. It starts a private system of its own with fsync and deduplication on.
//
// Every repetition runs all cases in turn, so that a machine that slows down slows all of them; a row is the median
// over the repetitions, and what counts are the ratios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/queengate/queengate/internal/launch"
)

func main() { os.Exit(app(os.Args[1:])) }

type settings struct {
	reps    int
	seconds time.Duration
	out     string
	only    string
	profile string
}

func app(args []string) int {
	var s settings
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&s.reps, "reps", 5, "repetitions of every case")
	fs.DurationVar(&s.seconds, "time", 5*time.Second, "length of one measurement")
	fs.StringVar(&s.out, "out", "", "file to write the report to (default: standard output)")
	fs.StringVar(&s.only, "only", "", "comma-separated prefixes of the cases to run")
	fs.StringVar(&s.profile, "profile", "", "folder for a CPU profile of queengate per case, of the last repetition")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "queengate-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The unprivileged PostgreSQL of a run as root must reach its folder.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	bin, err := launch.Build(ctx, dir)
	if err != nil {
		return err
	}
	up, err := launch.Up(ctx, bin, filepath.Join(dir, "data"), nil)
	if err != nil {
		return err
	}
	defer up.Kill()
	w, err := newWorld(ctx, up, filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	defer w.close()

	cases := w.cases()
	results := map[string][]sample{}
	for rep := range s.reps {
		for _, c := range cases {
			if !selected(c.name, s.only) {
				continue
			}
			finish := w.profile(s.profile, c.name, s.seconds)
			r, err := w.measure(ctx, c, s.seconds)
			if err = errors.Join(err, finish()); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			results[c.name] = append(results[c.name], r)
			fmt.Fprintf(os.Stderr, "%d/%d %-28s %s\n", rep+1, s.reps, c.name, r)
		}
	}
	stopCtx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	if err := up.Stop(stopCtx); err != nil {
		return err
	}
	text := report(cases, results, s)
	if s.out == "" {
		fmt.Print(text)
		return nil
	}
	return os.WriteFile(s.out, []byte(text), 0o644)
}

func selected(name, only string) bool {
	return only == "" || slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return strings.HasPrefix(name, p) })
}

// kase is one thing that is measured.
type kase struct {
	name string
	what string // for the report
	run  func(ctx context.Context, d time.Duration) (sample, error)
}

// sample is one measurement. Latencies are zero where a case measures only a rate.
type sample struct {
	rate     float64       // messages per second
	p50, p99 time.Duration // of one request, or of a message from end to end
	// The same over the share calm of the messages that no slow stretch of the machine touched; zero where nothing watches.
	calm50, calm99 time.Duration
	calm           float64
	ours           time.Duration // CPU of queengate per message
	postgres       time.Duration // CPU of PostgreSQL per message
}

func (s sample) String() string {
	t := fmt.Sprintf("%9.0f msg/s", s.rate)
	if s.p50 > 0 {
		t += fmt.Sprintf("  p50 %6.2f ms  p99 %6.2f ms", ms(s.p50), ms(s.p99))
	}
	if s.calm > 0 {
		t += fmt.Sprintf("  calm %.0f%%: p50 %6.2f ms  p99 %6.2f ms", 100*s.calm, ms(s.calm50), ms(s.calm99))
	}
	return t + fmt.Sprintf("  cpu/msg %5.1f us + pg %5.1f us", us(s.ours), us(s.postgres))
}

// profile fetches a CPU profile of queengate while a case runs; the returned function waits for it.
func (w *world) profile(dir, name string, d time.Duration) (finish func() error) {
	if dir == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		resp, err := http.Get(fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", w.up.Credentials.OpsURL, max(int(d.Seconds()), 1)))
		if err != nil {
			done <- err
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		done <- errors.Join(err, os.WriteFile(filepath.Join(dir, name+".pprof"), text, 0o644))
	}()
	return func() error { return <-done }
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// measure runs c between two readings of the processes' CPU clocks.
func (w *world) measure(ctx context.Context, c kase, d time.Duration) (sample, error) {
	ours, pg := w.cpu()
	began := time.Now()
	r, err := c.run(ctx, d)
	if err != nil {
		return r, err
	}
	ours2, pg2 := w.cpu()
	if n := r.rate * time.Since(began).Seconds(); n > 0 {
		r.ours, r.postgres = time.Duration(float64(ours2-ours)/n), time.Duration(float64(pg2-pg)/n)
	}
	return r, nil
}
