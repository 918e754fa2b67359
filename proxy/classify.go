package proxy

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/wire"
)

// classify finds the route of a request: what is judged, counted and forwarded afterwards is the route and its decoded
// parameters, never the bytes of the target. Unknown paths and routes that are not for clients look the same.
func (g *Gateway) classify(rh *fasthttp.RequestHeader, ex *exchange) *wire.Error {
	target := rh.RequestURI()
	if len(target) > g.cfg.MaxTargetBytes {
		return &wire.Error{Code: wire.TargetTooLong, Close: true}
	}
	path, query, e := splitTarget(target, ex.head.host)
	if e != nil {
		return e
	}
	route, params, err := wire.Match(string(rh.Method()), path)
	if err != nil {
		e := wire.AsError(err)
		if e.Code == wire.NoSuchRoute || e.Code == wire.MethodNotAllowed && !served(e.Allow, path) {
			e = &wire.Error{Code: wire.RouteBlocked}
		}
		return e
	}
	if route.Class == wire.ClassBlocked {
		return &wire.Error{Code: wire.RouteBlocked}
	}
	ex.route, ex.params = route, params
	if ex.head.framed && route.Method == fasthttp.MethodGet {
		return malformed("a GET has no body")
	}
	if route.Cost == wire.CostDelivery {
		if ex.pop, err = wire.ParsePopQuery(query); err != nil {
			return wire.AsError(err)
		}
		if !ex.pop.TimeoutGiven {
			ex.pop.Timeout = g.cfg.PopTimeout
		}
		ex.pop.Timeout = min(ex.pop.Timeout, g.cfg.LongPollMax)
		return nil
	}
	if !usesBody(route.Op) { // what has a body says all it says there
		if _, ok := appendQuery(nil, query); !ok {
			return &wire.Error{Code: wire.InvalidRequest, Detail: "the query has an invalid escape"}
		}
		ex.query = query
	}
	return nil
}

// served reports whether some of the methods that the protocol has for a path are for clients.
func served(allow string, path []byte) bool {
	for method := range strings.SplitSeq(allow, ", ") {
		if r, _, err := wire.Match(method, path); err == nil && r.Class != wire.ClassBlocked {
			return true
		}
	}
	return false
}

// appendQuery appends the canonical form of a raw query: every pair decoded once and escaped again, empty pairs
// dropped. ok is false for a bad escape, invalid UTF-8 or a control character.
func appendQuery(dst, query []byte) (_ []byte, ok bool) {
	first := true
	for len(query) > 0 {
		var pair []byte
		pair, query, _ = bytes.Cut(query, []byte{'&'})
		if len(pair) == 0 {
			continue
		}
		if !first {
			dst = append(dst, '&')
		}
		first = false
		key, value, hasValue := bytes.Cut(pair, []byte{'='})
		if dst, ok = appendReescaped(dst, key); !ok {
			return dst, false
		}
		if hasValue {
			dst = append(dst, '=')
			if dst, ok = appendReescaped(dst, value); !ok {
				return dst, false
			}
		}
	}
	return dst, true
}

func appendReescaped(dst, raw []byte) (_ []byte, ok bool) {
	const upperHex = "0123456789ABCDEF"
	decoded := make([]byte, 0, 64)
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == '+':
			c = ' '
		case c == '%':
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return dst, false
			}
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
		}
		if c < ' ' || c == 0x7f {
			return dst, false
		}
		decoded = append(decoded, c)
	}
	if !utf8.Valid(decoded) {
		return dst, false
	}
	for _, c := range decoded {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', isDigit(c), c == '-', c == '_', c == '~', c == '.':
			dst = append(dst, c)
		default:
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return dst, true
}

func isHex(c byte) bool { return isDigit(c) || lower(c) >= 'a' && lower(c) <= 'f' }

func unhex(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return lower(c) - 'a' + 10
}
