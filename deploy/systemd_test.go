package deploy

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// unit is a unit file: the values of each key, in order, by section.
type unit map[string]map[string][]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	u, section := unit{}, ""
	for line := range strings.Lines(read(t, name)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
			u[section] = map[string][]string{}
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || section == "" {
				t.Fatalf("%s: %q is no setting", name, line)
			}
			u[section][key] = append(u[section][key], value)
		}
	}
	return u
}

// environment is what a unit sets, each value with its specifiers.
func (u unit) environment(t *testing.T) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, kv := range u["Service"]["Environment"] {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			t.Errorf("Environment=%s", kv)
		}
		env[name] = value
	}
	return env
}

// readEnv reads an environment file.
func readEnv(t *testing.T, name string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line := range strings.Lines(read(t, name)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if _, again := env[key]; !ok || again {
			t.Errorf("%s: %q", name, line)
		}
		env[key] = value
	}
	return env
}

// parts are the units that serve, with the example files of their environment and the drop-ins they may have.
var parts = map[string]struct{ examples, dropIns []string }{
	"broker":  {[]string{"broker.env", "broker-1.env"}, []string{"broker-encryption.conf"}},
	"gateway": {[]string{"gateway.env"}, []string{"gateway-redis.conf", "gateway-tls.conf"}},
}

func TestUnitsRunTheProgramAsItWants(t *testing.T) {
	t.Parallel()
	for command, with := range parts {
		u := readUnit(t, "systemd/queengate-"+command+"@.service")
		own := u.environment(t)
		checkCredentials(t, command, u["Service"]["LoadCredential"], own)
		for n := range len(with.examples) {
			env := maps.Clone(own)
			for _, name := range with.examples[:n+1] {
				maps.Copy(env, readEnv(t, "systemd/examples/"+name))
			}
			for _, name := range with.dropIns {
				d := readUnit(t, "systemd/examples/"+name)
				checkCredentials(t, name, d["Service"]["LoadCredential"], d.environment(t))
				maps.Copy(env, d.environment(t))
			}
			for name, value := range env {
				env[name] = strings.NewReplacer("%S", "/var/lib", "%i", "1", "%d", "/run/credentials").Replace(value)
			}
			checkEnvironment(t, command, env)
			stop, err := time.ParseDuration(u["Service"]["TimeoutStopSec"][0] + "s")
			if need := max(drain(t, command, env), stopBudget(t)); err != nil || stop <= need {
				t.Errorf("%s: killed after %s, and the stop may take %s (%v)", command, stop, need, err)
			}
		}
		want := map[string]string{
			"Type": "exec", "KillSignal": "SIGTERM", "Restart": "always", "RestartPreventExitStatus": "2", "DynamicUser": "yes",
			"ProtectSystem": "strict", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "LimitNOFILE": "262144",
		}
		for key, value := range want {
			if got := u["Service"][key]; !slices.Equal(got, []string{value}) {
				t.Errorf("%s: %s = %v, want %s", command, key, got, value)
			}
		}
		// The program sends no sign of life to systemd, and would be killed for it.
		if u["Service"]["WatchdogSec"] != nil {
			t.Errorf("%s has a watchdog that nobody feeds", command)
		}
	}
	migrate := readUnit(t, "systemd/queengate-migrate.service")
	checkEnvironment(t, "migrate", migrate.environment(t))
	checkCredentials(t, "migrate", migrate["Service"]["LoadCredential"], migrate.environment(t))
}

// checkCredentials sees to it that each credential that is used is loaded, and the other way round.
func checkCredentials(t *testing.T, name string, loads []string, env map[string]string) {
	t.Helper()
	var loaded, used []string
	for _, l := range loads {
		id, file, _ := strings.Cut(l, ":")
		if file != "/etc/queengate/keys/"+id {
			t.Errorf("%s: the credential %s comes from %s", name, id, file)
		}
		loaded = append(loaded, id)
	}
	for _, value := range env {
		if id, ok := strings.CutPrefix(value, "%d/"); ok {
			used = append(used, id)
		}
	}
	slices.Sort(loaded)
	slices.Sort(used)
	if !slices.Equal(loaded, used) {
		t.Errorf("%s loads the credentials %v and uses %v", name, loaded, used)
	}
}

func TestWhatAUnitKeepsIsInItsStateFolder(t *testing.T) {
	t.Parallel()
	for unit, variable := range map[string]string{"broker": "QUEENGATE_BROKER_SPOOL_DIR", "gateway": "QUEENGATE_DATA"} {
		u := readUnit(t, "systemd/queengate-"+unit+"@.service")
		dir := u.environment(t)[variable]
		if state := u["Service"]["StateDirectory"]; len(state) != 1 || !strings.HasPrefix(dir+"/", "%S/"+state[0]+"/") || !strings.Contains(dir, "%i") {
			t.Errorf("%s: what must stay is in %s, and the state folder is %v", unit, dir, state)
		}
	}
}

func TestSystemdTakesTheUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze on the path")
	}
	names, err := filepath.Glob("systemd/*.service")
	if err != nil || len(names) != 3 {
		t.Fatalf("units: %v, %v", names, err)
	}
	dir := t.TempDir()
	for _, name := range names {
		// It wants the program to be there, and an instance to look at.
		text := strings.ReplaceAll(read(t, name), "/usr/local/bin/queengate", bin)
		copied := filepath.Join(dir, strings.Replace(filepath.Base(name), "@.", "@1.", 1))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(analyze, "verify", "--man=no", copied).CombinedOutput()
		// What it says of units of the machine is not about ours.
		ours := regexp.MustCompile(`(?m)^.*queengate.*$`).FindAllString(string(out), -1)
		if err != nil || len(ours) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
