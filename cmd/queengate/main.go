// Command queengate is the server of Queengate, a multi-tenant message-queue service: `queengate up` runs all of it on
// one machine, `queengate gateway` and `queengate broker` run its parts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	growHeap()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the process at once: who presses Ctrl-C twice does not want to wait for the drain.
	context.AfterFunc(ctx, stop)
	os.Exit(app(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
