package plans

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestMerge(t *testing.T) {
	t.Parallel()
	plan := Limits{
		RequestsPerSecond: new(60.0), RequestsBurst: new(120.0), MessagesPerSecond: new(20.0), MaxQueues: new(int64(20)),
		Modes: map[string]Mode{LimitRequests: Shadow, LimitQueues: Off},
	}
	with := func(change func(*Limits)) Limits {
		l := plan
		l.MessagesBurst = new(40.0)
		l.Modes = maps.Clone(plan.Modes)
		change(&l)
		return l
	}
	for rule, c := range map[string]struct {
		overrides string
		modes     string
		want      Limits
	}{
		"nothing overridden is the plan, an absent burst twice the rate": {`{}`, `{}`, with(func(*Limits) {})},
		"a number is that number":                          {`{"max_queues": 3}`, `{}`, with(func(l *Limits) { l.MaxQueues = new(int64(3)) })},
		"null is unlimited and beats the plan":             {`{"max_queues": null}`, `{}`, with(func(l *Limits) { l.MaxQueues = nil })},
		"a limit the plan leaves open can be set":          {`{"max_parked_pops": 5}`, `{}`, with(func(l *Limits) { l.MaxParkedPops = new(int64(5)) })},
		"zero is zero":                                     {`{"max_queues": 0}`, `{}`, with(func(l *Limits) { l.MaxQueues = new(int64(0)) })},
		"a large number is exact":                          {`{"max_retained_bytes": 999999999999999}`, `{}`, with(func(l *Limits) { l.MaxRetainedBytes = new(int64(999999999999999)) })},
		"an absent burst follows an overridden rate":       {`{"max_msgs_per_sec": 7.5}`, `{}`, with(func(l *Limits) { l.MessagesPerSecond, l.MessagesBurst = new(7.5), new(15.0) })},
		"a plan's burst stays when the rate is overridden": {`{"max_req_per_sec": 5}`, `{}`, with(func(l *Limits) { l.RequestsPerSecond = new(5.0) })},
		"a null burst is the default burst":                {`{"req_burst": null, "max_req_per_sec": 5}`, `{}`, with(func(l *Limits) { l.RequestsPerSecond, l.RequestsBurst = new(5.0), new(10.0) })},
		"a burst holds at least one":                       {`{"max_msgs_per_sec": 0.1}`, `{}`, with(func(l *Limits) { l.MessagesPerSecond, l.MessagesBurst = new(0.1), new(1.0) })},
		"an unlimited rate has no burst":                   {`{"max_req_per_sec": null}`, `{}`, with(func(l *Limits) { l.RequestsPerSecond, l.RequestsBurst = nil, nil })},
		"a blocked rate has no full bucket to spend":       {`{"max_req_per_sec": 0}`, `{}`, with(func(l *Limits) { l.RequestsPerSecond, l.RequestsBurst = new(0.0), new(0.0) })},
		"other types leave the plan's value":               {`{"max_queues": "3", "req_burst": true, "max_msgs_per_sec": []}`, `{}`, with(func(*Limits) {})},
		"numbers out of range leave the plan's value":      {`{"max_queues": -1, "max_parked_pops": 1.5, "req_burst": 1e10}`, `{}`, with(func(*Limits) {})},
		"unknown names are not looked at":                  {`{"max_quues": 3}`, `{}`, with(func(*Limits) {})},
		"the cluster's mode wins":                          {`{}`, `{"req": "enforce", "msgs": "off"}`, with(func(l *Limits) { l.Modes[LimitRequests], l.Modes[LimitMessages] = Enforce, Off })},
		"unknown modes and names enforce":                  {`{}`, `{"msgs": "maybe", "rate": "off"}`, with(func(*Limits) {})},
	} {
		o, err := ParseOverrides([]byte(c.overrides))
		if err != nil {
			t.Fatal(err)
		}
		modes, err := ParseModes([]byte(c.modes))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, Merge(plan, o, modes)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rule, diff)
		}
	}
	if plan.MessagesBurst != nil || len(plan.Modes) != 2 || plan.Modes[LimitRequests] != Shadow {
		t.Error("Merge changed the plan")
	}
}

func TestOverridesMustBeAnObject(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{`[]`, `1`, ``, `{`} {
		if _, err := ParseOverrides([]byte(raw)); err == nil {
			t.Errorf("ParseOverrides(%q) passed", raw)
		}
		if _, err := ParseModes([]byte(raw)); err == nil {
			t.Errorf("ParseModes(%q) passed", raw)
		}
	}
}

