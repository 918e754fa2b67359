package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/broker/janitor"
)

// The janitor of a running broker deletes by itself, the bytes come back to the tenant, and the history can be read.
func TestRetentionRunsInTheBroker(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.Janitor = janitor.Config{Interval: janitor.MinInterval} })
	w.do("POST", "/api/v1/configure", `{"queue":"orders","options":{"retentionEnabled":true,"retentionSeconds":3600}}`).want(t, 200)
	w.one("orders", "old")
	w.one("orders", "new")
	if _, err := w.pool.Exec(t.Context(), `WITH s AS (UPDATE queen.log_segments SET created_at = created_at - interval '2 hours' WHERE base_offset = 0 RETURNING created_at)
		UPDATE queen.log_partitions SET oldest_live_at = s.created_at FROM s`); err != nil {
		t.Fatal(err)
	}
	w.until("the old message is gone", func() bool {
		return strings.Contains(w.do("GET", "/api/v1/resources/queues/orders", "").want(t, 200).body, `"total":1`)
	})
	if got := w.pop("orders?batch=10&subscriptionMode=all&consumerGroup=g"); len(got.Messages) != 1 || got.Messages[0].TransactionID != "new" {
		t.Errorf("%+v", got)
	}

	type sums struct {
		RetentionMsgs, CompletedRetentionMsgs, EvictionMsgs, TotalMsgs, EventCount int64
		QueueName                                                                  string
		Bucket                                                                     time.Time
	}
	type history struct {
		BucketMinutes int
		Series, Rows  []sums
		Totals        sums
	}
	all := decode[history](t, w.do("GET", "/api/v1/analytics/retention", "").want(t, 200))
	if all.BucketMinutes != 15 || len(all.Series) != 1 || all.Totals.RetentionMsgs != 1 || all.Totals.TotalMsgs != 1 || all.Totals.EventCount != 1 || all.Series[0].Bucket.IsZero() {
		t.Errorf("%+v", all)
	}
	byQueue := decode[history](t, w.do("GET", "/api/v1/analytics/retention?groupBy=queue&from="+time.Now().Add(-time.Minute).UTC().Format(time.RFC3339), "").want(t, 200))
	if len(byQueue.Rows) != 1 || byQueue.Rows[0].QueueName != "orders" || byQueue.Rows[0].RetentionMsgs != 1 {
		t.Errorf("%+v", byQueue)
	}
	if none := decode[history](t, w.do("GET", "/api/v1/analytics/retention?queue=another", "").want(t, 200)); none.Totals.TotalMsgs != 0 || none.Series == nil {
		t.Errorf("%+v", none)
	}
	if a := w.do("GET", "/api/v1/analytics/retention?groupBy=colour", "").want(t, 400); !strings.Contains(a.body, "bad groupBy") {
		t.Error(a.body)
	}
	if a := w.do("GET", "/metrics/prometheus", ""); !strings.Contains(a.body, `queengate_janitor_messages_total{rule="retention"} 1`) {
		t.Error("the counters of the janitor are not served")
	}
}
