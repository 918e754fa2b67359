// Command rel runs reliability workloads against the product, and judges what they recorded.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// command is a subcommand; each lives in a file of its own and adds itself to commands.
type command struct {
	name  string
	usage string // arguments and one line of what it does
	run   func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// The exit codes.
const (
	exitPass    = 0
	exitFail    = 1
	exitUsage   = 2
	exitUnknown = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := app(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func app(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] }); i >= 0 {
			return commands[i].run(ctx, args[1:], stdout, stderr)
		}
	}
	fmt.Fprintln(stderr, "usage: rel COMMAND [ARGUMENT...]")
	for _, c := range commands {
		fmt.Fprintf(stderr, "  rel %s %s\n", c.name, c.usage)
	}
	return exitUsage
}
