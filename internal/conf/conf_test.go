package conf

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// world is a small program's configuration.
type world struct {
	Addr     string
	Slots    int
	Grace    time.Duration
	Mode     string
	Hosts    []string
	Debug    bool
	Password Secret
	Other    int
}

func settings(c *world) *Set {
	*c = world{Addr: "127.0.0.1:80", Slots: 10, Grace: time.Second, Mode: "enforce", Other: 1}
	var s Set
	s.Section("", "General.", "run", "other")
	s.Bool(&c.Debug, "debug", "Tells more.")
	s.Section("quota", "Limits.", "run")
	s.Addr(&c.Addr, "addr", "Where it listens.", Flag("addr"), EnvFunc(func(get func(string) string) (string, error) {
		host, port := get("OLD_HOST"), get("OLD_PORT")
		if host == "" {
			host = "0.0.0.0"
		}
		if port == "" {
			port = "1"
		}
		if host == "bad" {
			return "", errors.New("OLD_HOST = bad: want another")
		}
		return host + ":" + port, nil
	}, "OLD_PORT", "OLD_HOST"))
	Int(&s, &c.Slots, "slots_max", "Most slots.", 1, 100, Flag("slots"), Env("OLD_SLOTS"))
	s.Duration(&c.Grace, "grace", "How long.", 0, time.Minute)
	s.Enum(&c.Mode, "mode", "What then.", []string{"enforce", "off"})
	s.List(&c.Hosts, "hosts", "Names.")
	s.Secret(&c.Password, "password", "Of the database.")
	s.Check(func() error {
		if c.Mode == "off" && c.Slots > 50 {
			return errors.New("quota.slots_max: at most 50 while quota.mode is off")
		}
		return nil
	})
	s.Section("other", "Of another command.", "other")
	Int(&s, &c.Other, "number", "Not ours.", 1, 5, Flag("number"))
	return &s
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLaterSourcesWin(t *testing.T) {
	t.Parallel()
	file := write(t, "c.yaml", "quota:\n  slots_max: 20\n  grace: 2s\n  hosts: [a.example, b.example]\ndebug: yes\n")
	var c world
	_, err := settings(&c).Load("run", []string{"--config", file, "--slots", "40"},
		[]string{"QUEENGATE_QUOTA_SLOTS_MAX=30", "QUEENGATE_QUOTA_GRACE=3s", "OLD_SLOTS=35", "QUEENGATE_TEST_POSTGRES=x", "PATH=/bin"}, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := world{Addr: "127.0.0.1:80", Slots: 40, Grace: 3 * time.Second, Mode: "enforce", Hosts: []string{"a.example", "b.example"}, Debug: true, Other: 1}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNamesOfTheExistingSystemAreHonouredBelowOurs(t *testing.T) {
	t.Parallel()
	for rule, tc := range map[string]struct {
		env  []string
		addr string
	}{
		"alone":                     {[]string{"OLD_PORT=7"}, "0.0.0.0:7"},
		"together":                  {[]string{"OLD_PORT=7", "OLD_HOST=::1"}, "::1:7"},
		"one of several":            {[]string{"OLD_HOST=h"}, "h:1"},
		"ours wins":                 {[]string{"OLD_PORT=7", "QUEENGATE_QUOTA_ADDR=:9"}, ":9"},
		"an empty one is not there": {[]string{"OLD_PORT=", "QUEENGATE_QUOTA_ADDR="}, "127.0.0.1:80"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			var c world
			_, err := settings(&c).Load("run", nil, tc.env, io.Discard, nil)
			if rule == "together" {
				if err == nil || !strings.Contains(err.Error(), "OLD_PORT, OLD_HOST") {
					t.Errorf("a value that makes no address: got %v, want a problem that names the variables", err)
				}
				return
			}
			if err != nil || c.Addr != tc.addr {
				t.Errorf("got %q, %v, want %q", c.Addr, err, tc.addr)
			}
		})
	}
}

func TestEveryProblemIsReportedWithKeyValueBoundAndOrigin(t *testing.T) {
	t.Parallel()
	file := write(t, "c.yaml", "quota:\n  slots_max: -1\n  slot: 3\n  mode: maybe\nquota.grace: 1s\nquota.grace: 2s\nlist: {a: 1}\n")
	var c world
	_, err := settings(&c).Load("run", []string{"--config", file, "--addr", "nowhere"},
		[]string{"QUEENGATE_QUOTA_GRACE=1h", "QUEENGATE_QUOTA_SLOT=3", "QUEENGATE_QUOTA_PASSWORD_FILE=/nonexistent"}, io.Discard, nil)
	if err == nil {
		t.Fatal("want problems")
	}
	got := strings.Split(strings.ReplaceAll(err.Error(), file, "c.yaml"), "\n")
	want := []string{
		"environment QUEENGATE_QUOTA_SLOT: no such setting",
		"list.a: no such setting (c.yaml line 7)",
		"quota.addr = nowhere: want host:port, or off (flag --addr)",
		"quota.grace = 1h: want 0s..1m0s, with its unit (environment QUEENGATE_QUOTA_GRACE)",
		"quota.grace: set twice (c.yaml line 6)",
		"quota.mode = maybe: want one of enforce, off (c.yaml line 4)",
		"quota.password: open /nonexistent: no such file or directory (environment QUEENGATE_QUOTA_PASSWORD_FILE)",
		"quota.slot: no such setting (c.yaml line 3)",
		"quota.slots_max = -1: want 1..100 (c.yaml line 2)",
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRulesOverSeveralSettingsBindTheirCommands(t *testing.T) {
	t.Parallel()
	env := []string{"QUEENGATE_QUOTA_MODE=off", "QUEENGATE_QUOTA_SLOTS_MAX=60"}
	var c world
	if _, err := settings(&c).Load("run", nil, env, io.Discard, nil); err == nil || !strings.Contains(err.Error(), "at most 50") {
		t.Errorf("got %v, want the broken rule", err)
	}
	if _, err := settings(&c).Load("other", nil, env, io.Discard, nil); err != nil {
		t.Errorf("a command that does not read the section: %v", err)
	}
}

func TestFlagsOfAnotherCommandAreUnknown(t *testing.T) {
	t.Parallel()
	var c world
	if _, err := settings(&c).Load("run", []string{"--number", "3"}, nil, io.Discard, nil); err == nil {
		t.Error("want an error")
	}
	if _, err := settings(&c).Load("run", []string{"-h"}, nil, io.Discard, nil); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: got %v, want flag.ErrHelp", err)
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	var c world
	s := settings(&c)
	file := write(t, "secret", "hunter2\n")
	if _, err := s.Load("run", nil, []string{"QUEENGATE_QUOTA_PASSWORD_FILE=" + file}, io.Discard, nil); err != nil {
		t.Fatal(err)
	}
	if c.Password.Reveal() != "hunter2" {
		t.Fatalf("got %q, want hunter2", c.Password.Reveal())
	}
	var printed strings.Builder
	if err := s.Print(&printed, "run"); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for form, text := range map[string]string{
		"%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", c), "%#v": fmt.Sprintf("%#v", c), "%s": fmt.Sprintf("%s", c.Password),
		"%x": fmt.Sprintf("%x", c.Password), "%q": fmt.Sprintf("%q", c.Password), "JSON": string(asJSON), "--print-config": printed.String(),
	} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "68756e74") || !strings.Contains(text, redacted) {
			t.Errorf("%s: got %s", form, text)
		}
	}
	bad := write(t, "c.yaml", "quota: {password: {x: hunter2}}")
	if _, err := settings(&c).Load("run", []string{"--config", bad}, nil, io.Discard, nil); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a misplaced secret: got %v", err)
	}
}

