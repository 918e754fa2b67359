// Package deploy tests what operators are handed: the files in this folder and docs/operations. Every variable, flag,
// command, port, path and metric that they name is held against the program itself. It holds only tests.
package deploy

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/queengate/queengate/internal/launch"
)

// runtimeVariables are Go's own, which every program has.
var runtimeVariables = []string{"GOMEMLIMIT", "GOGC"}

// bin is the program, built once.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "queengate-deploy-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		// The program of systemd-analyze is another user's now and then.
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		ctx, cancel := launch.Deadline(5 * time.Minute)
		defer cancel()
		if bin, err = launch.Build(ctx, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// run calls the program with nothing in its environment but env and returns what it wrote.
func run(env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append([]string{"HOME=/nonexistent"}, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("queengate %s: %w\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// decode reads every document of a YAML text into new values of T: unknown and repeated keys are errors.
func decode[T any](t *testing.T, name, text string) []T {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(text))
	dec.KnownFields(true)
	var docs []T
	for {
		var doc T
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		docs = append(docs, doc)
	}
}

// settings are the program's variables, those of them that hold secrets, and the flags of each command.
type settings struct {
	variables, secrets map[string]bool
	flags              map[string][]string
}

// known is what the program says of itself: docs/config.md is generated from its declarations, which a test of theirs
// sees to, and the rest is its own help.
var known = sync.OnceValues(func() (*settings, error) {
	s := &settings{variables: map[string]bool{"QUEENGATE_CONFIG": true}, secrets: map[string]bool{}, flags: map[string][]string{}}
	reference, err := os.ReadFile("../docs/config.md")
	if err != nil {
		return nil, err
	}
	for _, m := range regexp.MustCompile("`([A-Z][A-Z0-9_]+)`").FindAllStringSubmatch(string(reference), -1) {
		s.variables[m[1]] = true
		if bare, ok := strings.CutSuffix(m[1], "_FILE"); ok && s.variables[bare] {
			s.secrets[bare] = true
		}
	}
	help, err := run(nil, "help")
	if err != nil {
		return nil, err
	}
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+) {2,}`).FindAllStringSubmatch(help, -1) {
		s.flags[m[1]] = nil
		if m[1] == "version" || m[1] == "check-config" {
			continue
		}
		usage, err := run(nil, m[1], "-h")
		if err != nil {
			return nil, err
		}
		for _, f := range regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(usage, -1) {
			s.flags[m[1]] = append(s.flags[m[1]], f[1])
		}
	}
	if len(s.variables) < 50 || len(s.secrets) < 5 || len(s.flags["bootstrap"]) < 6 {
		return nil, fmt.Errorf("the program's description was not understood: %d variables, %d secrets, %v", len(s.variables), len(s.secrets), s.flags)
	}
	return s, nil
})

func program(t *testing.T) *settings {
	t.Helper()
	s, err := known()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkInvocation holds a command line of the program, without its name, against the program's help.
func (s *settings) checkInvocation(line []string) error {
	if len(line) == 0 {
		return errors.New("queengate: no command")
	}
	flags, ok := s.flags[line[0]]
	if !ok {
		return fmt.Errorf("queengate has no command %q", line[0])
	}
	for _, word := range line[1:] {
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && !slices.Contains(flags, name) {
			return fmt.Errorf("queengate %s has no flag --%s", line[0], name)
		}
	}
	return nil
}

// samples writes a file for each secret that a part reads, each acceptable to the program, and returns the folder.
func samples(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	privateDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	publicDER, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"QUEENGATE_POSTGRES_DSN_FILE":                "postgres://queen:secret@db-1:5432,db-2:5432/queen?target_session_attrs=read-write",
		"QUEENGATE_POSTGRES_CONTROL_DSN_FILE":        "postgres://queen:secret@db-1:5432/queen",
		"QUEENGATE_GATEWAY_CELL_KEY_FILE":            string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: privateDER})),
		"QUEENGATE_BROKER_CELL_KEYS":                 string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER})),
		"QUEENGATE_MESH_SECRET_FILE":                 strings.Repeat("5a", 32),
		"QUEENGATE_REDIS_URL_FILE":                   "redis://:secret@redis:6379/0",
		"QUEENGATE_BROKER_ENCRYPTION_KEY_FILE":       strings.Repeat("0123456789abcdef", 4),
		"QUEENGATE_BROKER_ENCRYPTION_READ_KEYS_FILE": strings.Repeat("fedcba9876543210", 4),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// checkEnvironment lets the program judge the environment of one of its commands. Files that exist only where it will run
// are replaced by samples; that the deployment puts them there is the caller's business.
func checkEnvironment(t *testing.T, command string, env map[string]string) {
	t.Helper()
	s, dir := program(t), samples(t)
	var list []string
	for name, value := range env {
		switch {
		case s.secrets[name]:
			// The address of a server that wants no password is not one.
			if strings.Contains(value, "@") || !strings.Contains(value, "://") {
				t.Errorf("%s: %s holds a secret in clear: want %s_FILE", command, name, name)
			}
		case slices.Contains(runtimeVariables, name):
			continue
		case strings.HasSuffix(name, "_FILE") && s.secrets[strings.TrimSuffix(name, "_FILE")], name == "QUEENGATE_BROKER_CELL_KEYS":
			sample := filepath.Join(dir, name)
			if _, err := os.Stat(sample); err != nil {
				t.Fatalf("%s: there is no sample of %s", command, name)
			}
			value = sample
		}
		list = append(list, name+"="+value)
	}
	if _, err := run(list, command, "--check-config"); err != nil {
		t.Errorf("the environment of %s: %v", command, err)
	}
}

// drain is how long the settings in env let a part take to stop.
func drain(t *testing.T, command string, env map[string]string) time.Duration {
	t.Helper()
	var sum time.Duration
	for _, what := range []string{"DELAY", "TIME"} {
		name := "QUEENGATE_" + strings.ToUpper(command) + "_DRAIN_" + what
		d, err := time.ParseDuration(env[name])
		if err != nil {
			t.Errorf("%s must be set where a limit of the whole stop is set too: %v", name, err)
		}
		sum += d
	}
	return sum
}

// stopBudget reads what a process gives itself to stop, in all.
func stopBudget(t *testing.T) time.Duration {
	t.Helper()
	m := regexp.MustCompile(`const stopBudget = (\d+) \* time\.Second`).FindStringSubmatch(read(t, "../cmd/queengate/parts.go"))
	if m == nil {
		t.Fatal("cmd/queengate/parts.go has no stopBudget in seconds any more")
	}
	d, err := time.ParseDuration(m[1] + "s")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// files yields the texts of this folder and of docs/operations, tests apart, by path.
func files(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, root := range []string{".", "../docs/operations"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (path == "compose/secrets" || path == "rel"): // made by its user; a module of tests
				return filepath.SkipDir
			case d.IsDir(), strings.HasSuffix(path, "_test.go"):
				return nil
			}
			text, err := os.ReadFile(path)
			out[path] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d files were found", len(out))
	}
	return out
}
