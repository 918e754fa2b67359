package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/queengate/queengate/internal/launch"
	"github.com/queengate/queengate/internal/pgtest"
)

// The faults of the existing proxy, by their numbers (W13 and so on), that nothing but the running system can show to be
// absent. docs/design/known-faults.md lists all of them with their tests.

// W13: retrying a dead letter, there, was reading.
func TestAReadKeyChangesNothing(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	c.push(t, items("q", "p", "t", 2))
	got := c.pop(t, "q", "consumerGroup=g&subscriptionMode=all&batch=1")
	if len(got.Messages) != 1 {
		t.Fatalf("popped %+v", got)
	}
	msg := got.Messages[0]
	if r := c.ack(t, []m{ackOf(msg, "dlq")}, "g"); !r[0].DLQ {
		t.Fatalf("buried %+v", r)
	}
	at := "/api/v1/messages/" + msg.PartitionID + "/" + msg.TransactionID
	list := c.call(t, "GET", "/api/v1/dlq?queue=q", nil, key(c.read))
	letter := decode[struct{ Messages []m }](t, list.body).Messages
	if list.status != 200 || len(letter) != 1 {
		t.Fatalf("dead letters: %d %s", list.status, list.body)
	}
	for what, r := range map[string]struct {
		method, path string
		body         any
	}{
		"retrying a message":         {"POST", at + "/retry", m{"consumerGroup": "g"}},
		"deleting a message":         {"DELETE", at, nil},
		"burying a message":          {"POST", at + "/dlq", m{"consumerGroup": "g"}},
		"replaying a dead letter":    {"POST", fmt.Sprintf("/api/v1/dlq/%v/replay", letter[0]["id"]), m{}},
		"redriving":                  {"POST", "/api/v1/dlq/redrive", m{"queue": "q"}},
		"purging dead letters":       {"DELETE", "/api/v1/dlq?queue=q", nil},
		"deleting a queue":           {"DELETE", "/api/v1/resources/queues/q", nil},
		"configuring a queue":        {"POST", "/api/v1/configure", m{"queue": "q"}},
		"moving a group":             {"POST", "/api/v1/consumer-groups/g/queues/q/seek", m{"timestamp": "2020-01-01T00:00:00Z"}},
		"deleting a group":           {"DELETE", "/api/v1/consumer-groups/g", nil},
		"pushing":                    {"POST", "/api/v1/push", items("q", "p", "x", 1)},
		"popping":                    {"GET", "/api/v1/pop/queue/q", nil},
		"acknowledging":              {"POST", "/api/v1/ack", m{"transactionId": "x", "partitionId": msg.PartitionID}},
		"a transaction":              {"POST", "/api/v1/transaction", m{"operations": []m{}}},
		"extending a lease":          {"POST", "/api/v1/lease/" + got.LeaseID + "/extend", nil},
		"reading a log by offset":    {"POST", "/api/v1/fetch", m{"entries": []m{}}},
		"adding to a message's past": {"POST", "/api/v1/traces", m{"transactionId": msg.TransactionID, "partitionId": msg.PartitionID, "data": m{}}},
	} {
		if r := c.call(t, r.method, r.path, r.body, key(c.read)); r.status != http.StatusForbidden {
			t.Errorf("%s with a read key: %d %s", what, r.status, r.body)
		}
	}
	after := c.call(t, "GET", "/api/v1/dlq?queue=q", nil, key(c.read))
	if string(after.body) != string(list.body) {
		t.Errorf("the dead letters were %s, they are %s", list.body, after.body)
	}
}

