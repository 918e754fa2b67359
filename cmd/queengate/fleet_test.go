package main

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/quota"
)

// What a gateway has heard of the fleet outlives it; a file that was damaged is named in the log and not believed.
func TestTheFleetIsRememberedInTheDataFolder(t *testing.T) {
	t.Parallel()
	for rule, tc := range map[string]struct {
		text  string
		known int
		warns bool
	}{
		"no file":               {"", 0, false},
		"a number":              {"8\n", 8, false},
		"the most":              {"1000\n", 1000, false},
		"more than is believed": {"1001\n", 0, true},
		"none":                  {"0\n", 0, true},
		"something else":        {"eight\n", 0, true},
		"cut short":             {"\n", 0, true},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			dir, err := datadir.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dir.Close() })
			if tc.text != "" {
				if err := os.WriteFile(dir.Path(fleetFile), []byte(tc.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var log strings.Builder
			var o quota.FleetOptions
			rememberFleet(&o, dir, slog.New(slog.NewTextHandler(&log, nil)))
			if o.Known != tc.known || strings.Contains(log.String(), "not believed") != tc.warns {
				t.Fatalf("known %d, want %d; log %q", o.Known, tc.known, log.String())
			}
			for _, n := range []int{3, 2000} {
				if err := o.Remember(n); err != nil {
					t.Fatal(err)
				}
				var again quota.FleetOptions
				rememberFleet(&again, dir, slog.New(slog.DiscardHandler))
				if again.Known != min(n, maxFleet) {
					t.Fatalf("remembered %d of %d", again.Known, n)
				}
			}
		})
	}
}
