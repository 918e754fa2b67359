package store

import (
	"errors"
	"testing"

	"github.com/queengate/queengate/wire"
)

// What the plan says of queues without retention holds however a queue comes to be, and shows in its options.
func TestUnboundedRetention(t *testing.T) {
	t.Parallel()
	given := Unbounded{Ceiling: 600}
	refused := Unbounded{Ceiling: 600, Refuse: true}
	type options struct {
		enabled            bool
		seconds, completed int
	}
	for rule, c := range map[string]struct {
		policy Unbounded
		body   string // of a configure; "": the queue is born of a push
		want   options
		refuse bool
	}{
		"allowed: a pushed queue keeps everything":              {Unbounded{}, "", options{}, false},
		"allowed: a configured queue keeps everything":          {Unbounded{}, `{"queue":"q"}`, options{}, false},
		"ceiling: a pushed queue has it":                        {given, "", options{true, 600, 0}, false},
		"ceiling: a configured queue has it":                    {given, `{"queue":"q"}`, options{true, 600, 0}, false},
		"ceiling: what states less keeps it":                    {given, `{"queue":"q","options":{"retentionEnabled":true,"retentionSeconds":5}}`, options{true, 5, 0}, false},
		"ceiling: seconds without the switch are no retention":  {given, `{"queue":"q","options":{"retentionSeconds":5}}`, options{true, 600, 0}, false},
		"ceiling: a rule on completed messages alone is none":   {given, `{"queue":"q","options":{"retentionEnabled":true,"completedRetentionSeconds":7}}`, options{true, 600, 7}, false},
		"ceiling: a rule that was off does not begin to delete": {given, `{"queue":"q","options":{"completedRetentionSeconds":7}}`, options{true, 600, 0}, false},
		"refuse: a pushed queue is not born":                    {refused, "", options{}, true},
		"refuse: a configured queue is not born":                {refused, `{"queue":"q","options":{"retentionEnabled":false}}`, options{}, true},
		"refuse: what states retention is made":                 {refused, `{"queue":"q","options":{"retentionEnabled":true,"retentionSeconds":5}}`, options{true, 5, 0}, false},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t)
			caps := Caps{Unbounded: c.policy}
			var err error
			if c.body == "" {
				_, err = w.Provision(t.Context(), w.tenant, []Pair{{"q", "p"}}, caps)
			} else {
				_, err = w.Configure(t.Context(), w.tenant, configure(t, c.body), wire.ConfigureReplace, caps)
			}
			q, lookErr := w.LookupQueue(t.Context(), w.tenant, "q")
			if lookErr != nil {
				t.Fatal(lookErr)
			}
			if c.refuse {
				e, ok := errors.AsType[*wire.Error](err)
				want := wire.Limit{Name: "retention", Limit: 600, Unit: "seconds"}
				if !ok || e.Code != wire.QuotaExceeded || e.Limit == nil || *e.Limit != want || q != nil {
					t.Fatalf("got %v and queue %+v, want a refusal with %+v and no queue", err, q, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			o := q.Options
			if got := (options{o.RetentionEnabled, o.RetentionSeconds, o.CompletedRetentionSeconds}); got != c.want {
				t.Errorf("the queue has %+v, want %+v", got, c.want)
			}
		})
	}
}

// A queue that is there was made under other rules, and its producers go on; its next configure is judged.
func TestUnboundedRetentionLeavesQueuesThatExist(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	w.partition("old", "p")
	caps := Caps{Unbounded: Unbounded{Ceiling: 600, Refuse: true}}
	if _, err := w.Provision(t.Context(), w.tenant, []Pair{{"old", "another"}}, caps); err != nil {
		t.Fatal(err)
	}
	_, err := w.Configure(t.Context(), w.tenant, configure(t, `{"queue":"old","mode":"merge","options":{"priority":1}}`), "", caps)
	if e, ok := errors.AsType[*wire.Error](err); !ok || e.Limit == nil || e.Limit.Name != "retention" {
		t.Errorf("a configure that leaves it without retention got %v", err)
	}
}
