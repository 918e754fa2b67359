package contract

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/queengate/queengate/wire"
)

// TestAnswersAreWhatTheDocumentSays sends real requests to every route that a broker serves, and holds the bodies of
// requests and answers against the OpenAPI document that the same broker serves: the status and the media type are
// described, the body is valid, and no member of it goes unmentioned.
func TestAnswersAreWhatTheDocumentSays(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	d := newDocument(t, s)
	tenant := uuid.New()
	d.talk(tenant)
	// What a route refuses is described too.
	for i := range wire.Routes {
		r := &wire.Routes[i]
		if r.Access == wire.AccessPublic {
			continue
		}
		path := string(wire.AppendPath(nil, r, wire.Params{uuid.NewString(), "x", "y"}))
		d.check(r, s.do(r.Method, path, "", wire.HeaderTenant, tenant.String()).want(t, 401))
	}
	for i := range wire.Routes {
		r := &wire.Routes[i]
		for status := range d.responses(r) {
			if strings.HasPrefix(status, "2") && !d.seen[r.Method+" "+r.Pattern+" "+status] {
				t.Errorf("%s %s: the answer %s was not met", r.Method, r.Pattern, status)
			}
		}
	}
}

// document is the OpenAPI document of a service, with the schemas compiled.
type document struct {
	t        *testing.T
	s        *service
	root     m
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema
	seen     map[string]bool // "method pattern status"
}

const documentURL = "https://broker.invalid/openapi.json"

func newDocument(t *testing.T, s *service) *document {
	t.Helper()
	text := s.do("GET", "/openapi.json", "").want(t, 200).body
	root, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(documentURL, root); err != nil {
		t.Fatal(err)
	}
	return &document{t: t, s: s, root: root.(m), compiler: c, schemas: map[string]*jsonschema.Schema{}, seen: map[string]bool{}}
}

// operation is what the document says of a route.
func (d *document) operation(r *wire.Route) m {
	d.t.Helper()
	var path []string
	for seg := range strings.SplitSeq(r.Pattern, "/") {
		if name, ok := strings.CutPrefix(seg, ":"); ok {
			seg = "{" + name + "}"
		}
		path = append(path, seg)
	}
	item, _ := d.root["paths"].(m)[strings.Join(path, "/")].(m)
	op, ok := item[strings.ToLower(r.Method)].(m)
	if !ok {
		d.t.Fatalf("%s %s is not described", r.Method, r.Pattern)
	}
	return op
}

func (d *document) responses(r *wire.Route) m { return d.operation(r)["responses"].(m) }

// valid holds a body against the schema of a content object, and looks for members that the schema does not name.
func (d *document) valid(what string, content m, kind, body string) {
	d.t.Helper()
	media, ok := content[kind].(m)
	if !ok {
		d.t.Errorf("%s: %q is not described: %s", what, kind, body)
		return
	}
	if kind != "application/json" {
		return
	}
	ref := media["schema"].(m)["$ref"].(string)
	schema := d.schemas[ref]
	if schema == nil {
		var err error
		if schema, err = d.compiler.Compile(documentURL + ref); err != nil {
			d.t.Fatal(err)
		}
		d.schemas[ref] = schema
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		d.t.Errorf("%s: %v: %s", what, err, body)
		return
	}
	if err := schema.Validate(v); err != nil {
		d.t.Errorf("%s: %v\n%s", what, err, body)
		return
	}
	for _, path := range d.undescribed(m{"$ref": ref}, v, "") {
		d.t.Errorf("%s: %s is not described by %s", what, path, ref)
	}
}

// undescribed lists the members of v that none of the schemas names, by path. Whatever a schema leaves open is described.
func (d *document) undescribed(schema m, v any, at string) (paths []string) {
	properties, rest := m{}, any(true)
	items := m{}
	d.gather(schema, properties, &rest, &items)
	switch v := v.(type) {
	case m:
		for _, name := range keys(v) {
			switch p, ok := properties[name].(m); {
			case ok:
				paths = append(paths, d.undescribed(p, v[name], at+"."+name)...)
			case rest == false:
				paths = append(paths, at+"."+name)
			default:
				if p, ok := rest.(m); ok {
					paths = append(paths, d.undescribed(p, v[name], at+"."+name)...)
				}
			}
		}
	case []any:
		for i, e := range v {
			paths = append(paths, d.undescribed(items, e, fmt.Sprintf("%s.%d", at, i))...)
		}
	}
	return paths
}

