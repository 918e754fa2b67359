package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/obs"
)

// command is one subcommand. It parses its own arguments, so that each has its own flags and help.
type command struct {
	name, summary string
	run           func(context.Context, *invocation) error
}

func commands() []command {
	return []command{
		{"up", "run everything on this machine, with a private PostgreSQL and a demo tenant", runUp},
		{"gateway", "run a gateway", runGateway},
		{"broker", "run a broker", runBroker},
		{"migrate", "bring the schemas of a database to this version", runMigrate},
		{"bootstrap", "create a cell, a tenant, its cluster and its first keys", runBootstrap},
		{"operator-token", "print the headers with which an operator asks a broker", runOperatorToken},
		{"check-config", "check the settings of a command and print them", runCheckConfig},
	}
}

// invocation is what a subcommand was called with.
type invocation struct {
	command        string
	args, environ  []string
	stdout, stderr io.Writer
}

// usageError is a mistake of the caller: exit status 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errDone means that the command has done all it was asked for, such as --print-config.
var errDone = errors.New("done")

// app runs the program and returns its exit status: 0 when all went well, 1 after a failure, 2 for a mistake in
// arguments or settings.
func app(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		printUsage(stdout)
		return 0
	}
	if args[0] == "version" || args[0] == "--version" {
		fmt.Fprintln(stdout, "queengate", obs.Version())
		return 0
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return status(c.run(ctx, &invocation{c.name, args[1:], environ, stdout, stderr}), stderr)
		}
	}
	fmt.Fprintf(stderr, "queengate: no command %q\n", args[0])
	printUsage(stderr)
	return 2
}

func status(err error, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, errDone), errors.Is(err, flag.ErrHelp):
		return 0
	}
	fmt.Fprintf(stderr, "queengate: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, "Queengate, a multi-tenant message-queue service\n\nusage: queengate COMMAND [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-14s %s\n", c.name, c.summary)
	}
	fmt.Fprintf(w, "  %-14s %s\n", "version", "print the version")
	fmt.Fprint(w, "\nqueengate COMMAND -h lists the flags; docs/config.md has all settings.\n")
}

// load reads the settings of the command. It answers --print-config and --check-config itself, with errDone. extra
// declares flags that are no settings and may be nil; only a command with extra takes further arguments.
func (in *invocation) load(extra func(*flag.FlagSet)) (*config, error) {
	c := defaults()
	set := settings(c)
	req, err := set.Load(in.command, in.args, in.environ, in.stderr, extra)
	if errors.Is(err, flag.ErrHelp) {
		return nil, err
	}
	if err != nil {
		return nil, usageError{err}
	}
	if len(req.Args) > 0 {
		return nil, usageError{fmt.Errorf("unexpected argument %q", req.Args[0])}
	}
	c.inert = req.Inert
	return c, in.answer(set, req)
}

func (in *invocation) answer(set *conf.Set, req conf.Request) error {
	switch {
	case req.Print:
		if err := set.Print(in.stdout, in.command); err != nil {
			return err
		}
		return errDone
	case req.Check:
		for _, v := range req.Inert {
			fmt.Fprintf(in.stdout, "%s has no effect: %s\n", v.Name, v.Instead)
		}
		fmt.Fprintln(in.stdout, "the settings are valid")
		return errDone
	}
	return nil
}
