package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/queengate/queengate/internal/datadir"
)

// printBanner tells what runs where and gives three lines to paste: a push, a pop and the ack of what was popped. The
// pop keeps its answer in a variable, from which the ack takes its ids with nothing but a POSIX shell and sed.
func printBanner(w io.Writer, dir *datadir.Dir, c *credentials, took time.Duration) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nQueengate is ready (%.1f s)\n\n", took.Seconds())
	for _, line := range [][2]string{
		{"gateway", strings.TrimSpace(c.GatewayURL + "  " + c.GatewayHTTPSURL)},
		{"operators", c.OpsURL},
		{"demo key", c.APIKey},
		{"more", dir.Path(credentialsFile)},
	} {
		if line[1] != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", line[0], line[1])
		}
	}
	b.WriteString("\n  try it: push, pop, ack\n\n")
	auth := fmt.Sprintf("-H 'Authorization: Bearer %s'", c.APIKey)
	field := func(name string) string {
		return fmt.Sprintf(`$(printf %%s "$popped" | sed 's/.*"%s":"\([^"]*\)".*/\1/')`, name)
	}
	fmt.Fprintf(&b, "curl -sS %s %s/api/v1/push -d '{\"items\":[{\"queue\":\"hello\",\"payload\":{\"n\":1}}]}'\n", auth, c.GatewayURL)
	fmt.Fprintf(&b, "popped=$(curl -sS %s '%s/api/v1/pop/queue/hello?batch=1&wait=true&timeout=2000'); echo \"$popped\"\n", auth, c.GatewayURL)
	fmt.Fprintf(&b, "curl -sS %s %s/api/v1/ack -d \"{\\\"transactionId\\\":\\\"%s\\\",\\\"partitionId\\\":\\\"%s\\\",\\\"leaseId\\\":\\\"%s\\\"}\"\n\n",
		auth, c.GatewayURL, field("transactionId"), field("partitionId"), field("leaseId"))
	// A terminal that is gone is no reason to stop serving.
	_, _ = io.WriteString(w, b.String())
}
