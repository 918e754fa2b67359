package proxy

import (
	"bytes"
	"slices"

	"github.com/queengate/queengate/wire"
)

// head is what the gateway reads from a request's headers. Slices alias the raw header block and are valid as long as
// the request is.
type head struct {
	host          []byte
	authorization []byte
	act           []byte // X-Queen-Act-Cluster
	traceparent   []byte
	hasAct        bool
	framed        bool // declares a body: Content-Length above 0, or chunked
}

// clone returns a head that does not alias the request.
func (h head) clone() head {
	all := slices.Concat(h.host, h.authorization, h.act, h.traceparent)
	next := func(b []byte) (c []byte) {
		c, all = all[:len(b):len(b)], all[len(b):]
		return c
	}
	h.host, h.authorization, h.act, h.traceparent = next(h.host), next(h.authorization), next(h.act), next(h.traceparent)
	return h
}

// headWalls are the bounds of a request's head.
type headWalls struct {
	maxHeaders int
}

func malformed(detail string) *wire.Error {
	return &wire.Error{Code: wire.InvalidRequest, Detail: detail, Close: true}
}

// scanHead reads the raw header block once, more strictly than fasthttp does: two readers of the same bytes must not
// be able to see two requests. Line ends are CRLF, names are tokens directly followed by a colon, nothing is folded;
// Host, Content-Length, Transfer-Encoding and Authorization stand at most once, and never both of the middle two;
// trailers are not announced. A fault closes the connection, since its framing cannot be trusted.
func (w headWalls) scanHead(raw []byte, http11 bool) (head, *wire.Error) {
	var h head
	var hosts, lengths, encodings, credentials, acts, count int
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\n')
		if i < 1 || raw[i-1] != '\r' {
			return h, malformed("a header line does not end in CRLF")
		}
		line := raw[:i-1]
		raw = raw[i+1:]
		if len(line) == 0 {
			break
		}
		if count++; count > w.maxHeaders {
			return h, &wire.Error{Code: wire.HeadersTooLarge, Close: true}
		}
		if line[0] == ' ' || line[0] == '\t' {
			return h, malformed("a header line is folded")
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 || !isToken(line[:colon]) {
			return h, malformed("a header name is malformed")
		}
		name, value := line[:colon], trimBlanks(line[colon+1:])
		if bytes.IndexByte(value, '\r') >= 0 || bytes.IndexByte(value, 0) >= 0 {
			return h, malformed("a header value is malformed")
		}
		switch len(name) {
		case len("Host"):
			if isName(name, "host") {
				hosts++
				h.host = value
			}
		case len("Trailer"):
			if isName(name, "trailer") {
				return h, malformed("trailers are not accepted")
			}
		case len("Traceparent"):
			if isName(name, "traceparent") {
				h.traceparent = value
			}
		case len("Authorization"):
			if isName(name, "authorization") {
				credentials++
				h.authorization = value
			}
		case len("Content-Length"):
			if isName(name, "content-length") {
				lengths++
				if !isDecimal(value) {
					return h, malformed("the content length is malformed")
				}
				h.framed = h.framed || len(bytes.TrimLeft(value, "0")) > 0
			}
		case len("Content-Encoding"):
			if isName(name, "content-encoding") && len(value) > 0 && !isName(value, "identity") {
				return h, malformed("content encodings are not accepted")
			}
		case len("Transfer-Encoding"):
			if isName(name, "transfer-encoding") {
				encodings++
				if !isName(value, "chunked") {
					return h, malformed("the transfer encoding is not chunked")
				}
				h.framed = true
			}
		case len(wire.HeaderActCluster):
			if isName(name, "x-queen-act-cluster") {
				acts++
				h.act, h.hasAct = value, true
			}
		}
	}
	switch {
	case hosts > 1 || hosts == 0 && http11:
		return h, malformed("a request has exactly one Host")
	case lengths > 1:
		return h, malformed("the content length is given twice")
	case encodings > 1:
		return h, malformed("the transfer encoding is given twice")
	case lengths > 0 && encodings > 0:
		return h, malformed("content length and transfer encoding exclude each other")
	case credentials > 1:
		return h, malformed("a request has one credential")
	case acts > 1:
		return h, malformed("a request names one cluster to act on")
	}
	return h, nil
}

