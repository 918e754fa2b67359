package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// dialect is how a published SDK takes what it is told, as spec/sdk-contract.md 1.3 has read it from the sources. It is
// what the gateway's answers are made for; whoever changes an answer sees here whom it stops.
type dialect struct {
	name    string
	tries   int  // of a call that ends in a 5xx or in no answer; pauses of 1, 2 and 4 s between them
	patient bool // it waits when told to by a 429: ten attempts in all, a waiting pop without end

	// Words of an error text, looked for before the status: those on which a consumer polls again at once, and those on
	// which it pauses for a second.
	again, pause []string
	// stubborn is a consumer that polls on after every refusal, at once. The others end on a 4xx.
	stubborn bool
	// fragile is a consumer that ends when a call has failed with a 5xx as often as it tries.
	fragile bool
}

// dialects are the generations that are in use: 1.x waits, 0.15 does not know how to.
var dialects = []dialect{
	{name: "JS 1.x", tries: 3, patient: true, again: []string{"timeout"}, pause: []string{"fetch failed", "ECONNREFUSED"}, fragile: true},
	{name: "Python 1.x", tries: 3, patient: true, again: []string{"timeout", "timed out"}, pause: []string{"connection"}, fragile: true},
	{name: "Go 1.x", tries: 4, patient: true, again: []string{"timeout", "timed out", "deadline exceeded"}, pause: []string{"connection refused", "connection reset", "no such host"}},
	{name: "Rust and C++", tries: 3, patient: true, again: []string{"timeout"}, pause: []string{"connection"}, fragile: true},
	{name: "PHP, asynchronous", tries: 3, fragile: true},
	{name: "JS 0.15", tries: 3, again: []string{"timeout"}, pause: []string{"fetch failed", "ECONNREFUSED"}, fragile: true},
	{name: "Python 0.15", tries: 3, again: []string{"timeout", "timed out"}, pause: []string{"connection"}, fragile: true},
	{name: "Go 0.15", tries: 4, again: []string{"timeout", "timed out", "deadline exceeded"}, pause: []string{"connection refused", "connection reset", "no such host"}, stubborn: true},
}

// The 429 policy of all patient ones. An SDK comes back up to a fifth before the time it was told; the machines here
// always do, which is the hardest on a limit.
const (
	maxPatience = 10
	earliness   = 0.8
	firstPause  = 500 * time.Millisecond
	longestWait = 30 * time.Second
)

// failure is the error of a call as the SDK's caller gets it.
type failure struct {
	status     int // 0: no answer
	code, text string
	retryAfter time.Duration // as told; -1: not told
}

func (f *failure) Error() string { return fmt.Sprintf("%d %s: %s", f.status, f.code, f.text) }

// sdk is a client of a dialect. It is one goroutine's.
type sdk struct {
	dialect
	send  func(ctx context.Context, method, path string, body any) (reply, error)
	asked []int // the status of every answer it got; 0 is none
}

// sleep is an SDK's pause; false when the test ends.
func (s *sdk) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// call is one call of the SDK with all its attempts; waits says that it is a waiting pop.
func (s *sdk) call(ctx context.Context, method, path string, body any, waits bool) (reply, *failure) {
	for failed, told := 0, 0; ; {
		r, err := s.send(ctx, method, path, body)
		f := failureOf(r, err)
		s.asked = append(s.asked, r.status)
		var pause time.Duration
		switch {
		case f == nil:
			return r, nil
		case f.status == http.StatusTooManyRequests && s.patient:
			if told++; told == maxPatience && !waits {
				return r, f
			}
			pause = min(firstPause<<min(told-1, 10), longestWait)
			if f.retryAfter >= 0 {
				pause = f.retryAfter
			}
			pause = time.Duration(earliness * float64(pause))
		case f.status == 0 || f.status >= 500:
			if failed++; failed == s.tries {
				return r, f
			}
			pause = time.Second << (failed - 1)
		default:
			return r, f
		}
		if !s.sleep(ctx, pause) {
			return r, f
		}
	}
}

// failureOf reads an answer as the SDKs do; nil for a success.
func failureOf(r reply, err error) *failure {
	if err != nil {
		return &failure{text: err.Error(), retryAfter: -1}
	}
	if r.status < 400 {
		return nil
	}
	f := &failure{status: r.status, text: fmt.Sprint("HTTP ", r.status), retryAfter: -1}
	var e errorBody
	if json.Unmarshal(r.body, &e) == nil && e.Error != "" {
		f.text, f.code = e.Error, e.Code
	}
	if s, err := strconv.ParseFloat(r.header.Get("Retry-After"), 64); err == nil && s >= 0 {
		f.retryAfter = time.Duration(s * float64(time.Second))
	}
	return f
}

// consume is the SDK's worker: it polls a queue, acknowledges what it gets, and goes on until it has seen want messages
// (nil), the test ends, or its dialect makes of a failure the end of the worker.
func (s *sdk) consume(ctx context.Context, queue string, wait time.Duration, want int) *failure {
	path := fmt.Sprintf("/api/v1/pop/queue/%s?consumerGroup=g&subscriptionMode=all&wait=true&batch=10&timeout=%d", queue, wait.Milliseconds())
	seen := map[string]bool{}
	for ctx.Err() == nil && len(seen) < want {
		r, f := s.call(ctx, "GET", path, nil, true)
		if f != nil {
			if end := s.workerFailed(ctx, f); end != nil {
				return end
			}
			continue
		}
		if r.status == http.StatusNoContent {
			continue
		}
		var got popAnswer
		if err := json.Unmarshal(r.body, &got); err != nil {
			return &failure{status: r.status, text: err.Error()}
		}
		acks := make([]m, len(got.Messages))
		for i, msg := range got.Messages {
			acks[i] = ackOf(msg, "completed")
		}
		if _, f := s.call(ctx, "POST", "/api/v1/ack/batch", m{"acknowledgments": acks, "consumerGroup": "g"}, false); f != nil {
			if end := s.workerFailed(ctx, f); end != nil {
				return end
			}
			continue
		}
		for _, msg := range got.Messages {
			seen[msg.TransactionID] = true
		}
	}
	return nil
}

// workerFailed is what a worker does with a failed call: nil when it goes on.
func (s *sdk) workerFailed(ctx context.Context, f *failure) *failure {
	has := func(words []string) bool {
		for _, w := range words {
			if strings.Contains(strings.ToLower(f.text), strings.ToLower(w)) {
				return true
			}
		}
		return false
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case has(s.again), s.stubborn && f.status >= 400 && f.status < 500:
		return nil
	case has(s.pause), f.status == 0, f.status >= 500 && !s.fragile:
		s.sleep(ctx, time.Second)
		return nil
	case f.status == http.StatusTooManyRequests && s.patient:
		s.sleep(ctx, max(f.retryAfter, time.Second))
		return nil
	}
	return f
}
