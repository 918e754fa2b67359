package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const chart = "helm/queengate"

// object is a rendered object of Kubernetes.
type object = map[string]any

func kindOf(o object) string { return at[string](o, "kind") }
func nameOf(o object) string { return at[string](o, "metadata", "name") }

// at returns the value at a path of nested maps, the zero value when there is none.
func at[T any](v any, path ...string) T {
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	out, _ := v.(T)
	return out
}

// render renders the chart with values over its own, which are a YAML text, into its objects.
func render(t *testing.T, release, values string) ([]object, error) {
	t.Helper()
	texts, err := renderTexts(t, release, values)
	var objects []object
	for name, text := range texts {
		if filepath.Ext(name) == ".yaml" {
			objects = append(objects, decode[object](t, name, text)...)
		}
	}
	return sorted(objects), err
}

// renderNotes renders what is shown after an installation.
func renderNotes(t *testing.T, values string) string {
	t.Helper()
	texts, err := renderTexts(t, "cell", values)
	if err != nil {
		t.Fatal(err)
	}
	return texts["NOTES.txt"]
}

// renderTexts executes every template. It knows the few functions of Helm that they use, and the schema is not its
// business: with Helm on the path both ways are compared.
func renderTexts(t *testing.T, release, values string) (map[string]string, error) {
	t.Helper()
	merged := map[string]any{}
	for _, text := range []string{read(t, chart+"/values.yaml"), values} {
		for _, doc := range decode[map[string]any](t, "values", text) {
			merge(merged, doc)
		}
	}
	about := decode[map[string]any](t, "Chart.yaml", read(t, chart+"/Chart.yaml"))[0]
	data := map[string]any{
		"Values":  merged,
		"Chart":   map[string]any{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Release": map[string]any{"Name": release, "Namespace": "default", "Service": "Helm"},
	}
	root := template.New("").Option("missingkey=zero")
	root.Funcs(helmFunctions(root))
	names, err := filepath.Glob(chart + "/templates/*")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := root.New(filepath.Base(name)).Parse(read(t, name)); err != nil {
			return nil, err
		}
	}
	texts := map[string]string{}
	for _, name := range names {
		var out bytes.Buffer
		if err := root.ExecuteTemplate(&out, filepath.Base(name), data); err != nil {
			return nil, err
		}
		texts[filepath.Base(name)] = out.String()
	}
	return texts, nil
}

func merge(into, from map[string]any) {
	for key, v := range from {
		if m, ok := v.(map[string]any); ok {
			if old, ok := into[key].(map[string]any); ok {
				merge(old, m)
				continue
			}
		}
		into[key] = v
	}
}

// sorted leaves out empty documents and orders the rest by kind and name.
func sorted(objects []object) []object {
	objects = slices.DeleteFunc(objects, func(o object) bool { return o == nil })
	slices.SortFunc(objects, func(a, b object) int { return strings.Compare(kindOf(a)+" "+nameOf(a), kindOf(b)+" "+nameOf(b)) })
	return objects
}

func helmFunctions(root *template.Template) template.FuncMap {
	indent := func(n int, s string) string {
		pad := strings.Repeat(" ", n)
		return pad + strings.ReplaceAll(s, "\n", "\n"+pad)
	}
	number := func(v any) int { // of YAML all whole numbers are int
		n, _ := v.(int)
		return n
	}
	empty := func(v any) bool {
		truth, ok := template.IsTrue(v)
		return !truth || !ok
	}
	return template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var out bytes.Buffer
			err := root.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
		"toYaml": func(v any) (string, error) {
			var out bytes.Buffer
			enc := yaml.NewEncoder(&out)
			enc.SetIndent(2)
			err := enc.Encode(v)
			return strings.TrimSuffix(out.String(), "\n"), err
		},
		"nindent": func(n int, s string) string { return "\n" + indent(n, s) },
		"quote":   func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"default": func(fallback, v any) any {
			if empty(v) {
				return fallback
			}
			return v
		},
		"dict": func(kv ...any) map[string]any {
			m := map[string]any{}
			for i := 0; i+1 < len(kv); i += 2 {
				m[kv[i].(string)] = kv[i+1]
			}
			return m
		},
		"list": func(v ...any) []any { return v },
		"join": func(sep string, list []any) string {
			var s []string
			for _, v := range list {
				s = append(s, fmt.Sprint(v))
			}
			return strings.Join(s, sep)
		},
		"until": func(n int) []int {
			out := make([]int, n)
			for i := range out {
				out[i] = i
			}
			return out
		},
		"int": number, "int64": number,
		"add":        func(a, b any) int { return number(a) + number(b) },
		"trunc":      func(n int, s string) string { return s[:min(n, len(s))] },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"fail":       func(why string) (string, error) { return "", errors.New(why) },
	}
}

