package deploy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestPatroniKeepsThePromises pins what the guarantees rest on (docs/operations/postgresql-ha.md).
func TestPatroniKeepsThePromises(t *testing.T) {
	t.Parallel()
	doc := decode[map[string]any](t, "patroni.yml", read(t, "patroni/patroni.yml"))[0]
	dcs := at[map[string]any](doc, "bootstrap", "dcs")
	for key, want := range map[string]any{"synchronous_mode": true, "synchronous_mode_strict": true, "failsafe_mode": true} {
		if dcs[key] != want {
			t.Errorf("%s = %v, want %v", key, dcs[key], want)
		}
	}
	if at[string](doc, "watchdog", "mode") != "required" {
		t.Error("a primary that hangs would not be fenced")
	}
	// Patroni's own condition for a leader that does not lose its lock while it retries.
	if at[int](dcs, "loop_wait")+2*at[int](dcs, "retry_timeout") > at[int](dcs, "ttl") {
		t.Errorf("loop_wait + 2 * retry_timeout is above ttl: %v", dcs)
	}
	parameters := at[map[string]any](dcs, "postgresql", "parameters")
	for key, want := range map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "wal_log_hints": "on"} {
		if parameters[key] != want {
			t.Errorf("%s = %v, want %s", key, parameters[key], want)
		}
	}
	// A vanished standby or session must not hold up the others for longer than our own bound, five seconds and a bit.
	for _, key := range []string{"wal_sender_timeout", "wal_receiver_timeout", "tcp_user_timeout", "client_connection_check_interval"} {
		if d, err := time.ParseDuration(fmt.Sprint(parameters[key])); err != nil || d <= 0 || d > 5*time.Second {
			t.Errorf("%s = %v, want at most 5s (%v)", key, parameters[key], err)
		}
	}
	hba := at[[]any](doc, "postgresql", "pg_hba")
	for _, line := range hba {
		fields := strings.Fields(fmt.Sprint(line))
		if method := fields[len(fields)-1]; method == "trust" || fields[0] == "host" && method != "reject" {
			t.Errorf("pg_hba lets in without password or TLS: %v", fields)
		}
	}
	if last := strings.Fields(fmt.Sprint(hba[len(hba)-1])); last[len(last)-1] != "reject" {
		t.Errorf("pg_hba ends with %v, want a refusal", last)
	}
}

// TestTheAddressFollowsThePrimary parses the address as the driver of brokers and gateways does.
func TestTheAddressFollowsThePrimary(t *testing.T) {
	t.Parallel()
	// The authority's file is where it will run.
	dsn, _, cut := strings.Cut(strings.TrimSpace(read(t, "patroni/queengate.dsn")), "&sslrootcert=")
	if !cut || !strings.Contains(dsn, "sslmode=verify-full") {
		t.Errorf("the address is %s, want one that verifies the server", dsn)
	}
	pc, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]bool{pc.Host: true}
	for _, f := range pc.Fallbacks {
		hosts[f.Host] = true
	}
	if len(hosts) != 3 || pc.ValidateConnect == nil || pc.TLSConfig == nil || pc.ConnectTimeout != 3*time.Second {
		t.Errorf("got the hosts %v with ValidateConnect %v: want three, a check that the session can write, TLS and 3 s to connect", hosts, pc.ValidateConnect != nil)
	}
}