// splitTarget splits a request target into raw path and raw query. The absolute form is accepted when it names the
// same host as the Host header: a proxy's spelling of the same request, never a second opinion on it.
func splitTarget(target, host []byte) (path, query []byte, e *wire.Error) {
	if len(target) > 0 && target[0] != '/' {
		rest, ok := cutScheme(target)
		if !ok {
			return nil, nil, malformed("the request target is malformed")
		}
		authority := rest
		if i := bytes.IndexAny(rest, "/?"); i >= 0 {
			authority, rest = rest[:i], rest[i:]
		} else {
			rest = nil
		}
		if !bytes.EqualFold(authority, host) {
			return nil, nil, malformed("the request target names another host than the Host header")
		}
		target = rest
		if len(target) == 0 || target[0] != '/' {
			target = append([]byte{'/'}, target...)
		}
	}
	if bytes.IndexByte(target, '#') >= 0 {
		return nil, nil, malformed("the request target has a fragment")
	}
	path, query, _ = bytes.Cut(target, []byte{'?'})
	return path, query, nil
}

func cutScheme(target []byte) ([]byte, bool) {
	for _, scheme := range [...]string{"http://", "https://"} {
		if len(target) > len(scheme) && bytes.EqualFold(target[:len(scheme)], []byte(scheme)) {
			return target[len(scheme):], true
		}
	}
	return nil, false
}

// appendHost appends the canonical form of a Host header: lower case, no port, no trailing dot, no brackets. ok is
// false for what cannot be a host.
func appendHost(dst, host []byte) (_ []byte, ok bool) {
	if len(host) == 0 || len(host) > 255+len(":65535") {
		return dst, false
	}
	if host[0] == '[' {
		end := bytes.IndexByte(host, ']')
		if end < 0 || !isPort(host[end+1:]) {
			return dst, false
		}
		for _, c := range host[1:end] {
			c = lower(c)
			if !isDigit(c) && (c < 'a' || c > 'f') && c != ':' && c != '.' {
				return dst, false
			}
			dst = append(dst, c)
		}
		return dst, end > 1
	}
	if i := bytes.IndexByte(host, ':'); i >= 0 {
		if !isPort(host[i:]) {
			return dst, false
		}
		host = host[:i]
	}
	if n := len(host); n > 1 && host[n-1] == '.' {
		host = host[:n-1]
	}
	label := 0 // length of the current one
	for _, c := range host {
		c = lower(c)
		switch {
		case c == '.':
			if label == 0 {
				return dst, false
			}
			label = -1
		case c >= 'a' && c <= 'z', isDigit(c), c == '-', c == '_':
		default:
			return dst, false
		}
		if label++; label > 63 {
			return dst, false
		}
		dst = append(dst, c)
	}
	return dst, label > 0
}

// isPort accepts nothing, or a colon and up to five digits.
func isPort(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	return b[0] == ':' && len(b) <= len(":65535") && (len(b) == 1 || isDecimal(b[1:]))
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isDecimal(b []byte) bool {
	for _, c := range b {
		if !isDigit(c) {
			return false
		}
	}
	return len(b) > 0
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// isName compares a header name, or a keyword, with its lower-case spelling.
func isName(b []byte, name string) bool {
	if len(b) != len(name) {
		return false
	}
	for i := range b {
		if lower(b[i]) != name[i] {
			return false
		}
	}
	return true
}

// tokenBytes are the bytes of a header name (RFC 9110, 5.6.2).
var tokenBytes = func() (t [256]bool) {
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-0x20] = true, true
	}
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

func isToken(b []byte) bool {
	for _, c := range b {
		if !tokenBytes[c] {
			return false
		}
	}
	return true
}

func trimBlanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}
