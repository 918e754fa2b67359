package proxy

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

var everyStatus = []plans.Status{plans.Active, plans.PushBlocked, plans.ExportOnly, plans.Paused, plans.Suspended, plans.Deleting}

// clientRoutes are the routes that gateways serve to clients.
func clientRoutes() (routes []*wire.Route) {
	for i := range wire.Routes {
		if wire.Routes[i].Class != wire.ClassBlocked {
			routes = append(routes, &wire.Routes[i])
		}
	}
	return routes
}

// entitledBy judges a route for a key with the scopes on a cluster.
func entitledBy(scopes plans.Scope, c *plans.Cluster, r *wire.Route) *wire.Error {
	k := &plans.Key{ID: uuid.New(), Cluster: c, Scopes: scopes}
	return entitle(plans.Compose(plans.Facts{}), &auth.Principal{Key: k}, c, r)
}

const everyScope = plans.ScopeProduce | plans.ScopeConsume | plans.ScopeAdmin | plans.ScopeRead

func codeOf(e *wire.Error) wire.Code {
	if e == nil {
		return ""
	}
	return e.Code
}

// Every route of a client, in every state, with a feature that is included: the answer is the table's.
func TestEveryRouteInEveryState(t *testing.T) {
	t.Parallel()
	for _, s := range everyStatus {
		for _, r := range clientRoutes() {
			c := &plans.Cluster{ID: uuid.New(), Status: s, Features: map[string]bool{string(r.Feature()): true}}
			if got, want := codeOf(entitledBy(everyScope, c, r)), codeOf(quota.AskLife(s, r.Flow())); got != want {
				t.Errorf("%s: %s %s is answered %q, want %q", s, r.Method, r.Pattern, got, want)
			}
		}
	}
}

// Every route of a client under a plan that has its feature, lacks it, or has withdrawn it: only the way in is closed.
func TestEveryRouteUnderEveryFeature(t *testing.T) {
	t.Parallel()
	for name, features := range map[string]func(f string) map[string]bool{
		"included":   func(f string) map[string]bool { return map[string]bool{f: true} },
		"absent":     func(string) map[string]bool { return nil },
		"withdrawn":  func(f string) map[string]bool { return map[string]bool{f: false} },
		"of another": func(f string) map[string]bool { return map[string]bool{"not_" + f: true} },
	} {
		for _, r := range clientRoutes() {
			c := &plans.Cluster{ID: uuid.New(), Features: features(string(r.Feature()))}
			want := wire.Code("")
			if name != "included" && r.Feature() != "" && r.Flow().In() {
				want = wire.FeatureGated
			}
			if got := codeOf(entitledBy(everyScope, c, r)); got != want {
				t.Errorf("%s: %s %s (%s) is answered %q, want %q", name, r.Method, r.Pattern, r.Flow(), got, want)
			}
		}
	}
}

// A scope reaches the directions that it is for, on every route (W14 of the existing proxy: a key that may only produce
// popped and read what belongs to a feature).
func TestScopesKeepToTheirDirections(t *testing.T) {
	t.Parallel()
	reach := map[plans.Scope]map[wire.Flow]bool{
		plans.ScopeProduce: {wire.FlowPush: true, wire.FlowMixed: true},
		plans.ScopeConsume: {wire.FlowOut: true, wire.FlowWrite: true}, // a consumer writes trace events
		plans.ScopeRead:    {wire.FlowRead: true},
		plans.ScopeAdmin:   {wire.FlowPush: true, wire.FlowMixed: true, wire.FlowWrite: true, wire.FlowOut: true, wire.FlowRead: true, wire.FlowRemove: true},
	}
	for scope, may := range reach {
		for _, r := range clientRoutes() {
			c := &plans.Cluster{ID: uuid.New(), Features: map[string]bool{string(r.Feature()): true}}
			e := entitledBy(scope, c, r)
			if e == nil && !may[r.Flow()] {
				t.Errorf("scope %v reaches %s %s, which goes %s", scope.Names(), r.Method, r.Pattern, r.Flow())
			}
			if r.Feature() == "" {
				continue
			}
			// On the routes of a feature the direction alone decides.
			want := map[wire.Flow]plans.Scope{wire.FlowWrite: plans.ScopeConsume, wire.FlowRead: plans.ScopeRead | plans.ScopeAdmin}[r.Flow()]
			if got := e == nil; got != want.Has(scope) {
				t.Errorf("scope %v on %s %s: allowed %t", scope.Names(), r.Method, r.Pattern, got)
			}
		}
	}
}

