package wire

import (
	"bytes"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Args are the parameters of a query, for routes other than a pop. A reader of a route asks for each one by name and
// type, and for Err once at the end: the first fault is kept and everything read after it is the default. It belongs to
// one goroutine.
type Args struct {
	values map[string]string
	exact  bool // a key that is not known is a fault
	err    error
}

// ParseArgs parses a raw query. Keys that are not among known are ignored; a known key given twice, a bad escape and
// invalid UTF-8 are InvalidRequest, which Err returns.
func ParseArgs(query []byte, known ...string) *Args { return (&Args{}).parse(query, known) }

// ParseExactArgs is ParseArgs for routes that destroy or cannot be undone: there a filter that is misspelt must not choose
// everything, so a key that is not among known is InvalidRequest too.
func ParseExactArgs(query []byte, known ...string) *Args {
	return (&Args{exact: true}).parse(query, known)
}

func (a *Args) parse(query []byte, known []string) *Args {
	for len(query) > 0 && a.err == nil {
		var pair []byte
		pair, query, _ = bytes.Cut(query, []byte{'&'})
		if len(pair) > 0 {
			a.add(pair, known)
		}
	}
	return a
}

func (a *Args) add(pair []byte, known []string) {
	rawKey, rawValue, _ := bytes.Cut(pair, []byte{'='})
	key, ok := decodeQuery(rawKey)
	if !ok {
		a.fail("the query has an invalid escape")
		return
	}
	for _, k := range known {
		if k != key {
			continue
		}
		value, ok := decodeQuery(rawValue)
		if !ok || !utf8.ValidString(value) {
			a.fail("the query has an invalid escape in %s", key)
			return
		}
		if _, twice := a.values[key]; twice {
			a.fail("the query has %s twice", key)
			return
		}
		if a.values == nil {
			a.values = make(map[string]string, len(known))
		}
		a.values[key] = value
		return
	}
	if a.exact {
		a.fail("the query has a parameter that this route does not take; it takes %s", strings.Join(known, ", "))
	}
}

func (a *Args) fail(format string, args ...any) {
	if a.err == nil {
		a.err = Errorf(InvalidRequest, format, args...)
	}
}

// Err returns the first fault of the query.
func (a *Args) Err() error { return a.err }

// Given reports whether the query has the key with a value.
func (a *Args) Given(key string) bool { return a.values[key] != "" }

// Text returns a value as it is, "" without one.
func (a *Args) Text(key string) string { return a.values[key] }

// Name returns a queue, partition, group or trace name within the limits of names, "" without one.
func (a *Args) Name(key string) string {
	v := a.values[key]
	switch {
	case len(v) > MaxNameBytes:
		a.fail("%s is longer than %d bytes", key, MaxNameBytes)
		return ""
	case hasControl(v):
		a.fail("control characters are not allowed in %s", key)
		return ""
	}
	return v
}

// Int returns a whole number within least…most, def without a value.
func (a *Args) Int(key string, def, least, most int) int {
	v := a.values[key]
	if v == "" {
		return def
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < int64(least) || n > int64(most) {
		a.fail("%s must be a whole number, %d…%d", key, least, most)
		return def
	}
	return int(n)
}

// Bool returns true or false, in any spelling that operators use for them, def without a value.
func (a *Args) Bool(key string, def bool) bool {
	switch strings.ToLower(a.values[key]) {
	case "":
		return def
	case "true", "1", "yes":
		return true
	case "false", "0", "no":
		return false
	}
	a.fail("%s must be true or false", key)
	return def
}

// Time returns an RFC 3339 time, def without a value.
func (a *Args) Time(key string, def time.Time) time.Time {
	v := a.values[key]
	if v == "" {
		return def
	}
	at, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		a.fail("%s must be a time like 2026-09-01T10:11:12Z", key)
		return def
	}
	return at
}

// OneOf returns one of the words, the first of them without a value.
func (a *Args) OneOf(key string, words ...string) string {
	v := a.values[key]
	if v == "" {
		return words[0]
	}
	for _, w := range words {
		if v == w {
			return v
		}
	}
	a.fail("bad %s", key)
	return words[0]
}

// Page is the part of a list that a query asks for.
type Page struct{ Limit, Offset int }

// maxOffset bounds how deep a page may lie.
const maxOffset = 1 << 31

// Page returns limit and offset; limit is 1…most.
func (a *Args) Page(def, most int) Page {
	return Page{Limit: a.Int("limit", def, 1, most), Offset: a.Int("offset", 0, 0, maxOffset)}
}