// W17: who has no credential learns of no cluster whether it is there or how it fares.
func TestWithoutACredentialNothingIsRevealed(t *testing.T) {
	t.Parallel()
	s := shared(t)
	states := map[string]string{"no such cluster": "nobody-has-this-name", "the shared host": ""}
	for _, status := range []string{"active", "paused", "suspended"} {
		c := s.newCluster(t, "")
		c.exec(t, `SELECT queengate.set_cluster_status($1::uuid, $2)`, c.id, status)
		c.settle(t)
		states[status] = c.slug
	}
	rid := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
	for credential, line := range map[string]string{
		"none": "", "a wrong key": "Authorization: Bearer qk_test_" + strings.Repeat("A", 43) + "\r\n", "rubbish": "Authorization: x\r\n",
		"a token": "Authorization: Bearer eyJhbGciOiJub25lIn0.e30.\r\n",
	} {
		for _, request := range []string{"POST /api/v1/push", "GET /api/v1/pop/queue/q", "GET /api/v1/resources/queues", "GET /api/v1/status", "GET /nowhere", "PUT /api/v1/push"} {
			answers := map[string][]string{}
			for state, slug := range states {
				host := "localhost"
				if slug != "" {
					host = slug + ".localhost"
				}
				r, _ := raw(t, s.proc.Credentials.GatewayURL, request+" HTTP/1.1\r\nHost: "+host+"\r\n"+line+"Content-Length: 0\r\n\r\n")
				names := slices.Sorted(maps.Keys(r.header))
				answers[fmt.Sprint(r.status, names, rid.ReplaceAllString(string(r.body), "ID"))] = append(answers[fmt.Sprint(r.status, names)], state)
				if r.status < 400 {
					t.Errorf("%s with %s: %d", request, credential, r.status)
				}
			}
			if len(answers) != 1 {
				t.Errorf("%s with %s is answered in %d ways: %v", request, credential, len(answers), answers)
			}
		}
	}
}

// W42: a path has one meaning or none. Each of these is another route to one reader than to the next.
func TestPathsHaveOneMeaning(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	const body = `{"items":[{"queue":"smuggled","payload":1}]}`
	for rule, path := range map[string]string{
		"a dot segment":                 "/api/v1/resources/../push",
		"an encoded dot segment":        "/api/v1/resources/%2e%2e/push",
		"a half encoded one":            "/api/v1/resources/.%2E/push",
		"a single dot":                  "/api/v1/./push",
		"a double slash":                "/api/v1//push",
		"two slashes too many in front": "///api/v1/push", // one is a base URL that ends in a slash, and forwarded as one path

		"a slash behind":             "/api/v1/push/",
		"a dot behind":               "/api/v1/push/.",
		"an encoded slash":           "/api/v1%2fpush",
		"a backslash":                `/api/v1\push`,
		"an encoded backslash":       "/api/v1%5cpush",
		"a NUL":                      "/api/v1/push%00",
		"a semicolon":                "/api/v1/push;x=y",
		"an encoded letter":          "/api/v1/%70ush",
		"a doubly encoded letter":    "/api/v1/%2570ush",
		"another case":               "/API/v1/PUSH",
		"an encoded question mark":   "/api/v1/push%3fx=y",
		"an encoded space":           "/api/v1/push%20",
		"an overlong dot":            "/api/v1/resources/%c0%ae%c0%ae/push",
		"half an escape":             "/api/v1/push%",
		"a fragment":                 "/api/v1/push#x",
		"an asterisk":                "*",
		"an authority":               "localhost:80",
		"a file":                     "file:///api/v1/push",
		"another host in the path":   "http://evil.example/api/v1/push",
		"a user before the host":     "http://x@localhost/api/v1/push",
		"a read that becomes a push": "/api/v1/resources/queues/../../push",
	} {
		for who, k := range map[string]string{"read": c.read, "all": c.full} {
			r, _ := raw(t, c.proc.Credentials.GatewayURL, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+k+
				fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
			if r.status != http.StatusBadRequest && r.status != http.StatusNotFound {
				t.Errorf("%s with the key %s: %d %s", rule, who, r.status, r.body)
			}
		}
	}
	if r := c.call(t, "GET", "/api/v1/resources/queues/smuggled", nil); r.status != http.StatusNotFound {
		t.Errorf("something was pushed: %d %s", r.status, r.body)
	}
}

// W43: whatever makes a pop wait is seen by who counts the waiting. The cluster may park nothing at all.
func TestEverySpellingOfWaitingIsCounted(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_parked_pops":0}`)
	for query, want := range map[string][]int{
		"wait=true":               {403},
		"wait=true&timeout=60000": {403},
		"%77ait=true":             {403},
		"wait=%74rue":             {403},
		"wait=true&wait=false":    {400},
		"wait=false&wait=true":    {400},
		"&&wait=true&&":           {403},
		"wait=TRUE":               {400, 403},
		"wait=1":                  {400, 403},
		"wait=yes":                {400, 403},
		"wait=t":                  {400, 403},
		"wait":                    {400, 403},
		"wait=%zz":                {400},
		"wait=true;timeout=60000": {400, 403},
		// These ask for more than the client's own time, were it a wait.
		"x=y;wait=true&timeout=80000": {204, 400},
		"Wait=true&timeout=80000":     {204},
		"WAIT=true&timeout=80000":     {204},
		"wait[]=true&timeout=80000":   {204},
		"wait=false&timeout=80000":    {204},
		"timeout=80000":               {204},
		"":                            {204},
	} {
		r := c.call(t, "GET", "/api/v1/pop/queue/q?"+query, nil)
		if !slices.Contains(want, r.status) {
			t.Errorf("%q: %d %s, want one of %v", query, r.status, r.body, want)
		}
	}
}

// W41: what cannot be parsed is refused by the gateway and reaches no broker; what the gateway counts is what is stored.
func TestWhatIsStoredIsWhatWasCounted(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	for rule, body := range map[string]string{
		"no payload":                   `{"items":[{"queue":"q"}]}`,
		"a partition that is a number": `{"items":[{"queue":"q","partition":7,"payload":1}]}`,
		"a queue twice":                `{"items":[{"queue":"a","queue":"b","payload":1}]}`,
		"items twice":                  `{"items":[],"items":[{"queue":"q","payload":1}]}`,
		"items in another case":        `{"Items":[{"queue":"q","payload":1}]}`,
		"a payload twice":              `{"items":[{"queue":"q","payload":1,"payload":"` + strings.Repeat("x", 1000) + `"}]}`,
		"a tail":                       `{"items":[{"queue":"q","payload":1}]}{"items":[{"queue":"q","payload":2}]}`,
		"no UTF-8":                     "{\"items\":[{\"queue\":\"q\",\"payload\":\"\xff\"}]}",
		"a comment":                    `{"items":[{"queue":"q","payload":1}]/**/}`,
		"a trailing comma":             `{"items":[{"queue":"q","payload":1},]}`,
		"no number":                    `{"items":[{"queue":"q","payload":NaN}]}`,
		"a byte order mark":            "\xef\xbb\xbf" + `{"items":[{"queue":"q","payload":1}]}`,
		"a deep nest":                  `{"items":[{"queue":"q","payload":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}]}`,
		"an empty name":                `{"items":[{"queue":"","payload":1}]}`,
		"a control character":          `{"items":[{"queue":"q\u0000","payload":1}]}`,
		"a list":                       `[{"queue":"q","payload":1}]`,
		"nothing":                      ``,
	} {
		r := c.call(t, "POST", "/api/v1/push", body)
		if r.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", rule, r.status, r.body)
		}
		if e := r.refusal(t); e.Code != "invalid_request" || e.RequestID == "" {
			t.Errorf("%s: %+v", rule, e)
		}
	}
	if r := c.call(t, "GET", "/api/v1/resources/queues", nil); strings.Contains(string(r.body), `"name"`) {
		t.Errorf("there are queues of refused pushes: %s", r.body)
	}
	// An escape in a name is the same name to both.
	c.override(t, `{"max_queues":1}`)
	c.settle(t)
	c.push(t, `{"items":[{"queue":"orders","payload":1},{"\u0071ueue":"\u006frders","payload":1}]}`)
	if r := c.call(t, "POST", "/api/v1/push", `{"items":[{"queue":"\u006fthers","payload":1}]}`); r.status != http.StatusForbidden {
		t.Errorf("a second queue: %d %s", r.status, r.body)
	}
}

