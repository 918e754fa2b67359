package wire

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Params are the decoded path parameters of a match, in the order of the pattern.
type Params [maxParams]string

const (
	maxParams   = 3
	maxSegments = 10
)

type pattern struct {
	segments []string       // a parameter is ""
	limits   [maxParams]int // bytes of each parameter
	routes   []*Route       // one per method
	allow    string
}

// patterns is Routes by number of segments: a path is compared with a handful of patterns at most.
var patterns = compile(Routes)

func compile(routes []Route) [maxSegments + 1][]*pattern {
	var table [maxSegments + 1][]*pattern
	byText := map[string]*pattern{}
	for i := range routes {
		r := &routes[i]
		p := byText[r.Pattern]
		if p == nil {
			p = &pattern{}
			params := 0
			for seg := range strings.SplitSeq(r.Pattern[1:], "/") {
				if name, ok := strings.CutPrefix(seg, ":"); ok {
					p.limits[params] = paramBytes(name)
					params++
					seg = ""
				}
				p.segments = append(p.segments, seg)
			}
			byText[r.Pattern] = p
			table[len(p.segments)] = append(table[len(p.segments)], p)
		}
		p.routes = append(p.routes, r)
		if p.allow != "" {
			p.allow += ", "
		}
		p.allow += r.Method
	}
	return table
}

// paramBytes is how long a path parameter may be: a transaction id as long as a push takes it, everything else a name.
// What a server reads of a request's head may be less.
func paramBytes(name string) int {
	if name == "transaction" {
		return MaxTransactionIDBytes
	}
	return MaxNameBytes
}

// Match classifies a method and a raw request path (without query).
//
// It refuses with InvalidRequest what two readers could take for two paths: dot segments, plain or encoded, empty
// segments and NUL; one doubled leading slash is tolerated, since SDKs send it when their base URL ends in
// one. An unknown path is NoSuchRoute; a known one with another method is MethodNotAllowed with Allow set.
func Match(method string, path []byte) (*Route, Params, error) {
	if len(path) >= 2 && path[0] == '/' && path[1] == '/' {
		path = path[1:]
	}
	if len(path) == 0 || path[0] != '/' {
		return nil, Params{}, Errorf(InvalidRequest, "the path must begin with a slash")
	}
	var segs [maxSegments][]byte
	n := 0
	for rest := path[1:]; ; n++ {
		seg, after, more := bytes.Cut(rest, []byte{'/'})
		if err := checkSegment(seg, n == 0 && !more); err != nil {
			return nil, Params{}, err
		}
		if n < maxSegments {
			segs[n] = seg
		}
		if !more {
			n++
			break
		}
		rest = after
	}
	if n > maxSegments {
		return nil, Params{}, &Error{Code: NoSuchRoute}
	}
	for _, p := range patterns[n] {
		if !p.matches(segs[:n]) {
			continue
		}
		for _, r := range p.routes {
			if r.Method == method {
				params, err := p.params(segs[:n])
				return r, params, err
			}
		}
		return nil, Params{}, &Error{Code: MethodNotAllowed, Allow: p.allow}
	}
	return nil, Params{}, &Error{Code: NoSuchRoute}
}

// checkSegment refuses a segment that a proxy or a file server would treat as something else than a name. root allows
// the empty segment of the path "/".
func checkSegment(seg []byte, root bool) error {
	if len(seg) == 0 && !root {
		return Errorf(InvalidRequest, "the path has an empty segment")
	}
	if bytes.IndexByte(seg, 0) >= 0 {
		return Errorf(InvalidRequest, "the path has a NUL byte")
	}
	if len(seg) <= len("%2e%2e") && isDots(seg) {
		return Errorf(InvalidRequest, "the path has a dot segment")
	}
	return nil
}

func isDots(seg []byte) bool {
	dots := 0
	for len(seg) > 0 {
		switch {
		case seg[0] == '.':
			seg = seg[1:]
		case len(seg) >= 3 && seg[0] == '%' && seg[1] == '2' && seg[2]|0x20 == 'e':
			seg = seg[3:]
		default:
			return false
		}
		dots++
	}
	return dots == 1 || dots == 2
}

func (p *pattern) matches(segs [][]byte) bool {
	for i, want := range p.segments {
		if want != "" && string(segs[i]) != want {
			return false
		}
	}
	return true
}

func (p *pattern) params(segs [][]byte) (Params, error) {
	var out Params
	k := 0
	for i, want := range p.segments {
		if want != "" {
			continue
		}
		v := decodeName(segs[i])
		if !utf8.ValidString(v) {
			return out, Errorf(InvalidRequest, "the path is not valid UTF-8")
		}
		if len(v) > p.limits[k] {
			return out, Errorf(InvalidRequest, "a name in the path is longer than %d bytes", p.limits[k])
		}
		if hasControl(v) {
			return out, Errorf(InvalidRequest, "control characters are not allowed in a name")
		}
		out[k] = v
		k++
	}
	return out, nil
}

// decodeName undoes the percent escapes of a path segment exactly once; '+' stays '+'. A '%' that begins no escape
// stands for itself: published SDKs put names into paths as they are.
func decodeName(seg []byte) string {
	name, _ := decodeEscapes(seg)
	return name
}

// decodeEscapes undoes percent escapes once; ok is false when a '%' that begins none was left as it is.
func decodeEscapes(b []byte) (_ string, ok bool) {
	if bytes.IndexByte(b, '%') < 0 {
		return string(b), true
	}
	ok = true
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '%' {
			if c, escape := escaped(b[i+1:]); escape {
				out = append(out, c)
				i += 2
				continue
			}
			ok = false
		}
		out = append(out, b[i])
	}
	return string(out), ok
}

// escaped reads the two digits behind a '%'.
func escaped(b []byte) (byte, bool) {
	if len(b) < 2 {
		return 0, false
	}
	hi, ok1 := hexValue(b[0])
	lo, ok2 := hexValue(b[1])
	return hi<<4 | lo, ok1 && ok2
}

func hexValue(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// AppendPath appends the canonical escaped path of r with the given parameters: what a gateway sends upstream. It
// reads back through Match as the same route and parameters.
func AppendPath(dst []byte, r *Route, p Params) []byte {
	k := 0
	for seg := range strings.SplitSeq(r.Pattern[1:], "/") {
		dst = append(dst, '/')
		if !strings.HasPrefix(seg, ":") {
			dst = append(dst, seg...)
			continue
		}
		dst = appendEscaped(dst, p[k])
		k++
	}
	return dst
}

// appendEscaped keeps only the unreserved characters of RFC 3986, so that the result means the same in a path segment
// and in a query value.
func appendEscaped(dst []byte, s string) []byte {
	const upperHex = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '~', c == '.':
			dst = append(dst, c)
		default:
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return dst
}
