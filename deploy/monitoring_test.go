package deploy

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/wire"
)

// knownCodes holds the codes in a matcher against the catalogue.
func knownCodes(matcher string) error {
	for code := range strings.SplitSeq(strings.TrimLeft(matcher, "=!~"), "|") {
		if code != "" && !slices.Contains(wire.Codes(), wire.Code(code)) {
			return fmt.Errorf("the catalogue has no code %s", code)
		}
	}
	return nil
}

type alertFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

const runbook = "docs/operations/runbook.md"

func TestAlertsAreOnWhatExistsAndLeadToTheRunbook(t *testing.T) {
	t.Parallel()
	families := observed(t).families
	doc := decode[alertFile](t, "prometheus/alerts.yml", read(t, "prometheus/alerts.yml"))[0]
	sections, named := anchors(read(t, filepath.Join("..", runbook))), map[string]bool{}
	used := regexp.MustCompile(`\$labels\.([a-z_]+)`)
	for _, g := range doc.Groups {
		for _, r := range g.Rules {
			labels, err := families.check(r.Expr)
			if err != nil {
				t.Errorf("%s: %v", r.Alert, err)
				continue
			}
			for _, m := range used.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
				if !labels[m[1]] {
					t.Errorf("%s: its text uses the label %s, which it does not have", r.Alert, m[1])
				}
			}
			if r.For != "" {
				if _, err := time.ParseDuration(r.For); err != nil {
					t.Errorf("%s: %v", r.Alert, err)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: want a severity, a summary and a description", r.Alert)
			}
			section, anchor, _ := strings.Cut(r.Annotations["runbook"], "#")
			if section != runbook || anchor != strings.ToLower(r.Alert) || !slices.Contains(sections, anchor) {
				t.Errorf("%s: its runbook is %s#%s, want a section of its name in %s", r.Alert, section, anchor, runbook)
			}
			if named[r.Alert] {
				t.Errorf("%s is there twice", r.Alert)
			}
			named[r.Alert] = true
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllStringSubmatch(read(t, filepath.Join("..", runbook)), -1) {
		if !named[m[1]] {
			t.Errorf("%s has a section %s, and no alert", runbook, m[1])
		}
	}
	if len(named) < 20 {
		t.Errorf("only %d alerts were found", len(named))
	}
}

func TestEveryAlertOnACounterCanFire(t *testing.T) {
	t.Parallel()
	doc := decode[alertFile](t, "prometheus/alerts.yml", read(t, "prometheus/alerts.yml"))[0]
	bare := regexp.MustCompile(`(?:^|[^(a-z_])([a-z_]+_total)(?:\{[^}]*\})?(?:[^\[{a-z_]|$)`)
	for _, g := range doc.Groups {
		for _, r := range g.Rules {
			if m := bare.FindStringSubmatch(r.Expr); m != nil {
				t.Errorf("%s compares the counter %s itself: want its rate or increase", r.Alert, m[1])
			}
		}
	}
}

type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID          int
		Type, Title string
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ Expr, LegendFormat string }
	}
	Templating struct {
		List []struct {
			Name       string
			Definition string
		}
	}
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	names, err := filepath.Glob("grafana/dashboards/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	out := map[string]dashboard{}
	for _, name := range names {
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, name)), &d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = d
	}
	return out
}

func TestDashboardsShowWhatExists(t *testing.T) {
	t.Parallel()
	families := observed(t).families
	used := regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)
	for name, d := range dashboards(t) {
		if d.UID+".json" != filepath.Base(name) || d.Title == "" {
			t.Errorf("%s: its uid is %q, want the file's name", name, d.UID)
		}
		ids := map[int]bool{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the id %d", name, p.ID)
			}
			ids[p.ID] = true
			if p.Type != "row" && len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 {
				t.Errorf("%s: %s shows nothing or lies outside of the grid", name, p.Title)
			}
			for _, target := range p.Targets {
				expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(target.Expr)
				labels, err := families.check(expr)
				if err != nil {
					t.Errorf("%s: %s: %v", name, p.Title, err)
					continue
				}
				for _, m := range used.FindAllStringSubmatch(target.LegendFormat, -1) {
					if !labels[m[1]] {
						t.Errorf("%s: %s: its legend uses the label %s, which it does not have", name, p.Title, m[1])
					}
				}
			}
		}
		for i, p := range d.Panels {
			for _, q := range d.Panels[i+1:] {
				a, b := p.GridPos, q.GridPos
				if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("%s: %s and %s lie on each other", name, p.Title, q.Title)
				}
			}
		}
		for _, v := range d.Templating.List {
			if v.Definition == "" {
				continue
			}
			m := regexp.MustCompile(`^label_values\((.+), ([a-z_]+)\)$`).FindStringSubmatch(v.Definition)
			if m == nil {
				t.Errorf("%s: variable %s: %q is not understood", name, v.Name, v.Definition)
				continue
			}
			if labels, err := families.check(m[1]); err != nil || !labels[m[2]] {
				t.Errorf("%s: variable %s: label %s: %v", name, v.Name, m[2], err)
			}
		}
	}
}

type prometheusFile struct {
	Global        map[string]string
	RuleFiles     []string `yaml:"rule_files"`
	ScrapeConfigs []struct {
		JobName       string                       `yaml:"job_name"`
		StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
	} `yaml:"scrape_configs"`
}

// Jobs are named where they are scraped and meant where they are asked for.
func TestJobsOfExpressionsAreScraped(t *testing.T) {
	t.Parallel()
	doc := decode[prometheusFile](t, "prometheus/prometheus.yml", read(t, "prometheus/prometheus.yml"))[0]
	jobs := map[string]bool{}
	for _, s := range doc.ScrapeConfigs {
		jobs[s.JobName] = true
	}
	job := regexp.MustCompile(`job=\\?"([a-z-]+)\\?"`)
	found := 0
	for path, text := range files(t) {
		if ext := filepath.Ext(path); ext != ".yml" && ext != ".json" {
			continue
		}
		for _, m := range job.FindAllStringSubmatch(text, -1) {
			found++
			if !jobs[m[1]] {
				t.Errorf("%s asks for the job %s, which nobody scrapes", path, m[1])
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d jobs were found", found)
	}
}

func TestProvisioningOfGrafanaIsRead(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"grafana/provisioning/datasources/prometheus.yaml", "grafana/provisioning/dashboards/queengate.yaml"} {
		if doc := decode[map[string]any](t, name, read(t, name)); len(doc) != 1 || doc[0]["apiVersion"] != 1 {
			t.Errorf("%s: got %v", name, doc)
		}
	}
}