// W23: a process that may open too few files for what it promises says so at its start, and what it may is a metric.
func TestTooFewOpenFilesAreToldAtTheStart(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	limited := filepath.Join(dir, "limited")
	if err := os.WriteFile(limited, []byte("#!/bin/sh\nulimit -n 900\nexec "+bin+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	p, err := launch.Up(ctx, limited, filepath.Join(dir, "data"), nil, "--postgres", pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if got := metric(t, p.Credentials.OpsURL+"/metrics", "process_max_fds"); got != 900 {
		t.Errorf("process_max_fds is %v", got)
	}
	eventually(t, 20*time.Second, "the log to tell", func() bool {
		log, err := os.ReadFile(filepath.Join(dir, "data", "log", "queengate.log"))
		return err == nil && strings.Contains(string(log), "gateway.max_conns = 50000 wants 100512")
	})
}

// boundedLabels are the labels that series on the operators' scrape may have, each a set that no tenant makes larger.
var boundedLabels = []string{
	"route", "status", "code", "kind", "why", "outcome", "part", "cell", "broker", "probe", "version", "go", "le", "quantile", "class", "task",
	"rule", "cause", "op", "result", "mode", "limit", "verdict", "reason", "scope",
	"keys", // of issuers: the state of their keys
}

// TestTenantsMakeNoSeries sends the traffic of a thousand tenants with a queue each through gateway and broker: no name of
// theirs is in the operators' scrape, and there are as many series as ten tenants make.
func TestTenantsMakeNoSeries(t *testing.T) {
	t.Parallel()
	s, err := startWith([]string{"QUEENGATE_LOG_LEVEL=warn"}, dataDir(t), "--postgres", pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	s.stopAtEnd(t)
	const few, many = 10, 1000
	c := s.newCluster(t, "")
	keys := make([]string, many)
	for i := range keys {
		keys[i] = fmt.Sprintf("qk_test_%043d", i)
	}
	c.exec(t, `SELECT queengate.create_tenant('canary-' || i, 'canary-' || i) FROM generate_series(0, $1 - 1) i`, many)
	c.exec(t, `SELECT queengate.create_cluster(t.id, t.slug, 'dedicated-s', (SELECT slug FROM queengate.cells LIMIT 1)) FROM queengate.tenants t WHERE t.slug LIKE 'canary-%'`)
	c.exec(t, `SELECT queengate.issue_api_key(c.id, 'canary-key', sha256(convert_to('qk_test_' || lpad(substr(c.slug, 8), 43, '0'), 'UTF8')), NULL, '{produce,consume,admin,read}')
		FROM queengate.clusters c WHERE c.slug LIKE 'canary-%'`)
	c.settle(t)
	traffic := func(from, to int) {
		t.Helper()
		var workers sync.WaitGroup
		next := make(chan int)
		for range 8 {
			workers.Go(func() {
				for i := range next {
					if err := useAll(t.Context(), c, keys[i], fmt.Sprint("canary-queue-", i)); err != nil {
						t.Errorf("tenant %d: %v", i, err)
					}
				}
			})
		}
		for i := from; i < to; i++ {
			next <- i
		}
		close(next)
		workers.Wait()
	}
	traffic(0, few)
	before, _ := scrape(t, s)
	traffic(few, many)
	after, text := scrape(t, s)

	if strings.Contains(text, "canary") {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "canary") {
				t.Fatalf("the scrape names a tenant's: %s", line)
			}
		}
	}
	count := func(families map[string]*dto.MetricFamily) (n int) {
		for _, f := range families {
			n += len(f.Metric)
		}
		return n
	}
	// A status that came up for the first time makes a series; a thousand tenants would make a thousand.
	if a, b := count(before), count(after); b > a+30 {
		t.Errorf("%d series of %d tenants became %d of %d", a, few, b, many)
		for name, f := range after {
			if n := len(f.Metric); n > 30 {
				t.Logf("%s has %d", name, n)
			}
		}
	}
	unknown := map[string]string{}
	for name, f := range after {
		for _, series := range f.Metric {
			for _, l := range series.Label {
				if !slices.Contains(boundedLabels, l.GetName()) {
					unknown[l.GetName()] = fmt.Sprintf("%s=%q of %s", l.GetName(), l.GetValue(), name)
				}
			}
		}
	}
	for _, of := range unknown {
		t.Errorf("the label %s is not in the list: is it bounded? then it belongs there", of)
	}
}

// useAll is a bit of everything that a tenant does, and of what it is refused.
func useAll(ctx context.Context, c *cluster, k, queue string) error {
	const group = "canary-group"
	for _, r := range []struct {
		method, path string
		body         any
		want         int
	}{
		{"POST", "/api/v1/push", m{"items": []m{{"queue": queue, "partition": "canary-partition", "payload": 1}}}, 201},
		{"GET", "/api/v1/pop/queue/" + queue + "?subscriptionMode=all&consumerGroup=" + group, nil, 200},
		{"GET", "/api/v1/resources/queues/" + queue, nil, 200},
		{"GET", "/api/v1/resources/queues/canary-absent", nil, 404},
		{"GET", "/canary/" + queue, nil, 404},
		{"POST", "/api/v1/push", `{"canary":`, 400},
	} {
		got, err := c.try(ctx, r.method, r.path, r.body, key(k))
		if err != nil {
			return err
		}
		if got.status != r.want {
			return fmt.Errorf("%s %s: %d %s, want %d", r.method, r.path, got.status, got.body, r.want)
		}
	}
	return nil
}

// scrape reads the operators' metrics, those of gateway and broker together.
func scrape(t *testing.T, s *system) (families map[string]*dto.MetricFamily, text string) {
	t.Helper()
	resp, err := http.Get(s.proc.Credentials.OpsURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if families, err = parser.TextToMetricFamilies(strings.NewReader(string(raw))); err != nil {
		t.Fatal(err)
	}
	return families, string(raw)
}
