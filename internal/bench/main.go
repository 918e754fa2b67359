// Command bench measures the product beside PostgreSQL's own ceiling for the same rows, in one run on one machine, and
// writes a report with ratios. It starts a private system of its own with fsync and deduplication on.
//
// The cases stand in groups, each with the anchors that it is judged by. Every repetition runs all cases of a group in
// turn, so that a machine that slows down slows all of them; a row is the median over the repetitions, and what counts
// are the ratios. Absolute targets that name another product are restated as ratios to the one-row INSERT that was
// measured beside that product.
package main

import (
	"context"
	"encoding/json"
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

func main() {
	// Some cases start the bench again for a part of theirs.
	if text := os.Getenv(noiseVariable); text != "" {
		var n noise
		os.Exit(part("noise", text, &n, n.send))
	}
	if config := os.Getenv(bareVariable); config != "" {
		if err := serveBare(config); err != nil {
			fmt.Fprintln(os.Stderr, "bench: bare:", err)
			os.Exit(1)
		}
		return
	}
	if text := os.Getenv(upstreamVariable); text != "" {
		var u upstream
		os.Exit(part("upstream", text, &u, u.serve))
	}
	os.Exit(app(os.Args[1:]))
}

// part reads what a process is told and does it; it is killed before it is done.
func part(name, text string, told any, do func() error) int {
	err := json.Unmarshal([]byte(text), told)
	if err == nil {
		err = do()
	}
	fmt.Fprintln(os.Stderr, name+":", err)
	return 1
}

type settings struct {
	reps    int
	seconds time.Duration
	out     string
	groups  string
	only    string
	profile string
}

func app(args []string) int {
	var s settings
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&s.reps, "reps", 5, "repetitions of every case")
	fs.DurationVar(&s.seconds, "time", 3*time.Second, "length of one measurement")
	fs.StringVar(&s.out, "out", "", "file to write the report to (default: standard output)")
	fs.StringVar(&s.groups, "group", "", "comma-separated groups of cases to run (default all): "+strings.Join(groupNames, ", "))
	fs.StringVar(&s.only, "only", "", "comma-separated prefixes of the cases to run")
	fs.StringVar(&s.profile, "profile", "", "folder for a CPU profile of queengate per case, of the last repetition; in the group proxies of the gateway")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	for _, name := range strings.Split(s.groups, ",") {
		if name != "" && !slices.Contains(groupNames, name) {
			fmt.Fprintf(os.Stderr, "bench: -group %s: there are %s\n", name, strings.Join(groupNames, ", "))
			return 2
		}
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
	w, err := newWorld(ctx, up, bin, filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	defer w.close()

	groups := w.groups()
	for i := range groups {
		if err := w.runGroup(ctx, s, &groups[i]); err != nil {
			return fmt.Errorf("%s: %w", groups[i].name, err)
		}
	}
	stopCtx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	if err := up.Stop(stopCtx); err != nil {
		return err
	}
	text := report(groups, s)
	if s.out == "" {
		fmt.Print(text)
		return nil
	}
	return os.WriteFile(s.out, []byte(text), 0o644)
}

// runGroup runs all cases of a group in turn, again and again, and keeps the results in it.
func (w *world) runGroup(ctx context.Context, s settings, g *group) error {
	if !listed(g.name, s.groups) || !slices.ContainsFunc(g.cases, func(c kase) bool { return selected(c.name, s.only) }) {
		return nil
	}
	if g.prepare != nil {
		fmt.Fprintf(os.Stderr, "%s: preparing\n", g.name)
		if err := g.prepare(ctx); err != nil {
			return err
		}
	}
	g.results = map[string][]sample{}
	for rep := range s.reps {
		for _, c := range g.cases {
			if !selected(c.name, s.only) {
				continue
			}
			w.profileTo = ""
			if s.profile != "" {
				w.profileTo = filepath.Join(s.profile, g.name+"-"+c.name+".pprof")
			}
			finish := func() error { return nil }
			if !g.alone { // those that start processes of their own know whom to ask
				finish = w.profile(w.up.Credentials.OpsURL, s.seconds)
			}
			r, err := c.run(ctx, s.seconds)
			if err = errors.Join(err, finish()); errors.Is(err, errNotInstalled) {
				fmt.Fprintf(os.Stderr, "%s %d/%d %-28s left out: %v\n", g.name, rep+1, s.reps, c.name, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			g.results[c.name] = append(g.results[c.name], r)
			fmt.Fprintf(os.Stderr, "%s %d/%d %-28s %s\n", g.name, rep+1, s.reps, c.name, r)
		}
	}
	return nil
}

func listed(name, groups string) bool {
	return groups == "" || slices.Contains(strings.Split(groups, ","), name)
}

func selected(name, only string) bool {
	return only == "" || slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return strings.HasPrefix(name, p) })
}

// profile fetches a CPU profile of the queengate at an operators' address while a case runs, if one is wanted; the
// returned function waits for it.
func (w *world) profile(ops string, d time.Duration) (finish func() error) {
	to := w.profileTo
	if to == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		resp, err := http.Get(fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", ops, max(int(d.Seconds()), 1)))
		if err != nil {
			done <- err
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		done <- errors.Join(err, os.WriteFile(to, text, 0o644))
	}()
	return func() error { return <-done }
}
