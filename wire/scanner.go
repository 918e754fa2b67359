package wire

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// scanner walks JSON text once, checking all of it and building nothing. It is the only parser of request bodies in
// the product; its oracle in the tests is a strict token reader.
//
// It differs from encoding/json where that would let two readers disagree: keys match in exact case, a duplicate key
// that means something is an error, invalid UTF-8 and unpaired surrogate escapes are errors, and nesting is bounded.
type scanner struct {
	b []byte
	i int // the next unread byte
}

// kind is the first byte of a value, folded: digits and '-' become '0', the letters of true and false 't' and 'f'.
type kind byte

const (
	kindObject kind = '{'
	kindArray  kind = '['
	kindString kind = '"'
	kindNumber kind = '0'
	kindTrue   kind = 't'
	kindFalse  kind = 'f'
	kindNull   kind = 'n'
)

// bad is every complaint about a body.
func bad(format string, args ...any) *Error {
	return Errorf(InvalidRequest, "bad body: "+format, args...)
}

func (s *scanner) syntax() error {
	if s.i >= len(s.b) {
		return bad("unexpected end of the JSON text")
	}
	return bad("unexpected byte at position %d", s.i)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\t', '\r':
			s.i++
		default:
			return
		}
	}
}

// wantObject checks that the element of a list that comes next is an object, before anything of it is read.
func (s *scanner) wantObject(element string, index int) error {
	k, err := s.peek()
	if err == nil && k != kindObject {
		err = bad("%s %d must be an object", element, index)
	}
	return err
}

// peek returns the kind of the value that comes next, after white space.
func (s *scanner) peek() (kind, error) {
	s.space()
	if s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case '{', '[', '"', 't', 'f', 'n':
			return kind(c), nil
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			return kindNumber, nil
		}
	}
	return 0, s.syntax()
}

// end checks that nothing but white space is left.
func (s *scanner) end() error {
	s.space()
	if s.i != len(s.b) {
		return s.syntax()
	}
	return nil
}

// object calls each for every member with the scanner at the member's value, which each must consume.
func (s *scanner) object(each func(key []byte) error) error {
	if err := s.open('{'); err != nil {
		return err
	}
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		return nil
	}
	for {
		s.space()
		raw, escaped, err := s.str()
		if err != nil {
			return err
		}
		if escaped {
			// A key may be spelled with escapes; what counts is what it says.
			raw = unescape(nil, raw)
		}
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != ':' {
			return s.syntax()
		}
		s.i++
		if err := each(raw); err != nil {
			return err
		}
		s.space()
		if s.i >= len(s.b) {
			return s.syntax()
		}
		switch s.b[s.i] {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return s.syntax()
		}
	}
}

// list is array for a member that must be one; what names it in the error.
func (s *scanner) list(what string, each func(index int) error) error {
	if k, err := s.peek(); err != nil {
		return err
	} else if k != kindArray {
		return bad("%s must be an array", what)
	}
	return s.array(each)
}

// array calls each for every element with the scanner at it; each must consume it.
func (s *scanner) array(each func(index int) error) error {
	if err := s.open('['); err != nil {
		return err
	}
	s.space()
	if s.i < len(s.b) && s.b[s.i] == ']' {
		s.i++
		return nil
	}
	for n := 0; ; n++ {
		if err := each(n); err != nil {
			return err
		}
		s.space()
		if s.i >= len(s.b) {
			return s.syntax()
		}
		switch s.b[s.i] {
		case ',':
			s.i++
		case ']':
			s.i++
			return nil
		default:
			return s.syntax()
		}
	}
}

func (s *scanner) open(c byte) error {
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != c {
		return s.syntax()
	}
	s.i++
	return nil
}

