package deploy

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// pod is what a template of pods says, as far as the tests ask.
type pod struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
		EnableServiceLinks            *bool `yaml:"enableServiceLinks"`
		TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot bool `yaml:"runAsNonRoot"`
			RunAsUser    int  `yaml:"runAsUser"`
		} `yaml:"securityContext"`
		Containers []container
		Volumes    []struct {
			Name   string
			Secret *struct {
				SecretName string `yaml:"secretName"`
				Items      []struct{ Key, Path string }
			}
			EmptyDir *struct{} `yaml:"emptyDir"`
		}
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

type container struct {
	Name  string
	Args  []string
	Env   []struct{ Name, Value string }
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	StartupProbe    *probe `yaml:"startupProbe"`
	LivenessProbe   *probe `yaml:"livenessProbe"`
	ReadinessProbe  *probe `yaml:"readinessProbe"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

// as reads a part of an object into a type that names only what is asked for.
func as[T any](t *testing.T, v any) T {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out T
	if err := yaml.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// rendered is the chart with some values, by kind and name.
func rendered(t *testing.T, values string) map[string]object {
	t.Helper()
	objects, err := render(t, "cell", values)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]object{}
	for _, o := range objects {
		out[kindOf(o)+" "+nameOf(o)] = o
	}
	return out
}

// workloads are the objects that make pods.
func workloads(t *testing.T, objects map[string]object) map[string]pod {
	t.Helper()
	pods := map[string]pod{}
	for name, o := range objects {
		if template := at[map[string]any](o, "spec", "template"); template != nil {
			pods[name] = as[pod](t, template)
		}
	}
	return pods
}

func forms(t *testing.T, check func(t *testing.T, objects map[string]object)) {
	t.Helper()
	for rule, values := range map[string]string{"as it comes": "", "with everything": everything} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			check(t, rendered(t, values))
		})
	}
}

func TestTheChartHasItsObjects(t *testing.T) {
	t.Parallel()
	want := []string{
		"Deployment cell-gateway", "Job cell-migration", "NetworkPolicy cell-broker", "NetworkPolicy cell-gateway",
		"PodDisruptionBudget cell-broker", "PodDisruptionBudget cell-gateway", "Service cell-broker", "Service cell-gateway", "StatefulSet cell-broker",
	}
	if got := slices.Sorted(maps.Keys(rendered(t, ""))); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, o := range rendered(t, everything) {
		if at[string](o, "apiVersion") == "" || len(nameOf(o)) > 63 || at[string](o, "metadata", "labels", "app.kubernetes.io/instance") != "cell" {
			t.Errorf("%s lacks its version, a valid name or the labels", name)
		}
	}
}

func TestPodsRunTheProgramAsItWants(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, objects map[string]object) {
		s := program(t)
		for name, p := range workloads(t, objects) {
			c := p.Spec.Containers[0]
			if err := s.checkInvocation(c.Args); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			env := map[string]string{}
			for _, v := range c.Env {
				if _, again := env[v.Name]; again {
					t.Errorf("%s sets %s twice", name, v.Name)
				}
				env[v.Name] = v.Value
			}
			checkEnvironment(t, c.Args[0], env)
			checkMounts(t, name, objects[name], p, env)
			if p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks {
				t.Errorf("%s: variables of service links would be unknown settings", name)
			}
			if p.Spec.AutomountServiceAccountToken == nil || *p.Spec.AutomountServiceAccountToken {
				t.Errorf("%s needs no token of the cluster and has one", name)
			}
			sec := c.SecurityContext
			if !p.Spec.SecurityContext.RunAsNonRoot || p.Spec.SecurityContext.RunAsUser != 65532 || !sec.ReadOnlyRootFilesystem ||
				sec.AllowPrivilegeEscalation == nil || *sec.AllowPrivilegeEscalation || !slices.Equal(sec.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("%s may more than it must", name)
			}
			if c.Args[0] == "migrate" {
				continue
			}
			grace := time.Duration(p.Spec.TerminationGracePeriodSeconds) * time.Second
			if need := drain(t, c.Args[0], env); grace <= need+5*time.Second {
				t.Errorf("%s: killed after %s, and the drain may take %s", name, grace, need)
			}
			checkPorts(t, name, c, env)
			checkProbes(t, name, c)
		}
	})
}

// checkMounts sees to it that every file and folder in the environment is in a volume of the pod.
func checkMounts(t *testing.T, name string, o object, p pod, env map[string]string) {
	t.Helper()
	volumes := map[string][]string{} // the files in them, nil for any
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil {
			volumes[v.Name] = nil
			continue
		}
		if v.Secret == nil || v.Secret.SecretName == "" {
			t.Errorf("%s: volume %s is no secret and no folder of the pod", name, v.Name)
			continue
		}
		volumes[v.Name] = nil
		for _, item := range v.Secret.Items {
			volumes[v.Name] = append(volumes[v.Name], item.Path)
		}
	}
	for _, claim := range at[[]any](o, "spec", "volumeClaimTemplates") {
		volumes[at[string](claim, "metadata", "name")] = nil
	}
	mounts := map[string]string{}
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		if _, ok := volumes[m.Name]; !ok {
			t.Errorf("%s mounts %s, which is no volume", name, m.Name)
		}
		if !m.ReadOnly && m.Name != "spool" && m.Name != "data" {
			t.Errorf("%s may write %s", name, m.Name)
		}
		mounts[m.MountPath] = m.Name
	}
	if len(mounts) != len(volumes) {
		t.Errorf("%s has volumes %v and mounts %v", name, slices.Sorted(maps.Keys(volumes)), mounts)
	}
	for variable, value := range env {
		for file := range strings.SplitSeq(value, ",") {
			if !strings.HasPrefix(file, "/") {
				continue
			}
			volume, ok := mounts[path.Dir(file)]
			if !ok {
				t.Errorf("%s: %s = %s is in no volume", name, variable, file)
			} else if items := volumes[volume]; items != nil && !slices.Contains(items, path.Base(file)) {
				t.Errorf("%s: %s = %s: the volume holds %v", name, variable, file, items)
			}
		}
	}
}

// checkPorts compares the ports of a container with the addresses in its environment.
func checkPorts(t *testing.T, name string, c container, env map[string]string) {
	t.Helper()
	want := map[string]string{}
	for port, variable := range map[string]string{
		"ops": "QUEENGATE_OPS", "mesh": "QUEENGATE_MESH_ADDR", "https": "QUEENGATE_HTTPS",
		"http": map[string]string{"broker": "QUEENGATE_BROKER_ADDR", "gateway": "QUEENGATE_HTTP"}[c.Args[0]],
	} {
		if env[variable] != "" {
			want[port] = env[variable]
		}
	}
	got := map[string]string{}
	for _, p := range c.Ports {
		got[p.Name] = fmt.Sprintf(":%d", p.ContainerPort)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: ports are %v, and it listens on %v", name, got, want)
	}
}

func checkProbes(t *testing.T, name string, c container) {
	t.Helper()
	serves := observed(t).serves
	for _, want := range []struct {
		what, path string
		probe      *probe
	}{{"startup", "/livez", c.StartupProbe}, {"liveness", "/livez", c.LivenessProbe}, {"readiness", "/readyz", c.ReadinessProbe}} {
		if want.probe == nil || want.probe.HTTPGet.Path != want.path {
			t.Errorf("%s: %s asks %+v, want %s", name, want.what, want.probe, want.path)
			continue
		}
		port := want.probe.HTTPGet.Port
		if c.Args[0] == "broker" && port == "ops" {
			t.Errorf("%s: %s asks the operators' port, which does not know that a broker drains", name, want.what)
		}
		if !serves[c.Args[0]+" "+port+" "+want.path] {
			t.Errorf("%s: the port %s does not serve %s", name, port, want.path)
		}
	}
}

func TestSelectorsFindTheirPods(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, objects map[string]object) {
		pods := workloads(t, objects)
		found := func(name string, selector map[string]any) (matches []string) {
			if len(selector) == 0 {
				t.Errorf("%s selects everything", name)
			}
		pods:
			for workload, p := range pods {
				for label, value := range selector {
					if p.Metadata.Labels[label] != value {
						continue pods
					}
				}
				matches = append(matches, workload)
			}
			return matches
		}
		want := map[string]string{"broker": "StatefulSet cell-broker", "gateway": "Deployment cell-gateway"}
		for name, o := range objects {
			_, component, _ := strings.Cut(nameOf(o), "-")
			selector := at[map[string]any](o, "spec", "selector", "matchLabels")
			switch kindOf(o) {
			case "Service":
				selector = at[map[string]any](o, "spec", "selector")
			case "NetworkPolicy":
				selector = at[map[string]any](o, "spec", "podSelector", "matchLabels")
			case "Job":
				continue
			}
			if got := found(name, selector); len(got) != 1 || got[0] != want[component] {
				t.Errorf("%s finds %v, want %s", name, got, want[component])
			}
		}
		checkPolicies(t, objects, found)
	})
}

// checkPolicies pins who reaches what.
func checkPolicies(t *testing.T, objects map[string]object, found func(string, map[string]any) []string) {
	t.Helper()
	for name, want := range map[string]map[string]string{
		"NetworkPolicy cell-broker":  {"http": "Deployment cell-gateway", "mesh": "StatefulSet cell-broker", "ops": "monitoring"},
		"NetworkPolicy cell-gateway": {"http": "", "ops": "monitoring"},
	} {
		got := map[string]string{}
		for _, rule := range at[[]any](objects[name], "spec", "ingress") {
			var from []string
			for _, peer := range at[[]any](rule, "from") {
				if selector := at[map[string]any](peer, "podSelector", "matchLabels"); selector != nil {
					from = append(from, found(name, selector)...)
				} else if at[map[string]any](peer, "namespaceSelector") != nil {
					from = append(from, "monitoring")
				}
			}
			for _, port := range at[[]any](rule, "ports") {
				got[at[string](port, "port")] = strings.Join(from, ",")
			}
		}
		delete(got, "https")
		if !maps.Equal(got, want) {
			t.Errorf("%s lets in %v, want %v", name, got, want)
		}
	}
}

func TestBrokersKeepTheirNamesAndTheirSpool(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, objects map[string]object) {
		service, set := objects["Service cell-broker"], objects["StatefulSet cell-broker"]
		if at[string](service, "spec", "clusterIP") != "None" || !at[bool](service, "spec", "publishNotReadyAddresses") {
			t.Error("a broker without its database has no address, and no push could reach its spool")
		}
		env := map[string]string{}
		for _, p := range workloads(t, map[string]object{"": set}) {
			for _, v := range p.Spec.Containers[0].Env {
				env[v.Name] = v.Value
			}
		}
		if at[string](set, "spec", "serviceName") != nameOf(service) || env["QUEENGATE_MESH_PEERS"] != nameOf(service) {
			t.Errorf("brokers are named by %s, and their peers are %s, want %s", at[string](set, "spec", "serviceName"), env["QUEENGATE_MESH_PEERS"], nameOf(service))
		}
		claims := at[[]any](set, "spec", "volumeClaimTemplates")
		if len(claims) != 1 || at[string](claims[0], "spec", "resources", "requests", "storage") == "" {
			t.Errorf("got the claims %v, want one for the spool", claims)
		}
	})
}

// TestTheNotesNameEveryBroker renders the line that tells the control database where the brokers are.
func TestTheNotesNameEveryBroker(t *testing.T) {
	t.Parallel()
	notes := renderNotes(t, "broker: {replicas: 2}")
	want := "--base-url http://cell-broker-0.cell-broker.default.svc:6632,http://cell-broker-1.cell-broker.default.svc:6632 "
	if !strings.Contains(notes, want) {
		t.Errorf("got\n%s\nwant %s", notes, want)
	}
	lines := invocations(notes)
	if len(lines) != 1 {
		t.Fatalf("got the command lines %v, want one", lines)
	}
	if err := program(t).checkInvocation(lines[0]); err != nil {
		t.Error(err)
	}
}
