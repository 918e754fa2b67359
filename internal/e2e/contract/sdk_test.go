package contract

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The requests of testdata/*.http are those that published SDKs put on the wire, written down from their sources: the
// file is a session, and each of its blocks begins with the request line, has the SDK's own headers, and ends with what
// the SDK reads of the answer. A block looks like this:
//
//	### what the application does
//	POST /api/v1/push
//	Content-Type: application/json
//
//	{"items":[…]}
//	> 201
//	> data.0.status = queued
//	> messages.0.leaseId : string -> lease
//
// A line of expectation names a member by its path ("." is the answer itself) and compares it with a JSON value or word
// (=), demands a kind of value (:), or that it is absent, null, false or empty (!). What follows -> keeps the value for
// {{name}} in later blocks. Go wraps a top-level array as {"data":[…]}, and so do the paths here.

func TestRequestsOfPublishedSDKs(t *testing.T) {
	t.Parallel()
	s := serve(t, all)
	sessions, err := filepath.Glob("testdata/*.http")
	if err != nil || len(sessions) == 0 {
		t.Fatalf("no sessions: %v", err)
	}
	for _, path := range sessions {
		name := strings.TrimSuffix(filepath.Base(path), ".http")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			p := &session{s: s.of(t), kept: map[string]string{"queue": name}}
			for block := range strings.SplitSeq(string(text), "\n### ") {
				if !strings.HasPrefix(block, "#") { // the head of the file
					p.play(block)
				}
			}
			if p.played == 0 {
				t.Error("the session is empty")
			}
		})
	}
}

// session is one SDK at work.
type session struct {
	s      *service
	kept   map[string]string
	played int
}

var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

// fill puts kept values in the place of their names.
func (p *session) fill(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(name string) string {
		v, ok := p.kept[name[2:len(name)-2]]
		if !ok {
			p.s.t.Fatalf("%s was not kept", name)
		}
		return v
	})
}

// play sends one block and reads the answer as the SDK does.
func (p *session) play(block string) {
	p.s.t.Helper()
	p.played++
	title, rest, _ := strings.Cut(block, "\n")
	head, rest, _ := strings.Cut(rest, "\n\n")
	body, expected, _ := strings.Cut("\n"+rest, "\n> ")
	request, headers, _ := strings.Cut(head, "\n")
	method, path, _ := strings.Cut(request, " ")
	r := p.send(method, p.fill(path), headers, p.fill(strings.TrimSpace(body)))
	for i, line := range strings.Split(strings.TrimSpace(expected), "\n") {
		line = p.fill(strings.TrimPrefix(line, "> "))
		if i == 0 {
			if fmt.Sprint(r.status) != line {
				p.s.t.Fatalf("%s: %d %s, want %s", title, r.status, r.body, line)
			}
			continue
		}
		if err := p.expect(r, line); err != nil {
			p.s.t.Fatalf("%s: %s: %v in %s", title, line, err, r.body)
		}
	}
}

func (p *session) send(method, path, headers, body string) reply {
	p.s.t.Helper()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, "http://"+p.s.addr+path, rd)
	if err != nil {
		p.s.t.Fatal(err)
	}
	for line := range strings.Lines(headers) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		req.Header.Set(name, value)
	}
	resp, err := p.s.client.Do(req)
	if err != nil {
		p.s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.s.t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(b)}
}

var expectation = regexp.MustCompile(`^(\S+) (?:(!)|([:=]) (.+?))(?: -> (\w+))?$`)

// expect checks one line of expectation.
func (p *session) expect(r reply, line string) error {
	parts := expectation.FindStringSubmatch(line)
	if parts == nil {
		return fmt.Errorf("not an expectation")
	}
	path, empty, op, want, keep := parts[1], parts[2] != "", parts[3], parts[4], parts[5]
	v, there, err := member(r.body, path)
	if err != nil {
		return err
	}
	switch {
	case empty:
		if there && v != nil && v != false && v != "" && v != 0.0 {
			return fmt.Errorf("it is %v", v)
		}
	case op == "=":
		var value any
		if json.Unmarshal([]byte(want), &value) != nil {
			value = want // a word
		}
		if got, expected := fmt.Sprint(v), fmt.Sprint(value); !there || got != expected {
			return fmt.Errorf("it is %v", v)
		}
	default:
		if got := kindOf(v); !there || got != want {
			return fmt.Errorf("it is of kind %s: %v", got, v)
		}
	}
	if keep != "" {
		p.kept[keep] = fmt.Sprint(v)
	}
	return nil
}

// member finds a value by its path.
func member(body, path string) (v any, there bool, err error) {
	if body == "" {
		return nil, false, nil
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		return nil, false, err
	}
	if list, ok := v.([]any); ok {
		v = m{"data": list}
	}
	if path == "." {
		return v, true, nil
	}
	for name := range strings.SplitSeq(path, ".") {
		switch of := v.(type) {
		case m:
			if v, there = of[name]; !there {
				return nil, false, nil
			}
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(of) {
				return nil, false, nil
			}
			v = of[i]
		default:
			return nil, false, nil
		}
	}
	return v, true, nil
}

// kindOf names what clients decode a value into.
func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case float64:
		return "number"
	case m:
		return "object"
	case []any:
		return "array"
	case string:
		if _, err := time.Parse(time.RFC3339, v); err == nil && strings.HasSuffix(v, "Z") {
			return "time"
		}
		return "string"
	}
	return "?"
}