// gather collects what a schema and those it refers to say of members and elements. rest says what other members may be:
// anything where no member is named, nothing where some are, unless the schema says so itself.
func (d *document) gather(schema, properties m, rest *any, items *m) {
	if to, ok := schema["$ref"].(string); ok {
		d.gather(d.root["components"].(m)["schemas"].(m)[strings.TrimPrefix(to, "#/components/schemas/")].(m), properties, rest, items)
	}
	for _, part := range list(schema["allOf"]) {
		d.gather(part.(m), properties, rest, items)
	}
	if named, ok := schema["properties"].(m); ok {
		for name, p := range named {
			properties[name] = p
		}
		*rest = false
	}
	if more, ok := schema["additionalProperties"]; ok {
		*rest = more
	}
	if e, ok := schema["items"].(m); ok {
		*items = e
	}
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// check holds an answer against the document.
func (d *document) check(r *wire.Route, a reply) {
	d.t.Helper()
	what := fmt.Sprintf("%s %s: %d", r.Method, r.Pattern, a.status)
	response, ok := d.responses(r)[fmt.Sprint(a.status)].(m)
	if !ok {
		if a.status < 400 {
			d.t.Errorf("%s is not described: %s", what, a.body)
			return
		}
		response = d.responses(r)["default"].(m)
	}
	d.seen[fmt.Sprintf("%s %s %d", r.Method, r.Pattern, a.status)] = true
	content, _ := response["content"].(m)
	if a.body == "" {
		if content != nil {
			d.t.Errorf("%s has no body", what)
		}
		return
	}
	kind, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	d.valid(what, content, kind, a.body)
}

// ask sends a request to the route that its path names, with a token of the level the route needs, and checks both.
func (d *document) ask(tenant uuid.UUID, method, target string, body any, want int) m {
	d.t.Helper()
	path, query, _ := strings.Cut(target, "?")
	r, _, err := wire.Match(method, []byte(path))
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, target, err)
	}
	op := d.operation(r)
	var sent string
	if body != nil {
		sent = text(d.t, body)
		about, ok := op["requestBody"].(m)
		if !ok {
			d.t.Fatalf("%s %s: no body is described", method, r.Pattern)
		}
		d.valid(method+" "+r.Pattern+" request", about["content"].(m), "application/json", sent)
	} else if about, ok := op["requestBody"].(m); ok && about["required"] == true && want < 300 {
		d.t.Errorf("%s %s: the body is said to be required", method, r.Pattern)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		d.t.Fatal(err)
	}
	for name := range values {
		if !slices.ContainsFunc(list(op["parameters"]), func(p any) bool { return p.(m)["name"] == name && p.(m)["in"] == "query" }) {
			d.t.Errorf("%s %s: the parameter %s is not described", method, r.Pattern, name)
		}
	}
	var headers []string
	if r.Access != wire.AccessPublic {
		headers = d.s.of(d.t).token(tenant, r.Access)
	}
	a := d.s.of(d.t).do(method, target, sent, headers...).want(d.t, want)
	d.check(r, a)
	var o m
	if strings.HasPrefix(a.body, "{") {
		if err := json.Unmarshal([]byte(a.body), &o); err != nil {
			d.t.Fatal(err)
		}
	}
	return o
}

