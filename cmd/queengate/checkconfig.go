package main

import (
	"context"
	"errors"
	"flag"
	"slices"
)

// runCheckConfig checks the settings of another command as that command would and prints them.
func runCheckConfig(_ context.Context, in *invocation) error {
	names := []string{}
	for _, c := range commands() {
		names = append(names, c.name)
	}
	if len(in.args) == 0 || !slices.Contains(names, in.args[0]) {
		return usageError{errors.New("usage: queengate check-config COMMAND [flags of the command]")}
	}
	target := in.args[0]
	set := settings(defaults())
	if _, err := set.Load(target, in.args[1:], in.environ, in.stderr, nil); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	return set.Print(in.stdout, target)
}