// The states over the wire, where a body decides too. Paused is 429 with a wait that published consumers survive (W37).
func TestStatesOverTheWire(t *testing.T) {
	t.Parallel()
	post := func(w *world, path, body string) string {
		return w.head("POST", path, "Content-Length: "+strconv.Itoa(len(body))) + body
	}
	asks := []struct {
		name string
		flow wire.Flow
		ask  func(w *world) string
		ins  bool // its body stores messages
	}{
		{"push", wire.FlowPush, func(w *world) string { return w.push(aPush) }, true},
		{"transaction of pushes", wire.FlowMixed, func(w *world) string { return w.transaction(transactionOf(1, 1)) }, true},
		{"transaction of acks", wire.FlowMixed, func(w *world) string { return w.transaction(transactionOf(0, 1)) }, false},
		{"redrive", wire.FlowMixed, func(w *world) string { return post(w, "/api/v1/dlq/redrive", `{"queue":"q"}`) }, true},
		{"dry run", wire.FlowMixed, func(w *world) string { return post(w, "/api/v1/dlq/redrive", `{"queue":"q","dryRun":true}`) }, false},
		{"configure", wire.FlowWrite, func(w *world) string { return post(w, "/api/v1/configure", `{"queue":"q"}`) }, false},
		{"pop", wire.FlowOut, func(w *world) string { return w.head("GET", "/api/v1/pop/queue/q") }, false},
		{"ack", wire.FlowOut, func(w *world) string {
			return post(w, "/api/v1/ack", `{"transactionId":"t","partitionId":"0198f000-0000-7000-8000-0000000000aa","leaseId":"0198f000-0000-7000-8000-0000000000ab"}`)
		}, false},
		{"list", wire.FlowRead, func(w *world) string { return w.head("GET", "/api/v1/resources/queues") }, false},
		{"delete", wire.FlowRemove, func(w *world) string { return w.head("DELETE", "/api/v1/resources/queues/q") }, false},
	}
	stores := map[plans.Status]wire.Code{
		plans.PushBlocked: wire.PushBlocked, plans.ExportOnly: wire.ExportOnly, plans.Paused: wire.RateLimited,
		plans.Suspended: wire.ClusterSuspended, plans.Deleting: wire.ClusterSuspended,
	}
	for _, s := range everyStatus {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{facts: func(w *world) { w.cluster.Status = s }, broker: answering("1")})
			for _, a := range asks {
				want := codeOf(quota.AskLife(s, a.flow))
				if a.ins {
					want = stores[s]
				}
				r := w.ask(a.ask(w))
				if r.code() != string(want) || want == "" && r.StatusCode >= 300 {
					t.Errorf("%s: got %d %s, want %q", a.name, r.StatusCode, r.body, want)
				}
				if want == wire.RateLimited && (r.StatusCode != 429 || r.Header.Get("Retry-After") != "30") {
					t.Errorf("%s: got %d with Retry-After %q", a.name, r.StatusCode, r.Header.Get("Retry-After"))
				}
				if want != "" && len(w.broker.seen) > 0 {
					t.Errorf("%s was refused and reached the broker", a.name)
				}
				for len(w.broker.seen) > 0 {
					<-w.broker.seen
				}
			}
		})
	}
}

// A parked poll ends in the answer its request would get now, and stays parked in the states that let messages out.
func TestAParkedPollFollowsTheState(t *testing.T) {
	t.Parallel()
	for _, s := range everyStatus {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{})
			p := w.gateway.park(w.parkable(0), time.Now().Add(time.Hour))
			defer w.gateway.unpark(p)
			w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = s })
			if got, want := codeOf(p.verdict()), codeOf(quota.AskLife(s, wire.FlowOut)); got != want {
				t.Errorf("given up with %q, want %q", got, want)
			}
		})
	}
}

// Whoever has no credential, or one of another cluster, learns no state from the answer (W17).
func TestTheStateIsNotTold(t *testing.T) {
	t.Parallel()
	answers := map[string]map[string]bool{}
	for _, s := range append(everyStatus, plans.Status(200)) {
		w := setup(t, options{facts: func(w *world) {
			w.other.Status = s
			if s == plans.Status(200) {
				w.facts.Clusters = w.facts.Clusters[:1] // there is no such cluster
			}
		}})
		for name, key := range map[string]string{"nobody": "", "a wrong key": "qk_live_wrong"} {
			request := "GET /api/v1/resources/queues HTTP/1.1\r\nHost: zeta.example.com\r\n"
			if key != "" {
				request += "Authorization: Bearer " + key + "\r\n"
			}
			r := w.ask(request + "\r\n")
			if answers[name] == nil {
				answers[name] = map[string]bool{}
			}
			answers[name][strconv.Itoa(r.StatusCode)+" "+r.code()] = true
		}
	}
	for name, different := range answers {
		if len(different) != 1 || !different["401 unauthorized"] {
			t.Errorf("%s is answered %v", name, different)
		}
	}
}
