package proxy

import (
	"bufio"
	"bytes"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

func FuzzHost(f *testing.F) {
	for _, s := range []string{
		"acme.example.com", "ACME.Example.COM:443", "acme.", "acme..b", "[::1]:80", "[::ffff:1.2.3.4]", "127.0.0.1", "a b", "a@b",
		"acme.example.com:", "acme:99999999", "", ".", "[", "[]", "xn--a", "acme\x00", strings.Repeat("a", 64), strings.Repeat("a.", 130),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got, ok := appendHost(nil, []byte(host))
		if !ok {
			return
		}
		if strings.ToLower(string(got)) != string(got) || len(got) == 0 || bytes.ContainsAny(got, "[]@/ \t\x00") {
			t.Errorf("%q became %q", host, got)
		}
		form := string(got)
		if strings.Contains(form, ":") {
			form = "[" + form + "]"
		}
		again, ok := appendHost(nil, []byte(form))
		if !ok || !bytes.Equal(again, got) {
			t.Errorf("%q became %q, and that %q", host, got, again)
		}
		if !strings.HasPrefix(strings.ToLower(strings.TrimPrefix(host, "[")), string(got)) {
			t.Errorf("%q became %q, which it does not begin with", host, got)
		}
	})
}

// FuzzTarget holds what is forwarded against what was judged: a broker that reads the canonical request with net/http
// and package wire comes to the same route, parameters and query.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{
		"/api/v1/pop/queue/q", "//api/v1/pop/queue/q?wait=true&timeout=5", "/api/v1/pop/queue/a%2Fb/partition/c%20d?batch=3&consumerGroup=g%26h",
		"/api/v1/pop/queue/q?wait=%74rue", "/api/v1/pop/queue/q?wait=true&wait=false", "/api/v1/pop/queue/%2e%2e", "/api/v1/pop/queue/../push",
		"/api/v1/pop/queue/q%00", "/api/v1/pop/queue/q?consumerGroup=%0d%0aX-Queen-Tenant:%20x", "/api/v1/resources/queues?stats=cached&&x",
		"/api/v1/resources/queues/%F0%9F%90%98?a=b+c", "http://acme.example.com/api/v1/resources/queues?x", "http://acme.example.com", "*",
		"/api/v1/pop/queue/q?timeout=99999999999&subscriptionFrom=now", "/api/v1/resources/queues?%zz",
	} {
		f.Add(s)
	}
	host := []byte("acme.example.com")
	f.Fuzz(func(t *testing.T, target string) {
		path, query, e := splitTarget([]byte(target), host)
		if e != nil {
			return
		}
		route, params, err := wire.Match("GET", path)
		if err != nil || route.Class == wire.ClassBlocked {
			return
		}
		ex := &exchange{route: route, params: params, id: "r"}
		if route.Cost == wire.CostDelivery {
			if ex.pop, err = wire.ParsePopQuery(query); err != nil {
				return
			}
		} else {
			if _, ok := appendQuery(nil, query); !ok {
				return
			}
			ex.query = query
		}
		sent := appendHead(nil, ex, &cellToken{lines: []byte("A: b\r\n")}, tracing.Span{}, "broker:1", ex.pop.Timeout, 0)
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(sent)))
		if err != nil {
			t.Fatalf("%q is forwarded as %q: %v", target, sent, err)
		}
		if len(r.Header) != 2 {
			t.Fatalf("%q brings headers of its own: %q", target, sent)
		}
		gotPath, gotQuery, _ := strings.Cut(r.RequestURI, "?")
		gotRoute, gotParams, err := wire.Match(r.Method, []byte(gotPath))
		if err != nil || gotRoute != route || gotParams != params {
			t.Fatalf("%q was judged as %s %q and is forwarded as %s %q: %v", target, route.Pattern, params, gotPath, gotParams, err)
		}
		if route.Cost == wire.CostDelivery {
			got, err := wire.ParsePopQuery([]byte(gotQuery))
			want := ex.pop
			if want.Wait {
				want.TimeoutGiven = true
			}
			want.Timeout, got.Timeout = want.Timeout.Truncate(time.Millisecond), got.Timeout.Truncate(time.Millisecond)
			if err != nil || got != want {
				t.Fatalf("%q was judged as %+v and is forwarded as %q, %+v: %v", target, want, gotQuery, got, err)
			}
			return
		}
		again, ok := appendQuery(nil, []byte(gotQuery))
		if !ok || string(again) != gotQuery {
			t.Fatalf("%q is forwarded as %q, which is not canonical: %q", target, gotQuery, again)
		}
		was := (&http.Request{URL: r.URL}).URL.Query()
		for key := range was {
			if strings.ContainsAny(key, "\r\n\x00") {
				t.Fatalf("%q is forwarded with key %q", target, key)
			}
		}
	})
}

// FuzzHead compares with net/http: a header block that is accepted must not mean another message there.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"Host: a\r\n\r\n", "Host: a\r\nContent-Length: 5\r\n\r\n", "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n",
		"Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "Host: a\r\nX: b\r\n c\r\n\r\n", "Host : a\r\n\r\n",
		"Host: a\r\nhost: b\r\n\r\n", "Host: a\nX: b\r\n\r\n", "Host: a\r\nTrailer: X\r\n\r\n", "Host: a\r\nAuthorization: x\r\nauthorization: y\r\n\r\n",
		"Host: a\r\nContent-Length: 0\r\n\r\n", "Host: a\r\nContent-Length: 00007\r\n\r\n", "Host: a\r\nTransfer-Encoding: \tchunked \r\n\r\n",
		"Host: a\r\nTransfer-Encoding: xchunked\r\n\r\n", "Host: a\r\n\x0bContent-Length: 5\r\n\r\n", "Host: a\r\nContent_Length: 5\r\n\r\n",
	} {
		f.Add(s)
	}
	walls := headWalls{maxHeaders: 100}
	f.Fuzz(func(t *testing.T, block string) {
		h, e := walls.scanHead([]byte(block), true)
		if e != nil || !strings.HasSuffix(block, "\r\n\r\n") || strings.Index(block, "\r\n\r\n") != len(block)-4 {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\n" + block)))
		if err != nil {
			return // stricter than we are: no other meaning
		}
		if r.Host != string(h.host) && len(h.host) > 0 {
			t.Errorf("host %q, net/http %q", h.host, r.Host)
		}
		if framed := r.ContentLength > 0 || reflect.DeepEqual(r.TransferEncoding, []string{"chunked"}); framed != h.framed {
			t.Errorf("framed %v, net/http: length %d encoding %v", h.framed, r.ContentLength, r.TransferEncoding)
		}
		if got := r.Header.Values("Authorization"); len(got) > 1 || len(got) == 1 && got[0] != string(h.authorization) {
			t.Errorf("credential %q, net/http %q", h.authorization, got)
		}
		if len(r.Trailer) > 0 {
			t.Errorf("net/http sees trailers %v", r.Trailer)
		}
	})
}
