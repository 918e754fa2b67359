package deploy

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/queengate/queengate/wire"
)

func TestEveryVariableIsOneOfTheProgram(t *testing.T) {
	t.Parallel()
	s := program(t)
	name := regexp.MustCompile(`\bQUEENGATE_[A-Z0-9_]*[A-Z0-9]`)
	seen := 0
	for path, text := range files(t) {
		for _, v := range name.FindAllString(text, -1) {
			seen++
			if !s.variables[v] {
				t.Errorf("%s names %s, which the program does not know", path, v)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d variables were found", seen)
	}
}

func TestEveryKeyOfTheSettingsFileIsOneOfTheProgram(t *testing.T) {
	t.Parallel()
	values, keys := decode[object](t, "values.yaml", read(t, chart+"/values.yaml"))[0], map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(read(t, "../docs/config.md"), -1) {
		keys[m[1]] = true
	}
	key := regexp.MustCompile(`\b(?:gateway|broker|mesh|postgres|redis|tls|log)\.[a-z][a-z_]*[a-z]\b`)
	endings := []string{".yaml", ".yml", ".json", ".md", ".sh", ".dsn", ".secret", ".password", ".pub", ".key", ".url", ".env", ".crt", ".tpl", ".conf"}
	for path, text := range files(t) {
		for _, k := range key.FindAllString(text, -1) {
			if keys[k] || slices.Contains(endings, filepath.Ext(k)) {
				continue
			}
			// Values of the chart are named in the same way.
			if !strings.HasPrefix(path, "helm/") && at[any](values, strings.Split(k, ".")...) == nil {
				t.Errorf("%s names the setting %s, which the program does not know", path, k)
			}
		}
	}
}

func TestEveryCommandLineIsOneOfTheProgram(t *testing.T) {
	t.Parallel()
	s, seen := program(t), 0
	for path, text := range files(t) {
		if filepath.Ext(path) == ".go" {
			continue
		}
		for _, line := range invocations(text) {
			seen++
			if err := s.checkInvocation(line); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d command lines were found", seen)
	}
}

// invocations returns the command lines of the program in a text, without its name: lines that begin with it, behind
// variables, sudo or ExecStart=, and what others are told to execute behind " -- ".
func invocations(text string) (lines [][]string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "ExecStart=")
		if _, inner, ok := strings.Cut(line, " -- "); ok {
			line = inner
		}
		words := strings.Fields(line)
		for len(words) > 0 && (strings.Contains(words[0], "=") || words[0] == "sudo") {
			words = words[1:]
		}
		if len(words) < 2 || words[0] != "queengate" && !strings.HasSuffix(words[0], "/queengate") {
			continue
		}
		// Prose goes on behind the name too, and templates are judged when they are rendered.
		if !regexp.MustCompile(`^[a-z-]+$`).MatchString(words[1]) || strings.Contains(line, "{{ end") {
			continue
		}
		end := slices.IndexFunc(words, func(w string) bool { return w == "#" || w == "|" || w == ">" || w == "&&" })
		if end < 0 {
			end = len(words)
		}
		lines = append(lines, words[1:end])
	}
	return lines
}

func TestInvocationsAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"queengate broker --ops x # why":                                 "broker --ops x",
		"A=b sudo /usr/local/bin/queengate migrate \\\n  --set broker":   "migrate --set broker",
		"kubectl exec x -- queengate bootstrap --cell a":                 "bootstrap --cell a",
		"helm install queengate deploy/helm":                             "",
		"ExecStart=/usr/local/bin/queengate gateway":                     "gateway",
		"the words queengate broker inside of a sentence are no command": "",
	} {
		got := ""
		for _, line := range invocations(text) {
			got += strings.Join(line, " ")
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	s := program(t)
	for _, bad := range []string{"fly", "broker --wings", "bootstrap --set x"} {
		if s.checkInvocation(strings.Fields(bad)) == nil {
			t.Errorf("queengate %s passes", bad)
		}
	}
}

// Routes and metrics that the texts name in passing; expressions are taken apart elsewhere.
func TestEveryPathAndMetricInTheTextsExists(t *testing.T) {
	t.Parallel()
	families := observed(t).families
	route := regexp.MustCompile("/api/v1/[a-z][a-z0-9/_-]*[a-z]")
	metric := regexp.MustCompile(`\b(?:queengate_(?:broker|proxy|quota|mesh|janitor|spool)|queen_(?:cluster|process|db_pool|pop|batch|file_buffer))_[a-z0-9_]*[a-z]\b`)
	for path, text := range files(t) {
		for _, r := range route.FindAllString(text, -1) {
			if !slices.ContainsFunc(wire.Routes, func(w wire.Route) bool { return w.Pattern == r }) {
				t.Errorf("%s names the route %s, which does not exist", path, r)
			}
		}
		for _, m := range metric.FindAllString(text, -1) {
			if families[m] == nil {
				t.Errorf("%s names the metric %s, which does not exist", path, m)
			}
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)

func TestLinksOfTheDocumentsLead(t *testing.T) {
	t.Parallel()
	for path, text := range files(t) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := path
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			if m[2] == "" {
				if matches, err := filepath.Glob(target); err != nil || len(matches) == 0 {
					t.Errorf("%s: the link to %s leads nowhere", path, m[1])
				}
				continue
			}
			if !slices.Contains(anchors(read(t, target)), m[2]) {
				t.Errorf("%s: %s has no section %s", path, target, m[2])
			}
		}
	}
}

// anchors are the names of a document's sections as they stand in links.
func anchors(text string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		names = append(names, regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(name, ""))
	}
	return names
}
