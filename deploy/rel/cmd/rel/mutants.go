package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/queengate/queengate/deploy/rel/check"
	"github.com/queengate/queengate/deploy/rel/lab"
	"github.com/queengate/queengate/deploy/rel/mutant"
)

const mutantsUsage = "[-only PATTERN] [-seed N] [-list]    break the product on purpose, and see who notices"

var mutantsCommand = command{name: "mutants", usage: mutantsUsage, run: mutants}

// mutants tries every mutant, or those whose name matches, and prints what became of each. Exit code: 0 when all were
// killed, 1 when one survived, 3 when one could not be tried.
func mutants(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rel mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "those whose name matches")
	seed := flags.Uint64("seed", 1, "of runs")
	names := flags.Bool("list", false, "print the names and who must notice, and try nothing")
	product := flags.String("product", ".", "the product's source, or a folder below it")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(stderr, "rel mutants:", err)
		return exitUsage
	}
	work, err := os.MkdirTemp("", "queengate-mutants-")
	if err != nil {
		fmt.Fprintln(stderr, "rel mutants:", err)
		return exitUsage
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.Chmod(work, 0o711); err != nil { // PostgreSQL's user passes
		fmt.Fprintln(stderr, "rel mutants:", err)
		return exitUsage
	}
	root, err := lab.Root(*product)
	if err != nil {
		fmt.Fprintln(stderr, "rel mutants:", err)
		return exitUsage
	}
	l := &mutant.Lab{Root: root, Work: work, Rel: reds(root, filepath.Join(work, "runs"), *seed)}
	counts := map[mutant.Outcome]int{}
	for i := range mutant.All {
		m := &mutant.All[i]
		if !pattern.MatchString(m.Name) {
			continue
		}
		if *names {
			fmt.Fprintf(stdout, "%s: %s\n", m.Name, m.Kill)
			continue
		}
		var said bytes.Buffer
		l.Out = &said
		began := time.Now()
		o, err := l.Try(ctx, m)
		counts[o]++
		fmt.Fprintf(stdout, "%-8s %5.1fs  %s (%s)\n", o, time.Since(began).Seconds(), m.Name, m.Kill)
		if o != mutant.Killed {
			fmt.Fprintf(stderr, "%v\n%s\n", err, tail(said.Bytes()))
		}
		if ctx.Err() != nil {
			return exitUnknown
		}
	}
	fmt.Fprintf(stdout, "%d killed, %d survived, %d could not be tried\n", counts[mutant.Killed], counts[mutant.Survived], counts[mutant.Broken])
	switch {
	case counts[mutant.Survived] > 0:
		return exitFail
	case counts[mutant.Broken] > 0:
		return exitUnknown
	}
	return exitPass
}

// tail is the end of what a killer said.
func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }

// reds returns a function that runs a cell with a binary and says which rules failed, and which were not judged.
func reds(root, out string, seed uint64) func(context.Context, string, []string) (failed, unjudged []string, err error) {
	return func(ctx context.Context, binary string, args []string) (failed, unjudged []string, err error) {
		f := newRunFlags(io.Discard)
		if err := f.Parse(append([]string{"-seed", fmt.Sprint(seed), "-out", out}, args...)); err != nil {
			return nil, nil, err
		}
		b, err := prepare(ctx, root, binary, f.out)
		if err != nil {
			return nil, nil, err
		}
		b.say = func(string, ...any) {}
		report, _, err := b.run(ctx, f.cell)
		if report == nil {
			return nil, nil, errors.Join(errors.New("there is no report"), err)
		}
		for _, r := range report.Rules {
			switch r.Verdict {
			case check.Fail:
				failed = append(failed, r.Rule)
			case check.NotJudged:
				unjudged = append(unjudged, r.Rule)
			}
		}
		return failed, unjudged, nil
	}
}
