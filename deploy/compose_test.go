package deploy

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/datadir"
)

// composeFile is the part of the Compose specification that the file uses; anything else in it is an error.
type composeFile struct {
	Name       string
	Image      any            `yaml:"x-queengate"`
	Broker     any            `yaml:"x-broker"`
	BrokerEnv  map[string]any `yaml:"x-broker-environment"`
	Gateway    any            `yaml:"x-gateway"`
	GatewayEnv map[string]any `yaml:"x-gateway-environment"`
	Services   map[string]service
	Networks   map[string]struct{ Internal bool }
	Volumes    map[string]struct{}
	Secrets    map[string]struct{ File string }
}

type service struct {
	Image string
	Build struct{ Context, Dockerfile string }
	// Lists or one text.
	Command any

	Restart, User   string
	ReadOnly        bool          `yaml:"read_only"`
	CapDrop         []string      `yaml:"cap_drop"`
	SecurityOpt     []string      `yaml:"security_opt"`
	StopSignal      string        `yaml:"stop_signal"`
	StopGracePeriod time.Duration `yaml:"stop_grace_period"`
	ShmSize         string        `yaml:"shm_size"`
	Ulimits         map[string]struct{ Soft, Hard int }
	Logging         struct {
		Driver  string
		Options map[string]string
	}
	Profiles    []string
	Environment map[string]string
	Secrets     []string
	Networks    []string
	Volumes     []string
	Ports       []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck *struct {
		Test              []string
		Interval, Timeout time.Duration
		Retries           int
	}
}

// words is the command as a list.
func (s service) words() (words []string) {
	switch c := s.Command.(type) {
	case string:
		return strings.Fields(c)
	case []any:
		for _, w := range c {
			words = append(words, fmt.Sprint(w))
		}
	}
	return words
}

func (s service) ours() bool { return strings.HasPrefix(s.Image, "queengate:") }

func compose(t *testing.T) composeFile {
	t.Helper()
	return decode[composeFile](t, "compose.yaml", read(t, "compose/compose.yaml"))[0]
}