func TestPrintedSettingsLoadAsTheSame(t *testing.T) {
	t.Parallel()
	var c, again world
	s := settings(&c)
	if _, err := s.Load("run", []string{"--slots", "7"}, []string{"QUEENGATE_QUOTA_HOSTS=a, b"}, io.Discard, nil); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := s.Print(&text, "run"); err != nil {
		t.Fatal(err)
	}
	if _, err := settings(&again).Load("run", []string{"--config", write(t, "c.yaml", text.String())}, nil, io.Discard, nil); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	if diff := cmp.Diff(c, again); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("quota:\n  slots_max: 20\n  hosts: [a, b]\n")
	f.Add("a: &x 1\nb: *x\n")
	f.Add("? [a]\n: b\n")
	f.Fuzz(func(t *testing.T, text string) {
		var c world
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := settings(&c).Load("run", []string{"--config", path}, nil, io.Discard, nil); err == nil && (c.Slots < 1 || c.Slots > 100) {
			t.Errorf("a value out of bounds was taken: %d", c.Slots)
		}
	})
}

func TestAnEmptyVariableIsAValueWhereItCounts(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		environ []string
		want    string
	}{
		"absent":           {nil, "a,b a,b"},
		"empty":            {[]string{"QUEENGATE_COUNTS=", "QUEENGATE_USUAL="}, " a,b"},
		"the other's name": {[]string{"OLD_COUNTS=", "OLD_USUAL="}, " a,b"},
		"ours above it":    {[]string{"OLD_COUNTS=", "QUEENGATE_COUNTS=c"}, "c a,b"},
	} {
		counts, usual := []string{"a", "b"}, []string{"a", "b"}
		var s Set
		s.Section("", "Lists.", "x")
		s.List(&counts, "counts", "A list.", Env("OLD_COUNTS"), EmptyCounts())
		s.List(&usual, "usual", "A list.", Env("OLD_USUAL"))
		if _, err := s.Load("x", nil, c.environ, io.Discard, nil); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(counts, ",") + " " + strings.Join(usual, ","); got != c.want {
			t.Errorf("%s: got %q, want %q", rule, got, c.want)
		}
	}
}

