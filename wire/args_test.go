package wire

import (
	"strings"
	"testing"
	"time"
)

func TestArgs(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 9, 1, 10, 11, 12, 0, time.UTC)
	a := ParseArgs([]byte("limit=7&x=%zz&name=a+b%2Fc&on=true&at=2026-09-01T10:11:12Z&word=two&&empty="), "limit", "name", "on", "at", "word", "empty", "offset")
	if got := a.Int("limit", 1, 0, 10); got != 7 {
		t.Errorf("limit %d", got)
	}
	if got := a.Name("name"); got != "a b/c" {
		t.Errorf("name %q", got)
	}
	if !a.Bool("on", false) || !a.Time("at", time.Time{}).Equal(at) || a.OneOf("word", "one", "two") != "two" {
		t.Error("a value was misread")
	}
	if a.Int("empty", 5, 0, 10) != 5 || a.Given("empty") || !a.Given("limit") || a.OneOf("empty", "one", "two") != "one" {
		t.Error("an empty value is no value")
	}
	if got := a.Page(100, 1000); got != (Page{Limit: 7}) {
		t.Errorf("page %+v", got)
	}
	if err := a.Err(); err != nil {
		t.Errorf("a bad value of an unknown key is a fault: %v", err)
	}
}

func TestArgsRefuse(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		query string
		read  func(*Args)
	}{
		"a known key twice":         {"a=1&a=1", func(*Args) {}},
		"a bad escape in a key":     {"%zz=1", func(*Args) {}},
		"a bad escape in a value":   {"a=%f", func(*Args) {}},
		"invalid UTF-8":             {"a=%ff", func(*Args) {}},
		"a number that is none":     {"a=1.5", func(a *Args) { a.Int("a", 0, 0, 9) }},
		"a number below its bounds": {"a=-1", func(a *Args) { a.Int("a", 0, 0, 9) }},
		"a number above its bounds": {"a=10", func(a *Args) { a.Int("a", 0, 0, 9) }},
		"a truth that is none":      {"a=maybe", func(a *Args) { a.Bool("a", false) }},
		"a time that is none":       {"a=yesterday", func(a *Args) { a.Time("a", time.Time{}) }},
		"a word that is not known":  {"a=x", func(a *Args) { a.OneOf("a", "y", "z") }},
		"a long name":               {"a=" + strings.Repeat("n", MaxNameBytes+1), func(a *Args) { a.Name("a") }},
		"a control character":       {"a=%0a", func(a *Args) { a.Name("a") }},
	} {
		a := ParseArgs([]byte(c.query), "a")
		c.read(a)
		e := AsError(a.Err())
		if e == nil || e.Code != InvalidRequest {
			t.Errorf("%s: %v", rule, e)
			continue
		}
		assertNoTrap(t, e.Text())
	}
}

func TestExactArgsRefuseWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	for query, fine := range map[string]bool{"": true, "a=1&b=": true, "a=1&c=1": false, "c": false, "a=1&timeout=3": false, "A=1": false} {
		a := ParseExactArgs([]byte(query), "a", "b")
		e := AsError(a.Err())
		if (e == nil) != fine {
			t.Errorf("%q: %v", query, e)
		}
		if e != nil {
			assertNoTrap(t, e.Text())
			if e.Code != InvalidRequest || !strings.Contains(e.Text(), "it takes a, b") {
				t.Errorf("%q: %v", query, e)
			}
		}
	}
}

func FuzzArgs(f *testing.F) {
	f.Add("limit=7&name=a+b%2Fc")
	f.Add("name=%ff&name")
	f.Fuzz(func(t *testing.T, query string) {
		a := ParseArgs([]byte(query), "limit", "name", "at")
		n, name := a.Int("limit", 3, 1, 5), a.Name("name")
		a.Time("at", time.Time{})
		if n < 1 || n > 5 || len(name) > MaxNameBytes || hasControl(name) {
			t.Errorf("%d %q", n, name)
		}
	})
}
