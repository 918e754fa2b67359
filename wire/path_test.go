package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		method, path string
		op           Op
		params       Params
		code         Code
	}{
		"push":                         {"POST", "/api/v1/push", OpPush, Params{}, ""},
		"a doubled leading slash":      {"POST", "//api/v1/push", OpPush, Params{}, ""},
		"a name is decoded once":       {"GET", "/api/v1/pop/queue/a%252Fb", OpPop, Params{"a%2Fb"}, ""},
		"a slash inside a name":        {"GET", "/api/v1/pop/queue/a%2Fb/partition/c%20d", OpPopPartition, Params{"a/b", "c d"}, ""},
		"plus stays plus":              {"GET", "/api/v1/pop/queue/a+b", OpPop, Params{"a+b"}, ""},
		"raw characters pass":          {"GET", "/api/v1/pop/queue/a:b@é", OpPop, Params{"a:b@é"}, ""},
		"three dots are a name":        {"GET", "/api/v1/pop/queue/...", OpPop, Params{"..."}, ""},
		"health":                       {"GET", "/health", OpHealth, Params{}, ""},
		"a wrong method":               {"PUT", "/api/v1/push", OpNone, Params{}, MethodNotAllowed},
		"an unknown path":              {"GET", "/api/v1/nothing", OpNone, Params{}, NoSuchRoute},
		"case matters":                 {"POST", "/API/v1/push", OpNone, Params{}, NoSuchRoute},
		"an escaped static segment":    {"POST", "/api/v1/%70ush", OpNone, Params{}, NoSuchRoute},
		"the root":                     {"GET", "/", OpNone, Params{}, NoSuchRoute},
		"very many segments":           {"GET", strings.Repeat("/a", 50), OpNone, Params{}, NoSuchRoute},
		"a dot segment":                {"POST", "/api/v1/resources/../push", OpNone, Params{}, InvalidRequest},
		"an encoded dot segment":       {"POST", "/api/v1/%2E%2e/push", OpNone, Params{}, InvalidRequest},
		"a half encoded dot segment":   {"GET", "/api/v1/pop/queue/.%2e", OpNone, Params{}, InvalidRequest},
		"an empty segment":             {"GET", "/api/v1/pop/queue//partition/p", OpNone, Params{}, InvalidRequest},
		"a trailing slash":             {"POST", "/api/v1/push/", OpNone, Params{}, InvalidRequest},
		"three leading slashes":        {"POST", "///api/v1/push", OpNone, Params{}, InvalidRequest},
		"a percent sign as it is":      {"GET", "/api/v1/pop/queue/100%/partition/5%2x%25", OpPopPartition, Params{"100%", "5%2x%"}, ""},
		"an encoded control character": {"GET", "/api/v1/pop/queue/a%1f", OpPop, Params{}, InvalidRequest},
		"invalid UTF-8":                {"GET", "/api/v1/pop/queue/%ff", OpPop, Params{}, InvalidRequest},
		"NUL":                          {"GET", "/api/v1/pop/queue/a\x00", OpNone, Params{}, InvalidRequest},
		"three kilobytes of name":      {"GET", "/api/v1/pop/queue/" + strings.Repeat("a", 3072), OpPop, Params{}, InvalidRequest},
		"three kilobytes of id":        {"GET", "/api/v1/messages/p/" + strings.Repeat("a", 3072), OpGetMessage, Params{"p", strings.Repeat("a", 3072)}, ""},
		"an id as long as a push's":    {"POST", "/api/v1/messages/p/" + strings.Repeat("a", MaxTransactionIDBytes) + "/retry", OpRetryMessage, Params{"p", strings.Repeat("a", MaxTransactionIDBytes)}, ""},
		"an id longer than a push's":   {"GET", "/api/v1/traces/p/" + strings.Repeat("a", MaxTransactionIDBytes+1), OpNone, Params{}, InvalidRequest},
		"no leading slash":             {"GET", "api/v1/push", OpNone, Params{}, InvalidRequest},
		"nothing":                      {"GET", "", OpNone, Params{}, InvalidRequest},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p, err := Match(tt.method, []byte(tt.path))
			if tt.code != "" {
				if e := AsError(err); e == nil || e.Code != tt.code {
					t.Errorf("got %v, want %s", err, tt.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Op != tt.op || p != tt.params {
				t.Errorf("got %v %q, want %v %q", r.Op, p, tt.op, tt.params)
			}
		})
	}
}