// talk is a conversation in which every route has something to say.
func (d *document) talk(tenant uuid.UUID) {
	d.t.Helper()
	ask := func(method, target string, body any, want int) m {
		d.t.Helper()
		return d.ask(tenant, method, target, body, want)
	}
	item := func(txn string) m {
		return m{"queue": "orders", "partition": "p", "transactionId": txn, "payload": m{"n": 1.5}}
	}
	ack := func(g m, status, reason string) m {
		return m{"transactionId": g["transactionId"], "partitionId": g["partitionId"], "leaseId": g["leaseId"], "status": status, "error": reason, "consumerGroup": "g"}
	}
	get := func(targets ...string) {
		d.t.Helper()
		for _, target := range targets {
			ask("GET", target, nil, 200)
		}
	}

	ask("POST", "/api/v1/configure", m{"queue": "orders", "mode": "replace", "options": m{"namespace": "shop", "task": "bill", "leaseTime": 60}}, 200)
	ask("POST", "/api/v1/configure", m{"queue": "orders", "options": m{"leaseTime": 1, "retentionSinkHold": "not a name"}}, 400)
	ask("POST", "/api/v1/push", m{"items": []m{item("a"), item("b"), item("c"), item("d"), item("a")}}, 201)
	ask("POST", "/api/v1/push", m{"items": []m{{"queue": "doomed", "payload": nil}}}, 201)

	ask("GET", "/api/v1/pop", nil, 400)
	ask("GET", "/api/v1/pop?namespace=shop&task=none&wait=true&timeout=300", nil, 204)
	ask("GET", "/api/v1/pop?namespace=shop&consumerGroup=found&subscriptionMode=all", nil, 200)
	ask("GET", "/api/v1/pop/queue/nothing?wait=false", nil, 204)
	ask("GET", "/api/v1/pop/queue/orders/partition/none?autoAck=true&partitions=0", nil, 204)
	ask("GET", "/api/v1/pop/queue/orders/partition/p?leaseSeconds=5&consumerGroup=pinned&subscriptionMode=all&subscriptionFrom=now", nil, 204)
	ask("GET", "/api/v1/pop/queue/orders/partition/p?consumerGroup=once&subscriptionMode=all&autoAck=true", nil, 200)
	newest := list(ask("GET", "/api/v1/pop/queue/orders?consumerGroup=newest&subscriptionMode=all&conflation=true", nil, 200)["messages"])[0].(m)
	ask("POST", "/api/v1/ack", m{"transactionId": newest["transactionId"], "partitionId": newest["partitionId"], "leaseId": newest["leaseId"], "consumerGroup": "newest"}, 200)
	ask("GET", "/api/v1/pop/queue/orders?consumerGroup=newest&conflation=true", nil, 200)
	ask("GET", "/api/v1/pop/queue/orders?consumerGroup=steered&subscriptionMode=all&autopilot=true", nil, 200)
	got := list(ask("GET", "/api/v1/pop/queue/orders?consumerGroup=g&subscriptionMode=all&batch=10", nil, 200)["messages"])
	a, b := got[0].(m), got[1].(m)
	partition := a["partitionId"].(string)

	ask("POST", "/api/v1/lease/"+a["leaseId"].(string)+"/extend", m{"seconds": 90}, 200)
	ask("POST", "/api/v1/lease/"+uuid.NewString()+"/extend", nil, 200)
	ask("POST", "/api/v1/traces", m{"transactionId": "a", "partitionId": partition, "data": m{"step": 1}, "traceNames": []string{"import"}, "consumerGroup": "g", "eventType": "info"}, 201)
	ask("POST", "/api/v1/traces", m{"transactionId": "a", "partitionId": partition, "data": nil, "traceNames": "import"}, 201)
	ask("POST", "/api/v1/ack", ack(a, "dlq", "boom 1"), 200)
	ask("POST", "/api/v1/ack/batch", m{"acknowledgments": []m{{"transactionId": "a", "partitionId": partition}, {"transactionId": "zz", "partitionId": partition}}, "consumerGroup": "g"}, 200)
	b["leaseId"] = list(ask("GET", "/api/v1/pop/queue/orders?consumerGroup=g", nil, 200)["messages"])[0].(m)["leaseId"]
	ask("POST", "/api/v1/ack/batch", m{"acknowledgments": []m{ack(b, "dlq", "boom 2")}, "consumerGroup": "g"}, 200)
	ask("POST", "/api/v1/messages/"+partition+"/c/dlq", m{"consumerGroup": "g", "error": "by hand"}, 200)
	ask("POST", "/api/v1/messages/"+partition+"/nowhere/dlq", nil, 404)

	ask("POST", "/api/v1/transaction", m{"operations": []m{{"type": "push", "items": []m{{"queue": "out", "payload": 1}}}, {"type": "ack", "transactionId": "a", "partitionId": partition, "consumerGroup": "g"}}, "requiredLeases": nil}, 200)
	ask("POST", "/api/v1/transaction", m{"operations": []m{{"type": "ack", "transactionId": "zz", "partitionId": partition}}}, 200)
	ask("POST", "/api/v1/transaction", m{"operations": []m{}}, 400)

	ask("POST", "/api/v1/fetch", m{"entries": []m{{"queue": "orders", "partition": "p", "offset": 0, "maxBytes": 1000}, {"queue": "none", "offset": 7}}, "maxWaitMs": 10, "minBytes": 1}, 200)
	ask("POST", "/api/v1/partitions/changed", m{"entries": []m{{"queue": "orders", "limit": 1}, {"queue": "none"}}}, 200)

	letters := list(ask("GET", "/api/v1/dlq?queue=orders&consumerGroup=g&partition=p&limit=10&offset=0&from=2026-01-01T00:00:00Z", nil, 200)["messages"])
	get("/api/v1/messages?queue=orders&partition=p&status=dead_letter&limit=10", "/api/v1/messages?ns=shop&task=bill&limit=2", "/api/v1/messages/"+partition+"/d", "/api/v1/messages/"+partition+"/a",
		"/api/v1/traces/names?limit=10", "/api/v1/traces/by-name/import", "/api/v1/traces/"+partition+"/a", "/api/v1/analytics/dlq-signatures?queue=orders")
	ask("GET", "/api/v1/messages/"+partition+"/nowhere", nil, 404)
	ask("POST", "/api/v1/dlq/"+letters[0].(m)["id"].(string)+"/replay", m{"queue": "orders", "partition": "again"}, 200)
	ask("POST", "/api/v1/dlq/"+letters[0].(m)["id"].(string)+"/replay", nil, 404)
	ask("POST", "/api/v1/messages/"+partition+"/b/retry", nil, 200)
	ask("POST", "/api/v1/messages/"+partition+"/b/retry", m{}, 404)
	ask("DELETE", "/api/v1/messages/"+partition+"/b", nil, 404)
	ask("DELETE", "/api/v1/messages/"+partition+"/"+letters[2].(m)["transactionId"].(string), nil, 200)
	ask("POST", "/api/v1/dlq/redrive", m{"queue": "orders", "dryRun": true, "limit": 5, "partition": "p", "filter": m{"error": "boom", "transactionIds": []string{"a"}}}, 200)
	redrive := ask("POST", "/api/v1/dlq/redrive", m{"queue": "orders", "rate": 10, "destination": m{"queue": "orders", "partition": "q"}}, 202)["id"].(string)
	get("/api/v1/dlq/redrive/"+redrive, "/api/v1/dlq/redrive?queue=orders&state=running&limit=5")
	ask("DELETE", "/api/v1/dlq/redrive/"+redrive, nil, 200)
	ask("GET", "/api/v1/dlq/redrive/"+uuid.NewString(), nil, 404)
	ask("DELETE", "/api/v1/dlq?queue=orders&consumerGroup=g&partition=p&limit=10&from=2026-01-01T00:00:00Z&to=2099-01-01T00:00:00Z", nil, 200)

	get("/api/v1/resources/queues?namespace=shop&task=bill&limit=10&offset=0", "/api/v1/resources/queues/orders", "/api/v1/resources/queues/orders/depth?group=g",
		"/api/v1/resources/overview", "/api/v1/resources/namespaces", "/api/v1/resources/tasks", "/api/v1/resources/partitions?queue=orders&limit=10",
		"/api/v1/consumer-groups", "/api/v1/consumer-groups/lagging?minLagSeconds=0", "/api/v1/consumer-groups/g",
		"/api/v1/status/queues?limit=10", "/api/v1/status/queues/orders", "/api/v1/status/analytics?interval=minute",
		"/api/v1/analytics/queue-lag?queue=orders", "/api/v1/analytics/queue-ops", "/api/v1/analytics/queue-parked-replicas", "/api/v1/analytics/retention?groupBy=queue",
		"/api/v1/analytics/retention", "/api/v1/analytics/workload?limit=5", "/api/v1/analytics/partition-liveness?queue=orders&limit=5",
		"/status", "/api/v1/status?from=2026-01-01T00:00:00Z", "/api/v1/status/buffers", "/api/v1/analytics/system-metrics", "/api/v1/analytics/worker-metrics", "/api/v1/analytics/postgres-stats",
		"/api/v1/system/maintenance", "/api/v1/system/maintenance/pop", "/api/v1/system/shared-state", "/metrics", "/metrics/prometheus", "/openapi.json", "/health", "/livez", "/readyz",
		"/internal/v1/tenants/"+tenant.String()+"/names?limit=2")
	ask("GET", "/api/v1/resources/queues/none", nil, 404)
	ask("GET", "/api/v1/analytics/retention?groupBy=mood", nil, 400)
	ask("POST", "/api/v1/stats/refresh", nil, 200)
	ask("POST", "/internal/v1/tenants/usage", m{"tenants": []string{tenant.String()}}, 200)
	ask("POST", "/api/v1/system/maintenance/pop", m{"enabled": false}, 200)
	ask("POST", "/api/v1/system/maintenance", m{"enabled": true}, 200)
	ask("POST", "/api/v1/push", m{"items": []m{item("e")}}, 503)
	ask("POST", "/api/v1/system/maintenance", m{"enabled": false}, 200)

	ask("POST", "/api/v1/consumer-groups/g/subscription", m{"subscriptionTimestamp": "2026-09-01T00:00:00Z"}, 200)
	ask("POST", "/api/v1/consumer-groups/g/queues/orders/seek", m{"timestamp": "2026-09-01T00:00:00Z"}, 200)
	ask("POST", "/api/v1/consumer-groups/g/queues/orders/seek", nil, 200)
	ask("POST", "/api/v1/consumer-groups/g/queues/none/seek", m{"toEnd": true}, 404)
	ask("POST", "/api/v1/consumer-groups/g/queues/orders/partitions/p/seek", m{}, 200)
	ask("DELETE", "/api/v1/consumer-groups/g/queues/orders?deleteMetadata=false", nil, 200)
	ask("DELETE", "/api/v1/consumer-groups/g", nil, 200)
	ask("DELETE", "/api/v1/queues/orders/clear?partition=again", nil, 200)
	ask("DELETE", "/api/v1/resources/queues/doomed", nil, 200)
	ask("DELETE", "/api/v1/resources/queues/doomed", nil, 200)
	ask("POST", "/internal/v1/tenants/"+tenant.String()+"/wipe", nil, 200) // the last: nothing works after it
}