// skip checks one whole value and returns its text. depth is the number of arrays and objects already open.
func (s *scanner) skip(depth int) ([]byte, error) {
	s.space()
	start := s.i
	// One bit per open level says whether it is an object: nesting is bounded by 64 for exactly this reason.
	var objects uint64
	level := depth
	for {
		s.space()
		if s.i >= len(s.b) {
			return nil, s.syntax()
		}
		switch c := s.b[s.i]; c {
		case '{', '[':
			if level == MaxNesting {
				return nil, bad("more than %d levels of nesting at position %d", MaxNesting, s.i)
			}
			s.i++
			level++
			objects <<= 1
			s.space()
			if c == '{' {
				objects |= 1
				if s.i < len(s.b) && s.b[s.i] == '}' {
					s.i++
					level--
					objects >>= 1
					break
				}
				if err := s.key(); err != nil {
					return nil, err
				}
				continue
			}
			if s.i < len(s.b) && s.b[s.i] == ']' {
				s.i++
				level--
				objects >>= 1
				break
			}
			continue
		case '"':
			if _, _, err := s.str(); err != nil {
				return nil, err
			}
		case 't':
			if err := s.literal("true"); err != nil {
				return nil, err
			}
		case 'f':
			if err := s.literal("false"); err != nil {
				return nil, err
			}
		case 'n':
			if err := s.literal("null"); err != nil {
				return nil, err
			}
		default:
			if err := s.number(); err != nil {
				return nil, err
			}
		}
		// A value is complete: close what closes with it, then go on to the next one.
		for {
			if level == depth {
				return s.b[start:s.i], nil
			}
			s.space()
			if s.i >= len(s.b) {
				return nil, s.syntax()
			}
			c := s.b[s.i]
			if c == ',' {
				s.i++
				if objects&1 == 1 {
					if err := s.key(); err != nil {
						return nil, err
					}
				}
				break
			}
			if (objects&1 == 1 && c == '}') || (objects&1 == 0 && c == ']') {
				s.i++
				level--
				objects >>= 1
				continue
			}
			return nil, s.syntax()
		}
	}
}

// key consumes a member name and its colon.
func (s *scanner) key() error {
	s.space()
	if _, _, err := s.str(); err != nil {
		return err
	}
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != ':' {
		return s.syntax()
	}
	s.i++
	return nil
}

func (s *scanner) literal(text string) error {
	if len(s.b)-s.i < len(text) || string(s.b[s.i:s.i+len(text)]) != text {
		return s.syntax()
	}
	s.i += len(text)
	return nil
}

func (s *scanner) number() error {
	i, b := s.i, s.b
	if i < len(b) && b[i] == '-' {
		i++
	}
	digits := func() bool {
		from := i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		return i > from
	}
	ok := false
	if i < len(b) && b[i] == '0' {
		i++
		ok = true
	} else {
		ok = digits()
	}
	if ok && i < len(b) && b[i] == '.' {
		i++
		ok = digits()
	}
	if ok && i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		ok = digits()
	}
	s.i = i
	if !ok {
		return s.syntax()
	}
	return nil
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// special marks, by the top bit of each, which of eight bytes need a look: not ASCII, a control character, a quote or a
// backslash. A borrow may mark a byte after the first one marked, never before it.
func special(v uint64) uint64 {
	quote := v ^ (lowBits * '"')
	slash := v ^ (lowBits * '\\')
	return ((v - lowBits*0x20) | (quote - lowBits) | (slash - lowBits) | v) & highBits
}

// str consumes a string and returns what stands between its quotes, checked: valid UTF-8, no raw control characters,
// valid escapes, paired surrogates.
func (s *scanner) str() (raw []byte, escaped bool, err error) {
	b := s.b
	if s.i >= len(b) || b[s.i] != '"' {
		return nil, false, s.syntax()
	}
	i := s.i + 1
	start := i
	wide := false
	for {
		// Long strings are most of a payload: sixteen bytes a step, in one branch.
		for len(b)-i >= 16 && special(binary.LittleEndian.Uint64(b[i:]))|special(binary.LittleEndian.Uint64(b[i+8:])) == 0 {
			i += 16
		}
		if len(b)-i >= 8 {
			// The lowest set bit is that of the first byte that needs a look.
			if v := special(binary.LittleEndian.Uint64(b[i:])); v == 0 {
				i += 8
				continue
			} else {
				i += bits.TrailingZeros64(v) / 8
			}
		}
		if i >= len(b) {
			s.i = i
			return nil, false, s.syntax()
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			raw = b[start:i]
			if wide && !utf8.Valid(raw) {
				return nil, false, bad("invalid UTF-8 in a string at position %d", start)
			}
			return raw, escaped, nil
		case c == '\\':
			escaped = true
			n := escapeLen(b[i:])
			if n == 0 {
				s.i = i
				return nil, false, bad("invalid escape at position %d", i)
			}
			i += n
		case c < 0x20:
			s.i = i
			return nil, false, bad("raw control character in a string at position %d", i)
		default:
			wide = wide || c >= utf8.RuneSelf
			i++
		}
	}
}