func TestMethodNotAllowedNamesTheMethods(t *testing.T) {
	t.Parallel()
	_, _, err := Match("PATCH", []byte("/api/v1/resources/queues/q"))
	if e := AsError(err); e.Code != MethodNotAllowed || e.Allow != "GET, DELETE" {
		t.Errorf("got %v, Allow %q", err, e.Allow)
	}
}

// FuzzMatch checks that what a gateway sends upstream means what it classified.
func FuzzMatch(f *testing.F) {
	for _, s := range []string{"/api/v1/push", "/api/v1/pop/queue/a%2Fb/partition/%C3%A9", "//health", "/api/v1/../push", "/api/v1/pop/queue/%2e%2E", "/api/v1/pop/queue/a%00", "/api/v1/pop/queue/+", "/api/v1/pop/queue/%/partition/%2"} {
		f.Add("GET", s)
		f.Add("POST", s)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		r, p, err := Match(method, []byte(path))
		if err != nil {
			if e := AsError(err); e.Code == Internal {
				t.Fatalf("an unplanned error: %v", err)
			}
			return
		}
		canonical := AppendPath(nil, r, p)
		r2, p2, err := Match(method, canonical)
		if err != nil || r2 != r || p2 != p {
			t.Fatalf("%q became %q, which reads back as %v %q, %v", path, canonical, r2, p2, err)
		}
	})
}

func TestParsePopQuery(t *testing.T) {
	t.Parallel()
	base := PopQuery{Batch: 200, Partitions: 1, Timeout: 30 * time.Second, Group: QueueModeGroup}
	with := func(f func(*PopQuery)) PopQuery { q := base; f(&q); return q }
	tests := map[string]struct {
		query string
		want  PopQuery
	}{
		"nothing":              {"", base},
		"stray ampersands":     {"&&wait=true&", with(func(q *PopQuery) { q.Wait = true })},
		"everything":           {"batch=5&partitions=3&autoAck=true&wait=false&timeout=1500&leaseSeconds=9&consumerGroup=a%26b+c&subscriptionMode=all&subscriptionFrom=now&conflation=true&autopilot=true&namespace=n%2F&task=t", PopQuery{5, true, 3, true, true, false, 1500 * time.Millisecond, true, 9, "a&b c", "all", "now", true, true, "n/", "t"}},
		"less than one is one": {"batch=0&partitions=-1&leaseSeconds=-3", with(func(q *PopQuery) { q.Batch, q.BatchGiven, q.Partitions, q.PartitionsGiven = 1, true, 0, true })},
		"unknown keys":         {"Namespace=x&pilot=true&Batch=7", base},
		"an escaped key":       {"w%61it=true", with(func(q *PopQuery) { q.Wait = true })},
		"an empty group":       {"consumerGroup=", base},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParsePopQuery([]byte(tt.query))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	for name, query := range map[string]string{
		"a number that is none": "batch=abc", "a boolean that is none": "wait=1", "a negative wait": "timeout=-1", "a wait that is none": "timeout=x", "a key twice": "wait=true&wait=true",
		"a key twice, once escaped": "wait=true&w%61it=true", "a bad escape": "batch=%", "a conflation that is none": "conflation=1", "a control character in a task": "task=%00", "a long namespace": "namespace=" + strings.Repeat("n", 513), "an overflow": "batch=99999999999",
		"a control character": "consumerGroup=a%1fb", "a long group": "consumerGroup=" + strings.Repeat("g", 513), "invalid UTF-8": "consumerGroup=%ff",
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			_, err := ParsePopQuery([]byte(query))
			e := AsError(err)
			if e == nil || e.Code != InvalidRequest {
				t.Fatalf("got %v", err)
			}
			assertNoTrap(t, e.Text())
		})
	}
}

func FuzzPopQuery(f *testing.F) {
	for _, s := range []string{"", "batch=5&wait=true&timeout=100&consumerGroup=a%2Bb", "w%61it=true", "subscriptionFrom=2026-01-01T00%3A00%3A00Z", "batch=+5", "consumerGroup=__QUEUE_MODE__&subscriptionMode=__QUEUE_MODE__", "namespace=a&task=%2F&conflation=true&autopilot=true", "partitions=200"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, err := ParsePopQuery([]byte(query))
		if err != nil {
			return
		}
		back, err := ParsePopQuery(q.AppendQuery(nil))
		if err != nil || back != q {
			t.Fatalf("%q is %+v, sent as %q, reads back as %+v, %v", query, q, q.AppendQuery(nil), back, err)
		}
	})
}