func TestComposeHoldsTogether(t *testing.T) {
	t.Parallel()
	c := compose(t)
	for name, s := range c.Services {
		for _, n := range s.Networks {
			if _, ok := c.Networks[n]; !ok {
				t.Errorf("%s: there is no network %s", name, n)
			}
		}
		for _, secret := range s.Secrets {
			if _, ok := c.Secrets[secret]; !ok {
				t.Errorf("%s: there is no secret %s", name, secret)
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(source, ".") {
				if _, err := os.Stat(filepath.Join("compose", source)); err != nil {
					t.Errorf("%s mounts what is not there: %v", name, err)
				}
			} else if _, ok := c.Volumes[source]; !ok {
				t.Errorf("%s: there is no volume %s", name, source)
			}
		}
		for other, d := range s.DependsOn {
			on, ok := c.Services[other]
			if !ok || d.Condition == "service_healthy" && on.Healthcheck == nil || d.Condition == "service_completed_successfully" && on.Restart != "no" {
				t.Errorf("%s waits for %s to be %s, which will not happen", name, other, d.Condition)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s opens %s to everybody", name, p)
			}
		}
		if len(s.Networks) == 0 || !s.ours() && !strings.Contains(s.Image, ":") {
			t.Errorf("%s lacks a network or a version of its image", name)
		}
		for variable, value := range s.Environment {
			if file, ok := strings.CutPrefix(value, "/run/secrets/"); ok && !slices.Contains(s.Secrets, file) {
				t.Errorf("%s: %s is a secret that it is not given", name, variable)
			}
		}
	}
}

func TestComposeRunsTheProgramAsItWants(t *testing.T) {
	t.Parallel()
	c, counts := compose(t), map[string]int{}
	for name, s := range c.Services {
		if !s.ours() {
			continue
		}
		words := s.words()
		counts[words[0]]++
		if err := program(t).checkInvocation(words); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkEnvironment(t, words[0], s.Environment)
		if !s.ReadOnly || s.User != "65532:65532" || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.SecurityOpt) == 0 {
			t.Errorf("%s may more than it must", name)
		}
		for _, dockerfile := range []string{filepath.Join("compose", s.Build.Context, s.Build.Dockerfile)} {
			if _, err := os.Stat(dockerfile); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if words[0] != "broker" && words[0] != "gateway" {
			continue
		}
		if need := max(drain(t, words[0], s.Environment), stopBudget(t)); s.StopGracePeriod <= need {
			t.Errorf("%s: killed after %s, and the stop may take %s", name, s.StopGracePeriod, need)
		}
		if s.DependsOn["migrate"].Condition != "service_completed_successfully" {
			t.Errorf("%s may meet an old schema", name)
		}
		if dir := s.Environment["QUEENGATE_BROKER_SPOOL_DIR"]; words[0] == "broker" && (len(s.Volumes) != 1 || !strings.HasSuffix(s.Volumes[0], ":"+path.Dir(dir))) {
			t.Errorf("%s: the spool %s is in no volume of its own: %v", name, dir, s.Volumes)
		}
	}
	if want := map[string]int{"broker": 3, "gateway": 2, "migrate": 1, "bootstrap": 1}; !maps.Equal(counts, want) {
		t.Errorf("got %v, want %v", counts, want)
	}
	if _, ok := c.Services["postgres"]; !ok || c.Services["redis"].Image == "" {
		t.Error("PostgreSQL or Redis is missing")
	}
}

func TestPartsOfComposeFindEachOther(t *testing.T) {
	t.Parallel()
	c := compose(t)
	var brokers, gateways []string
	spools := map[string]bool{}
	for name, s := range c.Services {
		switch {
		case s.ours() && s.words()[0] == "broker":
			brokers = append(brokers, name)
			spools[s.Volumes[0]] = true
		case s.ours() && s.words()[0] == "gateway":
			gateways = append(gateways, name)
		}
	}
	slices.Sort(brokers)
	slices.Sort(gateways)
	if len(spools) != len(brokers) {
		t.Errorf("%d brokers share %d spools", len(brokers), len(spools))
	}
	b := c.Services[brokers[0]]
	if got := b.Environment["QUEENGATE_MESH_PEERS"]; got != strings.Join(brokers, ",") {
		t.Errorf("the peers are %s, want %v", got, brokers)
	}
	port := b.Environment["QUEENGATE_BROKER_ADDR"]
	if want := "--base-url=http://" + strings.Join(brokers, port+",http://") + port; !slices.Contains(c.Services["bootstrap"].words(), want) {
		t.Errorf("bootstrap says %v, want %s", c.Services["bootstrap"].words(), want)
	}
	if want := "--cell=" + b.Environment["QUEENGATE_BROKER_CELL"]; !slices.Contains(c.Services["bootstrap"].words(), want) {
		t.Errorf("bootstrap says %v, want %s", c.Services["bootstrap"].words(), want)
	}
	hosts := map[string]bool{}
	for _, name := range gateways {
		g := c.Services[name]
		_, mapping, _ := strings.Cut(g.Ports[0], ":")
		host, inner, _ := strings.Cut(mapping, ":")
		if ":"+inner != g.Environment["QUEENGATE_HTTP"] || hosts[host] {
			t.Errorf("%s: port %s, and it listens on %s", name, g.Ports[0], g.Environment["QUEENGATE_HTTP"])
		}
		hosts[host] = true
	}
	scrapes := decode[prometheusFile](t, "prometheus.yml", read(t, "prometheus/prometheus.yml"))[0].ScrapeConfigs
	targets := map[string][]string{}
	for _, s := range scrapes {
		targets[s.JobName] = s.StaticConfigs[0].Targets
		for _, target := range s.StaticConfigs[0].Targets {
			host, _, _ := strings.Cut(target, ":")
			if _, ok := c.Services[host]; !ok {
				t.Errorf("Prometheus asks %s, which is no service", target)
			}
		}
	}
	for job, parts := range map[string][]string{"queengate-broker": brokers, "queengate-gateway": gateways} {
		want := []string{}
		for _, name := range parts {
			want = append(want, name+c.Services[name].Environment["QUEENGATE_OPS"])
		}
		if !slices.Equal(targets[job], want) {
			t.Errorf("Prometheus asks %v for %s, want %v", targets[job], job, want)
		}
	}
	// A connection for each that may be open at once, and some for people.
	connections := len(brokers)*33 + len(gateways)*8
	m := regexp.MustCompile(`max_connections=(\d+)`).FindStringSubmatch(strings.Join(c.Services["postgres"].words(), " "))
	if m == nil {
		t.Fatal("PostgreSQL has no max_connections")
	}
	var most int
	if _, err := fmt.Sscan(m[1], &most); err != nil || most < connections+20 {
		t.Errorf("PostgreSQL has %s connections, and the pools take %d", m[1], connections)
	}
}

// TestTheSecretsScriptMakesWhatComposeWants runs it twice: the second time it changes nothing.
func TestTheSecretsScriptMakesWhatComposeWants(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl on the path")
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "secrets.sh")
	if err := os.WriteFile(script, []byte(read(t, "compose/secrets.sh")), 0o700); err != nil {
		t.Fatal(err)
	}
	made := map[string]string{}
	for range 2 {
		if out, err := exec.Command(script).CombinedOutput(); err != nil {
			t.Fatalf("secrets.sh: %v\n%s", err, out)
		}
		for name, s := range compose(t).Secrets {
			text := read(t, filepath.Join(dir, s.File))
			if made[name] != "" && made[name] != text {
				t.Errorf("the second run changed %s", name)
			}
			made[name] = text
		}
	}
	key, err := datadir.ParseCellKey([]byte(made["cell.key"]))
	if err != nil {
		t.Fatal(err)
	}
	public, err := datadir.ParseCellPublicKey([]byte(made["cell.pub"]))
	if err != nil || !public.Equal(key.Public()) {
		t.Errorf("the public key is not that of the private one: %v", err)
	}
	if !strings.Contains(made["postgres.dsn"], strings.TrimSpace(made["postgres.password"])+"@postgres:5432/") {
		t.Error("the address of PostgreSQL does not carry its password")
	}
	if len(strings.TrimSpace(made["mesh.secret"])) != 64 {
		t.Errorf("the secret of the mesh has %d characters, want 64", len(strings.TrimSpace(made["mesh.secret"])))
	}
	if out, err := exec.Command("git", "check-ignore", "-q", "compose/secrets/cell.key").CombinedOutput(); err != nil {
		t.Errorf("a made key could be committed: %v %s", err, out)
	}
}

func TestTheImageFits(t *testing.T) {
	t.Parallel()
	dockerfile := read(t, "container/Dockerfile")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))[1]
	for _, want := range []string{"FROM golang:" + version + "-", "USER 65532:65532\n", `ENTRYPOINT ["/usr/local/bin/queengate"]`, "STOPSIGNAL SIGTERM"} {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
	exposed := strings.Fields(regexp.MustCompile(`(?m)^EXPOSE (.+)$`).FindStringSubmatch(dockerfile)[1])
	for name, s := range compose(t).Services {
		if !s.ours() {
			continue
		}
		for variable, value := range s.Environment {
			if port, ok := strings.CutPrefix(value, ":"); ok && !slices.Contains(exposed, port) {
				t.Errorf("%s: %s = %s, and the image exposes %v", name, variable, value, exposed)
			}
		}
	}
	if !strings.Contains(read(t, "../.dockerignore"), "deploy/compose/secrets") {
		t.Error("made keys would be sent to the build")
	}
}
