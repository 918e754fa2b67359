package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/queengate/queengate/deploy/rel/check"
)

const judgeUsage = "[-run ID] [-strict=false] [-search 20s] DIR    judge a stored run again"

var judgeCommand = command{name: "judge", usage: judgeUsage, run: judge}

// judge judges the run in a folder and prints the report. Exit code: 0 PASS, 1 FAIL, 3 UNKNOWN or NOT JUDGED (0 unless
// -strict), 2 when there is nothing to judge.
func judge(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rel judge", flag.ContinueOnError)
	flags.SetOutput(stderr)
	run := flags.String("run", "", "refuse a folder of any other run")
	strict := flags.Bool("strict", true, "UNKNOWN is a failure")
	search := flags.Duration("search", 20*time.Second, "bound of the search for an order of deliveries and acks")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if flags.NArg() != 1 {
		fmt.Fprintln(stderr, "usage: rel judge "+judgeUsage)
		return exitUsage
	}
	r, err := check.Dir(flags.Arg(0), *run, check.Options{Search: *search})
	if err != nil {
		fmt.Fprintln(stderr, "rel judge:", err)
		return exitUsage
	}
	if err := r.WriteMarkdown(stdout); err != nil {
		fmt.Fprintln(stderr, "rel judge:", err)
		return exitUsage
	}
	return exitOf(r.Verdict, *strict)
}

// exitOf is the exit code of a verdict.
func exitOf(v check.Verdict, strict bool) int {
	switch {
	case v == check.Pass || v != check.Fail && !strict:
		return exitPass
	case v != check.Fail:
		return exitUnknown
	}
	return exitFail
}
