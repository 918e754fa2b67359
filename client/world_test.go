package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// answer is what the server of a test says to one request.
type answer struct {
	status     int
	retryAfter string
	body       string
	err        error         // instead of an answer
	after      time.Duration // by the clock of the test
	degraded   bool
}

// request is what a test saw of a request.
type request struct {
	host, line, body string
	at               time.Duration // since the start of the server
	header           http.Header
}

// server stands in for the gateway, without sockets, so that it lives in the clock of a synctest bubble. answer is called
// by one request at a time.
type server struct {
	answer func(n int, r request) answer // n from 0

	mu       sync.Mutex // guards requests
	begin    time.Time
	requests []request
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	seen := request{host: r.URL.Host, line: r.Method + " " + r.URL.RequestURI(), header: r.Header}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		seen.body = string(body)
	}
	s.mu.Lock()
	seen.at = time.Since(s.begin)
	n := len(s.requests)
	s.requests = append(s.requests, seen)
	a := s.answer(n, seen)
	s.mu.Unlock()
	if a.after > 0 {
		select {
		case <-time.After(a.after):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	h := http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}, "X-Queen-Request-Id": {"req-1"}}
	if a.retryAfter != "" {
		h.Set("Retry-After", a.retryAfter)
	}
	if a.degraded {
		h.Set("X-Queen-Degraded", "upstream")
	}
	return &http.Response{StatusCode: a.status, Header: h, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, nil
}

func (s *server) seen() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]request(nil), s.requests...)
}

// lines are the requests without their bodies.
func (s *server) lines() []string {
	var l []string
	for _, r := range s.seen() {
		l = append(l, r.line)
	}
	return l
}

// script answers in turn and fails the test when it is asked more often.
func script(t *testing.T, answers ...answer) func(int, request) answer {
	return func(n int, r request) answer {
		if n >= len(answers) {
			t.Errorf("request %d is one too many: %s", n+1, r.line)
			return answer{status: 418}
		}
		return answers[n]
	}
}

// start returns a client of a server that answers by f.
func start(t *testing.T, f func(int, request) answer, change ...func(*Options)) (*Client, *server) {
	t.Helper()
	s := &server{answer: f, begin: time.Now()}
	o := Options{URLs: []string{"http://gateway"}, Key: "qk_test", HTTPClient: &http.Client{Transport: s}}
	for _, c := range change {
		c(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// refused is an error body.
func refused(status int, code, outcome string) answer {
	return answer{status: status, body: fmt.Sprintf(`{"error":"no","code":%q,"request_id":"req-9","retryable":false,"retry_after_ms":0,"outcome":%q}`, code, outcome)}
}

// queued answers a push as the broker does.
func queued(r request) answer {
	var body struct{ Items []item }
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		return answer{status: 400, body: err.Error()}
	}
	var results []string
	for i, it := range body.Items {
		results = append(results, fmt.Sprintf(`{"index":%d,"message_id":"m","transaction_id":%q,"queueName":%q,"status":"queued","offset":%d}`, i, it.TransactionID, it.Queue, i))
	}
	return answer{status: 201, body: "[" + strings.Join(results, ",") + "]"}
}

// acked answers an ack as the broker does when all is well.
func acked(r request) answer {
	var body struct{ Acknowledgments []ack }
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		return answer{status: 400, body: err.Error()}
	}
	var results []string
	for i, a := range body.Acknowledgments {
		results = append(results, fmt.Sprintf(`{"index":%d,"transactionId":%q,"success":true,"error":null,"leaseReleased":false,"dlq":false,"noop":false}`, i, a.TransactionID))
	}
	return answer{status: 200, body: "[" + strings.Join(results, ",") + "]"}
}

// delivered answers a pop with messages, named partition/transaction id, under one lease that begins now.
func delivered(lease time.Duration, names ...string) answer {
	var ms []string
	for i, name := range names {
		partition, id, _ := strings.Cut(name, "/")
		ms = append(ms, fmt.Sprintf(`{"id":"m-%s","transactionId":%q,"traceId":null,"data":{"n":%d},"producerSub":null,"createdAt":"2026-09-01T10:11:12.123456Z",
			"partitionId":"id-%s","partition":%q,"queue":"orders","offset":%d,"leaseId":"lease-1","leaseExpiresAt":%q,"consumerGroup":"billing","deliveryAttempt":1}`,
			id, id, i, partition, partition, i, time.Now().Add(lease).UTC().Format(time.RFC3339Nano)))
	}
	return answer{status: 200, body: `{"success":true,"messages":[` + strings.Join(ms, ",") + `]}`}
}

var errBroken = errors.New("the wire is cut")

// as returns the *Error in err.
func as(t *testing.T, err error) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want an *Error", err, err)
	}
	return e
}

func between(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %s, want %s…%s", what, got, least, most)
	}
}