// TestMergeAgainstModel states the merge on plain maps (absent, nil, number) and compares.
func TestMergeAgainstModel(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(rateFields))
	names = append(names, slices.Sorted(maps.Keys(amountFields))...)
	limit := rapid.Custom(func(t *rapid.T) *float64 {
		if rapid.Bool().Draw(t, "unlimited") {
			return nil
		}
		return new(float64(rapid.IntRange(0, 1000).Draw(t, "number")))
	})
	rapid.Check(t, func(t *rapid.T) {
		model := map[string]*float64{}
		var plan Limits
		for _, name := range names {
			v := limit.Draw(t, "plan "+name)
			model[name] = v
			set(&plan, name, v)
		}
		doc := map[string]any{}
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(t, "overridden") {
			v := limit.Draw(t, "override "+name)
			model[name] = v
			doc[name] = v
		}
		for rate, burst := range map[string]string{
			"max_req_per_sec": "req_burst", "max_msgs_per_sec": "msgs_burst", "max_delivery_per_sec": "delivery_burst",
		} {
			switch r := model[rate]; {
			case r == nil:
				model[burst] = nil
			case *r == 0:
				model[burst] = new(0.0)
			case model[burst] == nil:
				model[burst] = new(2 * *r) // whole numbers: never below one
			}
		}
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		o, err := ParseOverrides(raw)
		if err != nil {
			t.Fatal(err)
		}
		got := Merge(plan, o, nil)
		for _, name := range names {
			if diff := cmp.Diff(model[name], get(&got, name)); diff != "" {
				t.Fatalf("%s with %s (-want +got):\n%s", name, raw, diff)
			}
		}
	})
}

func set(l *Limits, name string, v *float64) {
	if field, ok := rateFields[name]; ok {
		*field(l) = v
	} else if v != nil {
		*amountFields[name](l) = new(int64(*v))
	}
}

func get(l *Limits, name string) *float64 {
	if field, ok := rateFields[name]; ok {
		return *field(l)
	}
	if v := *amountFields[name](l); v != nil {
		return new(float64(*v))
	}
	return nil
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		limits Limits
		want   string // part of the error; "" for none
	}{
		"no limits are consistent":              {Limits{}, ""},
		"a batch within the burst":              {Limits{MessagesPerSecond: new(20.0), MessagesBurst: new(100.0), MaxBatchItems: new(int64(100))}, ""},
		"a batch beyond the burst":              {Limits{MessagesPerSecond: new(20.0), MessagesBurst: new(99.0), MaxBatchItems: new(int64(100))}, "want at least max_batch_items = 100"},
		"a blocked rate has no batch to fit":    {Limits{MessagesPerSecond: new(0.0), MessagesBurst: new(0.0), MaxBatchItems: new(int64(100))}, ""},
		"a request burst below one":             {Limits{RequestsPerSecond: new(1.0), RequestsBurst: new(0.5)}, "req_burst = 0.5"},
		"a message burst below one":             {Limits{MessagesPerSecond: new(1.0), MessagesBurst: new(0.5)}, "msgs_burst = 0.5"},
		"a delivery burst below one":            {Limits{DeliveryPerSecond: new(1.0), DeliveryBurst: new(0.5)}, "delivery_burst = 0.5"},
		"a payload beyond the body":             {Limits{MaxPayloadBytes: new(int64(2)), MaxBodyBytes: new(int64(1))}, "max_body_bytes = 1"},
		"a rate below zero":                     {Limits{RequestsPerSecond: new(-1.0)}, "max_req_per_sec = -1"},
		"a rate that is no number":              {Limits{RequestsPerSecond: new(math.NaN())}, "max_req_per_sec = NaN"},
		"a count below zero":                    {Limits{MaxQueues: new(int64(-1))}, "max_queues = -1"},
		"an infinite burst is out of the range": {Limits{RequestsBurst: new(math.Inf(1))}, "req_burst = +Inf"},
	} {
		err := c.limits.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", rule, err, c.want)
		}
	}
}

// TestWords: what is written is read back, and what is unknown fails closed.
func TestWords(t *testing.T) {
	t.Parallel()
	for s := Active; s <= Deleting; s++ {
		if got := ParseStatus(s.String()); got != s {
			t.Errorf("status %s is read as %s", s, got)
		}
	}
	if ParseStatus("grace") != PushBlocked || ParseStatus("odd") != Suspended || ParseStatus("") != Suspended {
		t.Error("grace blocks pushes; what is unknown is suspended")
	}
	for r := RoleViewer; r <= RoleAdmin; r++ {
		if got := ParseRole(r.String()); got != r {
			t.Errorf("role %s is read as %s", r, got)
		}
	}
	if ParseRole("owner") != RoleNone || ParseRole("") != RoleNone {
		t.Error("an unknown role is none")
	}
	full := ScopeProduce | ScopeConsume | ScopeAdmin | ScopeRead | ScopeReadPayload
	if got := ParseScopes(full.Names()); got != full {
		t.Errorf("scopes %v are read as %v", full.Names(), got.Names())
	}
	if ParseScopes([]string{"root", ""}) != 0 {
		t.Error("an unknown scope grants something")
	}
}

// TestTheWorseStateCounts: of the cluster's state and its tenant's the worse is in force, whichever it is.
func TestTheWorseStateCounts(t *testing.T) {
	t.Parallel()
	order := []Status{Active, PushBlocked, ExportOnly, Paused, Suspended, Deleting} // the better ones first
	id, tenant := uuid.New(), uuid.New()
	for i, own := range order {
		for j, its := range order {
			c := catalogue{
				tenants:  map[uuid.UUID]tenantRow{tenant: {slug: "t", status: its}},
				plans:    map[string]*Plan{"p": {Code: "p"}},
				clusters: map[uuid.UUID]clusterRow{id: {slug: "c", tenant: tenant, plan: "p", status: own}},
			}
			if got, want := c.cluster(id).Status, order[max(i, j)]; got != want {
				t.Errorf("a cluster that is %s of a tenant that is %s is %s, want %s", own, its, got, want)
			}
		}
	}
}