// everything is values that switch on what is off, and change what is worth it.
const everything = `
secrets:
  control: {name: control}
  redis: {name: redis}
  encryption: {name: encryption, readKeys: read}
  tls: {name: tls}
  cellPublicKeys: {keys: [old.pub, new.pub]}
imagePullSecrets: [{name: pull}]
broker:
  replicas: 5
  env: {QUEENGATE_BROKER_MAX_PARKED: 1000}
  podAnnotations: {a: b}
  nodeSelector: {disk: fast}
  tolerations: [{key: k, operator: Exists}]
  spool: {storageClass: fast}
gateway:
  domains: [mq.example.com, mq.example.org]
  env: {QUEENGATE_GATEWAY_LONG_POLL_MAX: 30s}
  service: {type: LoadBalancer, annotations: {a: b}}
networkPolicy:
  clients: [{ipBlock: {cidr: 10.0.0.0/8}}]
podMonitor: {enabled: true, labels: {release: prometheus}}
`

// TestHelmRendersTheSame compares with Helm, where there is one: it also applies the schema.
func TestHelmRendersTheSame(t *testing.T) {
	t.Parallel()
	helm, err := exec.LookPath("helm")
	if err != nil {
		t.Skip("there is no helm on the path; the chart is rendered without it in the other tests")
	}
	for rule, values := range map[string]string{"as it comes": "", "with everything": everything} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(helm, "template", "cell", chart, "--kube-version", "1.30.0", "--values", file)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			text, err := cmd.Output()
			if err != nil {
				t.Fatalf("helm template: %v\n%s", err, stderr.String())
			}
			ours, err := render(t, "cell", values)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sorted(decode[object](t, "helm", string(text))), ours); diff != "" {
				t.Errorf("(-helm +ours):\n%s", diff)
			}
		})
	}
}

// TestTheSchemaHasExactlyTheValues keeps values.schema.json and values.yaml together, level by level.
func TestTheSchemaHasExactlyTheValues(t *testing.T) {
	t.Parallel()
	schema := decode[map[string]any](t, "values.schema.json", read(t, chart+"/values.schema.json"))[0] // JSON is YAML
	values := decode[map[string]any](t, "values.yaml", read(t, chart+"/values.yaml"))[0]
	var compare func(path string, schema, values map[string]any)
	compare = func(path string, schema, values map[string]any) {
		properties := at[map[string]any](schema, "properties")
		if properties == nil {
			return // free, as what Kubernetes itself defines
		}
		if schema["additionalProperties"] != false {
			t.Errorf("%s: unknown values are taken", path)
		}
		for _, key := range slices.Sorted(maps.Keys(properties)) {
			if v, ok := values[key]; !ok && path+key != "global" {
				t.Errorf("%s%s is in the schema and not in values.yaml", path, key)
			} else if m, ok := v.(map[string]any); ok {
				compare(path+key+".", properties[key].(map[string]any), m)
			}
		}
		for key := range values {
			if properties[key] == nil {
				t.Errorf("%s%s is in values.yaml and not in the schema", path, key)
			}
		}
	}
	compare("", schema, values)
}

func TestBudgetsThatTheProcessWouldCutAreRefused(t *testing.T) {
	t.Parallel()
	_, err := render(t, "cell", "gateway: {drainTimeSeconds: 75}")
	if err == nil || !strings.Contains(err.Error(), "want at most 80") {
		t.Errorf("got %v, want a refusal", err)
	}
}
