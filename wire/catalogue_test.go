package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	for _, c := range Codes() {
		if c.Text() == "" {
			t.Errorf("%s has no text", c)
		}
		if s := c.Status(); s < 400 || s > 599 {
			t.Errorf("%s has status %d", c, s)
		}
		if c.Status() < 500 {
			assertNoTrap(t, string(c))
			assertNoTrap(t, c.Text())
		}
	}
}

// assertNoTrap checks the rule that keeps published SDKs from polling without pause (spec/sdk-contract.md 1.3).
func assertNoTrap(t *testing.T, text string) {
	t.Helper()
	for _, word := range []string{"timeout", "connection", "timed out", "deadline exceeded"} {
		if strings.Contains(strings.ToLower(text), word) {
			t.Errorf("a 4xx says %q: %q", word, text)
		}
	}
}

func TestErrorBody(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err  *Error
		want string
	}{
		"a verdict has the default text and outcome none": {
			&Error{Code: Forbidden},
			`{"error":"the credential does not allow this","code":"forbidden","request_id":"r1","retryable":false,"retry_after_ms":0,"outcome":"none"}`,
		},
		"a limit is named with its numbers": {
			&Error{Code: RateLimited, RetryAfter: 1500 * time.Millisecond, Limit: &Limit{"req", 10, 10.5, "requests_per_second", 1.5}},
			`{"error":"the cluster's rate is used up","code":"rate_limited","request_id":"r1","retryable":true,"retry_after_ms":1500,"outcome":"none","limit":{"name":"req","limit":10,"used":10.5,"unit":"requests_per_second","reset_s":1.5}}`,
		},
		"a fault may have taken effect": {
			AsError(errors.New("secret detail")),
			`{"error":"internal error","code":"internal","request_id":"r1","retryable":true,"retry_after_ms":0,"outcome":"unknown"}`,
		},
		"a detail is escaped": {
			Errorf(InvalidRequest, "no \"%s\"\n", "x"),
			`{"error":"no \"x\"\n","code":"invalid_request","request_id":"r1","retryable":false,"retry_after_ms":0,"outcome":"none"}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := string(tt.err.AppendJSON(nil, "r1"))
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if !json.Valid([]byte(got)) {
				t.Error("the body is not JSON")
			}
		})
	}
}

func TestHeaderAndBodyTellTheSameWait(t *testing.T) {
	t.Parallel()
	for wait, ms := range map[time.Duration]int{
		0: 1000, 1: 1, 1500 * time.Microsecond: 2, time.Second: 1000, 1001 * time.Millisecond: 1001,
	} {
		e := &Error{Code: DatabaseUnavailable, RetryAfter: wait}
		if body := string(e.AppendJSON(nil, "r")); !strings.Contains(body, fmt.Sprintf(`"retry_after_ms":%d,`, ms)) {
			t.Errorf("%v: got %s, want %d ms", wait, body, ms)
		}
		if got, want := e.RetryAfterSeconds(), (ms+999)/1000; got != want {
			t.Errorf("%v: header %d, want %d", wait, got, want)
		}
	}
}

func TestRetryAfterIsRoundedUpAndAtLeastOne(t *testing.T) {
	t.Parallel()
	for wait, want := range map[time.Duration]int{0: 1, time.Millisecond: 1, time.Second: 1, 1001 * time.Millisecond: 2, 90 * time.Second: 90} {
		if got := (&Error{Code: RateLimited, RetryAfter: wait}).RetryAfterSeconds(); got != want {
			t.Errorf("RetryAfter %v: got %d, want %d", wait, got, want)
		}
	}
	if got := (&Error{Code: QuotaExceeded, RetryAfter: time.Minute}).RetryAfterSeconds(); got != 0 {
		t.Errorf("a quota that time cannot cure says Retry-After %d", got)
	}
}

func TestAsErrorFindsAVerdictInAChain(t *testing.T) {
	t.Parallel()
	want := &Error{Code: NotFound}
	if got := AsError(fmt.Errorf("look up: %w", want)); got != want {
		t.Errorf("got %v", got)
	}
	if AsError(nil) != nil {
		t.Error("nil became an error")
	}
}

func TestRoutesAreClassified(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range Routes {
		key := r.Method + " " + r.Pattern
		if seen[key] {
			t.Errorf("%s stands twice", key)
		}
		seen[key] = true
		if r.Op == OpNone || r.Doc == "" {
			t.Errorf("%s has no operation or no doc", key)
		}
		if r.Class == ClassRead && r.Method != "GET" {
			t.Errorf("%s writes but needs only the right to read", key)
		}
		if r.Access == AccessInternal && r.Class != ClassBlocked {
			t.Errorf("%s is internal but passes a gateway", key)
		}
		if r.Tenant && r.Access == AccessPublic {
			t.Errorf("%s is of a tenant but public", key)
		}
	}
}

func TestAccessIsASetNotALadder(t *testing.T) {
	t.Parallel()
	admits := map[Access][]Access{
		AccessReadOnly:  {AccessPublic, AccessReadOnly},
		AccessWriteOnly: {AccessPublic, AccessWriteOnly},
		AccessReadWrite: {AccessPublic, AccessReadOnly, AccessWriteOnly, AccessReadWrite},
		AccessAdmin:     {AccessPublic, AccessReadOnly, AccessWriteOnly, AccessReadWrite, AccessAdmin},
		AccessInternal:  {AccessPublic, AccessInternal},
	}
	for have, allowed := range admits {
		for need := AccessPublic; need <= AccessInternal; need++ {
			if got, want := have.Admits(need), slices.Contains(allowed, need); got != want {
				t.Errorf("%v admits %v: got %v, want %v", have, need, got, want)
			}
		}
	}
}
