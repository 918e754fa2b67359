package wire

import (
	"bytes"
	"time"
)

// Seek is where the cursors of a group are to go.
type Seek struct {
	ToEnd bool
	At    time.Time // without ToEnd: to the first message of that time or later
}

// ScanSeek reads {"toEnd":true} or {"timestamp":"…"}. A body that says neither means the end: published SDKs send {} or
// nothing for it. Everything else is an *Error of InvalidRequest.
func ScanSeek(body []byte) (to Seek, err error) {
	s := scanner{b: body}
	var keys seen
	timed, empty := false, true
	if !blank(body) {
		err = s.object(func(key []byte) error {
			switch string(key) {
			case "toEnd":
				if err := keys.add(0, "toEnd"); err != nil {
					return err
				}
				var null bool
				to.ToEnd, null, err = s.optionalFlag("toEnd")
				empty = empty && null
				return err
			case "timestamp":
				if err := keys.add(1, "timestamp"); err != nil {
					return err
				}
				to.At, timed, err = s.time("timestamp")
				empty = empty && !timed
				return err
			}
			_, err := s.skip(1)
			return err
		})
		if err == nil {
			err = s.end()
		}
	}
	switch {
	case err != nil:
		return Seek{}, err
	case to.ToEnd && timed:
		return Seek{}, bad("toEnd and timestamp exclude each other")
	case to.ToEnd || timed:
		return to, nil
	case empty:
		return Seek{ToEnd: true}, nil
	}
	return Seek{}, Errorf(InvalidRequest, "Must specify toEnd=true or a timestamp")
}

// blank reports that a body is absent, whatever white space a client sends instead.
func blank(body []byte) bool { return len(bytes.Trim(body, " \t\r\n")) == 0 }

// ScanSubscription reads {"subscriptionTimestamp":"…"}.
func ScanSubscription(body []byte) (at time.Time, err error) {
	s := scanner{b: body}
	var keys seen
	given := false
	if !blank(body) {
		err = s.object(func(key []byte) error {
			if string(key) != "subscriptionTimestamp" {
				_, err := s.skip(1)
				return err
			}
			if err := keys.add(0, "subscriptionTimestamp"); err != nil {
				return err
			}
			at, given, err = s.time("subscriptionTimestamp")
			return err
		})
		if err == nil {
			err = s.end()
		}
	}
	switch {
	case err != nil:
		return time.Time{}, err
	case !given:
		return time.Time{}, Errorf(InvalidRequest, "subscriptionTimestamp is required")
	}
	return at, nil
}

// optionalFlag consumes true, false or null; what names it in the error.
func (s *scanner) optionalFlag(what string) (on, null bool, err error) {
	k, err := s.peek()
	if err != nil {
		return false, false, err
	}
	switch k {
	case kindTrue:
		return true, false, s.literal("true")
	case kindFalse:
		return false, false, s.literal("false")
	case kindNull:
		return false, true, s.literal("null")
	}
	return false, false, bad("%s must be true or false", what)
}

// time consumes a time or null; given is false for null and for the empty text.
func (s *scanner) time(what string) (at time.Time, given bool, err error) {
	text, _, err := s.optionalText(what)
	if err != nil || text == "" {
		return time.Time{}, false, err
	}
	at, ok := ParseTime(text)
	if !ok {
		return time.Time{}, false, bad("%s must be a time like 2026-09-01T10:11:12Z", what)
	}
	return at, true, nil
}

// timeLayouts are the spellings of a time that SDKs send: RFC 3339 with any fraction, with a space for the T, and without
// a zone, which is UTC.
var timeLayouts = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", time.DateOnly,
}

// ParseTime reads a time in one of the spellings that SDKs send. Years outside 1…9999 are none, and neither is their first
// instant: it is the zero value of a time, and would mean that none is given.
func ParseTime(text string) (time.Time, bool) {
	for _, layout := range timeLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			at = at.UTC()
			return at, at.Year() >= 1 && at.Year() <= 9999 && !at.IsZero()
		}
	}
	return time.Time{}, false
}
