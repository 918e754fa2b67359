package meter

import (
	"testing"
	"time"
)

func TestMonthOf(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		t.Helper()
		v, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for rule, c := range map[string]struct {
		zone, now, month, begin, end string
	}{
		"UTC": {"", "2025-03-31T23:59:59Z", "2025-03", "2025-03-01T00:00:00Z", "2025-04-01T00:00:00Z"},
		"the year turns": {
			"", "2025-12-31T23:59:59Z", "2025-12", "2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z",
		},
		"summer time begins within the month": {
			"Europe/Berlin", "2025-03-31T21:59:59Z", "2025-03", "2025-02-28T23:00:00Z", "2025-03-31T22:00:00Z",
		},
		"and ends": {
			"Europe/Berlin", "2025-10-31T22:59:59Z", "2025-10", "2025-09-30T22:00:00Z", "2025-10-31T23:00:00Z",
		},
		"ahead of UTC by more than half a day": {
			"Pacific/Kiritimati", "2025-03-31T10:00:00Z", "2025-04", "2025-03-31T10:00:00Z", "2025-04-30T10:00:00Z",
		},
		"behind UTC": {
			"America/New_York", "2025-04-01T03:59:59Z", "2025-03", "2025-03-01T05:00:00Z", "2025-04-01T04:00:00Z",
		},
		"a first day without midnight": { // clocks went from 24:00 to 01:00
			"America/Asuncion", "2017-10-01T04:00:00Z", "2017-10", "2017-10-01T04:00:00Z", "2017-11-01T03:00:00Z",
		},
		"and the moment before it": {
			"America/Asuncion", "2017-10-01T03:59:59Z", "2017-09", "2017-09-01T04:00:00Z", "2017-10-01T04:00:00Z",
		},
		"a midnight that comes twice: the first run is the old month": { // at 00:01 of the 1st it became 23:01 of the 31st
			"America/St_Johns", "2009-11-01T02:30:30Z", "2009-10", "2009-10-01T02:30:00Z", "2009-11-01T03:30:00Z",
		},
		"and the second the new one": {
			"America/St_Johns", "2009-11-01T03:30:00Z", "2009-11", "2009-11-01T03:30:00Z", "2009-12-01T03:30:00Z",
		},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			var zone *time.Location
			if c.zone != "" {
				var err error
				if zone, err = time.LoadLocation(c.zone); err != nil {
					t.Fatal(err)
				}
			}
			m, begin, end := MonthOf(at(c.now), zone)
			if m.String() != c.month || !begin.Equal(at(c.begin)) || !end.Equal(at(c.end)) {
				t.Errorf("got %s, %s to %s, want %s, %s to %s", m, begin.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339), c.month, c.begin, c.end)
			}
		})
	}
}

// Months follow each other without a gap or an overlap, whatever the clocks of a zone do.
func TestMonthsMeet(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Asuncion", "America/St_Johns", "Asia/Kathmandu", "Africa/Cairo", "Pacific/Apia"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		last, _, end := MonthOf(time.Date(2005, 1, 15, 0, 0, 0, 0, time.UTC), zone)
		for range 20 * 12 {
			m, begin, next := MonthOf(end, zone)
			before, _, until := MonthOf(end.Add(-time.Nanosecond), zone)
			if m != last+1 || !begin.Equal(end) || before != last || !until.Equal(end) {
				t.Fatalf("%s: %s ends at %s, and %s goes from %s; just before it is %s until %s", name, last, end, m, begin, before, until)
			}
			last, end = m, next
		}
	}
}
