package meter

import (
	"fmt"
	"time"
)

// Month is a calendar month, of no zone: twelve times the year, and the months since January. The zero value is none.
type Month int32

func month(year int, m time.Month) Month { return Month(year*12 + int(m) - 1) }

// MonthOf returns the month that t lies in where zone is (nil: UTC), and its begin and end, half-open.
//
// Where clocks jump over midnight, as they do in some zones on the first of a month, the month begins with its first moment
// that there is; where they go back over it, so that the day begins twice, with the later one.
func MonthOf(t time.Time, zone *time.Location) (m Month, begin, end time.Time) {
	if zone == nil {
		zone = time.UTC
	}
	year, mo, _ := t.In(zone).Date()
	m = month(year, mo)
	switch begin, end = m.begin(zone), (m + 1).begin(zone); {
	case t.Before(begin): // the first run of a midnight that comes twice
		return m - 1, (m - 1).begin(zone), begin
	case !t.Before(end):
		return m + 1, end, (m + 2).begin(zone)
	}
	return m, begin, end
}

// begin is the moment from which the calendar shows m, or a later month, for good.
func (m Month) begin(zone *time.Location) time.Time {
	year, mo := m.date()
	midnight := time.Date(year, mo, 1, 0, 0, 0, 0, zone)
	from := midnight.Add(-3 * time.Hour)
	_, before := from.Zone()
	if _, after := midnight.Add(3 * time.Hour).Zone(); before == after {
		return midnight
	}
	// Date resolves a midnight that is missing or double as it likes: look for the last moment before.
	shows := func(t time.Time) bool {
		y, other, _ := t.In(zone).Date()
		return month(y, other) >= m
	}
	begin := from
	for step := range 6 * 60 { // zones shift by whole minutes
		if t := from.Add(time.Duration(step) * time.Minute); !shows(t) {
			begin = t.Add(time.Minute)
		}
	}
	return begin
}

func (m Month) date() (int, time.Month) { return int(m) / 12, time.Month(m%12 + 1) }

// String returns the month as 2006-01.
func (m Month) String() string {
	year, mo := m.date()
	return fmt.Sprintf("%04d-%02d", year, mo)
}

// first is the month as the database has it.
func (m Month) first() time.Time {
	year, mo := m.date()
	return time.Date(year, mo, 1, 0, 0, 0, 0, time.UTC)
}