// escapeLen returns the length of the escape (or pair of surrogate escapes) at the start of b, 0 when it is invalid.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		r, ok := hex4(b[2:])
		switch {
		case !ok, r >= 0xDC00 && r < 0xE000:
			return 0
		case r < 0xD800 || r >= 0xE000:
			return 6
		}
		if len(b) < 12 || b[6] != '\\' || b[7] != 'u' {
			return 0
		}
		if low, ok := hex4(b[8:]); !ok || low < 0xDC00 || low >= 0xE000 {
			return 0
		}
		return 12
	}
	return 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// unescape appends the meaning of a checked raw string.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		switch raw[i+1] {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			n := escapeLen(raw[i:])
			r, _ := hex4(raw[i+2:])
			if n == 12 {
				low, _ := hex4(raw[i+8:])
				r = (r-0xD800)<<10 | (low - 0xDC00) + 0x10000
			}
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		default:
			dst = append(dst, raw[i+1])
		}
		i += 2
	}
	return dst
}

// text consumes a string and returns its meaning as a string of its own.
func (s *scanner) text() (string, error) {
	b, err := s.bytes()
	return string(b), err
}

// bytes consumes a string and returns its meaning, which aliases the body where nothing is escaped.
func (s *scanner) bytes() ([]byte, error) {
	raw, escaped, err := s.str()
	if escaped && err == nil {
		raw = unescape(nil, raw)
	}
	return raw, err
}

// optionalText consumes a string or null; what names it in the error.
func (s *scanner) optionalText(what string) (text string, null bool, err error) {
	k, err := s.peek()
	if err != nil {
		return "", false, err
	}
	switch k {
	case kindString:
		text, err = s.text()
		return text, false, err
	case kindNull:
		return "", true, s.literal("null")
	}
	return "", false, bad("%s must be a string", what)
}

// optionalBytes is optionalText without a string of its own; null is empty.
func (s *scanner) optionalBytes(what string) ([]byte, error) {
	k, err := s.peek()
	if err != nil {
		return nil, err
	}
	switch k {
	case kindString:
		return s.bytes()
	case kindNull:
		return nil, s.literal("null")
	}
	return nil, bad("%s must be a string", what)
}

// integer consumes a number that is whole and within int32.
func (s *scanner) integer(what string) (int, error) {
	start := s.i
	if err := s.number(); err != nil {
		return 0, err
	}
	text := s.b[start:s.i]
	if n, err := strconv.ParseInt(string(text), 10, 32); err == nil {
		return int(n), nil
	}
	// 300.0 and 3e2 are whole numbers too: some encoders write them.
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return 0, bad("%s must be a whole number", what)
	}
	return int(f), nil
}

// checkName applies the limits of a queue, partition or group name. A dot segment is none, because no path could name
// it: what was stored under it could be neither read nor deleted.
func checkName(what, name string) error {
	if name == "." || name == ".." {
		return bad("%s must not be %q", what, name)
	}
	if len(name) > MaxNameBytes {
		return bad("%s is longer than %d bytes", what, MaxNameBytes)
	}
	if hasControl(name) {
		return bad("control characters are not allowed in %s", what)
	}
	return nil
}

// checkQueue is checkName for a queue, which must have a name for the same reason.
func checkQueue(name string) error {
	if name == "" {
		return bad("queue must not be empty")
	}
	return checkName("queue", name)
}

func hasControl[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return true
		}
	}
	return false
}
