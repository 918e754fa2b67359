package plans

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descAway = prometheus.NewDesc("queengate_control_database_away",
		"1 while the control database cannot be read and the gateway serves what it knew last.", nil, nil)
	descBookAge = prometheus.NewDesc("queengate_control_book_age_seconds",
		"Time since what the gateway knows was last known to be the control database's state.", nil, nil)
	descFileAge = prometheus.NewDesc("queengate_control_file_age_seconds",
		"The same of the last-known-good file; absent while there is none.", nil, nil)
	descFileErrors = prometheus.NewDesc("queengate_control_file_errors_total",
		"Times the last-known-good file could not be written or removed.", nil, nil)
)

// Describe implements prometheus.Collector.
func (b *Book) Describe(d chan<- *prometheus.Desc) {
	d <- descAway
	d <- descBookAge
	if b.keeper != nil {
		d <- descFileAge
		d <- descFileErrors
	}
}

// Collect implements prometheus.Collector.
func (b *Book) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	away := 0.0
	if b.away.Load() {
		away = 1
	}
	gauge(descAway, away)
	if synced := b.Synced(); !synced.IsZero() {
		gauge(descBookAge, time.Since(synced).Seconds())
	}
	if b.keeper == nil {
		return
	}
	if stored := b.keeper.stored.Load(); stored != 0 {
		gauge(descFileAge, time.Since(time.Unix(0, stored)).Seconds())
	}
	out <- prometheus.MustNewConstMetric(descFileErrors, prometheus.CounterValue, float64(b.keeper.failed.Load()))
}

// Health says whether the control database is read and, while it is not, for how long the book is still in force. That it
// is away is no failure: known clusters are served. A book that came to its end is one. Never blocks.
func (b *Book) Health(context.Context) (fact string, err error) {
	synced := b.Synced()
	switch left := b.left(); {
	case synced.IsZero():
		return "", errors.New("the control database has not been read")
	case !b.away.Load():
		return "read", nil
	case left <= 0:
		return "", fmt.Errorf("the control database is away since %s: what was known of it is in force no more", synced.UTC().Format(time.RFC3339))
	default:
		return fmt.Sprintf("away since %s: known clusters are served for another %v", synced.UTC().Format(time.RFC3339), left.Round(time.Second)), nil
	}
}