func TestVariablesWithoutEffectAreReportedToTheirCommands(t *testing.T) {
	t.Parallel()
	var c world
	s := settings(&c)
	s.Inert("nothing", "OLD_DEAD", "OLD_FAMILY_*") // of the section of "other"
	env := []string{"OLD_DEAD=1", "OLD_FAMILY_A=", "OLD_FAMILY_B=2", "OLD_DEADLY=3"}
	req, err := s.Load("other", nil, env, io.Discard, nil)
	if diff := cmp.Diff([]Inert{{"OLD_DEAD", "nothing"}, {"OLD_FAMILY_B", "nothing"}}, req.Inert); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if req, err := s.Load("run", nil, env, io.Discard, nil); err != nil || len(req.Inert) > 0 {
		t.Errorf("another command: got %v, %v", req.Inert, err)
	}
	var doc strings.Builder
	if err := s.Markdown(&doc); err != nil || !strings.Contains(doc.String(), "| `OLD_DEAD` | no effect: nothing |\n") || !strings.Contains(doc.String(), "| `OLD_SLOTS` | `quota.slots_max` |\n") {
		t.Errorf("%v in the reference:\n%s", err, doc.String())
	}
}

func TestAProblemOfOldVariablesIsReportedAsItIs(t *testing.T) {
	t.Parallel()
	var c world
	_, err := settings(&c).Load("run", nil, []string{"OLD_HOST=bad"}, io.Discard, nil)
	if want := "quota.addr: OLD_HOST = bad: want another (environment OLD_PORT, OLD_HOST)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestALongTextMayStandInAFileAndPrints(t *testing.T) {
	t.Parallel()
	var c world
	var text string
	s := settings(&c)
	s.Section("tls", "TLS.", "run")
	s.Text(&text, "ca", "PEM.")
	file := write(t, "ca.pem", "line 1\nline 2\n")
	if _, err := s.Load("run", nil, []string{"QUEENGATE_TLS_CA_FILE=" + file}, io.Discard, nil); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := s.Print(&printed, "run"); err != nil || text != "line 1\nline 2" || !strings.Contains(printed.String(), `ca: "line 1\nline 2"`) {
		t.Errorf("%v: got %q, printed\n%s", err, text, printed.String())
	}
}
