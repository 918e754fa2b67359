// Package conf fills a program's configuration from its sources, in this order: defaults, a YAML file, the environment,
// flags; what comes later wins. Each setting is declared once, with its key, bounds and meaning, and everything else
// follows from that: parsing, validation, `--print-config` and the reference in docs/config.md.
//
// It is strict: an unknown key, an unknown variable with our prefix, a duplicate key or a value out of bounds is an
// error, and all problems are reported together. Secrets never leave it in clear: they print as "redacted" and may be
// read from files.
package conf

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Prefix of our environment variables: the setting broker.pool_size is QUEENGATE_BROKER_POOL_SIZE.
const Prefix = "QUEENGATE_"

// Set is a program's settings. It is built by one goroutine, loaded once and then only read.
type Set struct {
	sections []*section
	checks   []check
	inert    []inert
}

type section struct {
	name, doc string
	commands  []string // that read it
	settings  []*setting
}

type check struct {
	commands []string
	run      func() error
}

type setting struct {
	key, doc, bound string
	flag            string
	secret          bool
	emptyCounts     bool
	file            bool // it may be named by a file
	honoured        []honoured
	fallback        string // the default, as text
	origin          string // where the value in force came from; "" is the default
	parse           func(text string) error
	show            func() string
}

// honoured is a value made of variables of the existing system.
type honoured struct {
	names []string
	value func(get func(name string) string) (string, error)
}

// inert is a group of variables of the existing system that have no effect here.
type inert struct {
	names    []string // a * at the end stands for any text
	instead  string
	commands []string
}

// Section begins a group of settings that the named commands read. The first sentence of doc is its title. Keys of the settings that follow begin with its
// name and a dot, unless the name is empty.
func (s *Set) Section(name, doc string, commands ...string) {
	s.sections = append(s.sections, &section{name: name, doc: doc, commands: commands})
}

// Check adds a rule over several settings of the current section; its error names the keys.
func (s *Set) Check(rule func() error) {
	s.checks = append(s.checks, check{s.sections[len(s.sections)-1].commands, rule})
}

// Inert names variables of the existing system that have no effect here, for the commands of the current section: Load
// warns of those that are set, with what is there instead. A * at the end of a name stands for any text.
func (s *Set) Inert(instead string, names ...string) {
	s.inert = append(s.inert, inert{names, instead, s.sections[len(s.sections)-1].commands})
}

// Option is a further property of a setting.
type Option func(*setting)

// Flag makes the setting a flag of the commands that read it.
func Flag(name string) Option { return func(t *setting) { t.flag = name } }

// Env names variables of the existing broker or proxy that mean the same.
func Env(names ...string) Option {
	return func(t *setting) {
		for _, n := range names {
			t.honoured = append(t.honoured, honoured{[]string{n}, func(get func(string) string) (string, error) { return get(n), nil }})
		}
	}
}

// EnvFunc is Env for a setting that the existing system spreads over several variables, or writes in another form. It
// counts when one of them is set, unless the value is empty.
func EnvFunc(value func(get func(name string) string) (string, error), names ...string) Option {
	return func(t *setting) { t.honoured = append(t.honoured, honoured{names, value}) }
}

// EmptyCounts makes a variable that is set and empty an empty value, where it otherwise counts as absent.
func EmptyCounts() Option { return func(t *setting) { t.emptyCounts = true } }

// add registers a setting; the value in p at this moment is its default.
func (s *Set) add(key, doc, bound string, parse func(string) error, show func() string, opts []Option) *setting {
	sec := s.sections[len(s.sections)-1]
	if sec.name != "" {
		key = sec.name + "." + key
	}
	t := &setting{key: key, doc: doc, bound: bound, parse: parse, show: show, fallback: show()}
	for _, o := range opts {
		o(t)
	}
	sec.settings = append(sec.settings, t)
	return t
}

// env returns the name of the setting's own variable.
func (t *setting) env() string {
	return Prefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(t.key))
}

// String declares a text.
func (s *Set) String(p *string, key, doc string, opts ...Option) {
	s.add(key, doc, "", func(v string) error { *p = v; return nil }, func() string { return *p }, opts)
}

// Enum declares a text that is one of values.
func (s *Set) Enum(p *string, key, doc string, values []string, opts ...Option) {
	want := strings.Join(values, ", ")
	s.add(key, doc, want, func(v string) error {
		if !slices.Contains(values, v) {
			return errors.New("want one of " + want)
		}
		*p = v
		return nil
	}, func() string { return *p }, opts)
}

// Addr declares a listening address, host:port; an empty one (or "off") listens nowhere.
func (s *Set) Addr(p *string, key, doc string, opts ...Option) {
	s.add(key, doc, "host:port, or off", func(v string) error {
		if v == "" || v == "off" {
			*p = ""
			return nil
		}
		_, port, err := net.SplitHostPort(v)
		if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 0 || n > 65535 {
			return errors.New("want host:port, or off")
		}
		*p = v
		return nil
	}, func() string { return *p }, opts)
}

// Bool declares a switch.
func (s *Set) Bool(p *bool, key, doc string, opts ...Option) {
	s.add(key, doc, "true or false", func(v string) (err error) {
		*p, err = ParseBool(v)
		return err
	}, func() string { return strconv.FormatBool(*p) }, opts)
}

// ParseBool reads a switch in all its spellings: true and false, 1 and 0, yes and no, on and off, in any case.
func ParseBool(v string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, errors.New("want true or false")
}

// Int declares a whole number from low to high.
func Int[N ~int | ~int32 | ~int64](s *Set, p *N, key, doc string, low, high N, opts ...Option) {
	bound := fmt.Sprintf("%d..%d", low, high)
	s.add(key, doc, bound, func(v string) error {
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		if err != nil || n < int64(low) || n > int64(high) {
			return errors.New("want " + bound)
		}
		*p = N(n)
		return nil
	}, func() string { return strconv.FormatInt(int64(*p), 10) }, opts)
}

// Float declares a number from low to high.
func (s *Set) Float(p *float64, key, doc string, low, high float64, opts ...Option) {
	bound := fmt.Sprintf("%v..%v", low, high)
	s.add(key, doc, bound, func(v string) error {
		f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if err != nil || !(f >= low && f <= high) { // not a number is neither
			return errors.New("want " + bound)
		}
		*p = f
		return nil
	}, func() string { return strconv.FormatFloat(*p, 'g', -1, 64) }, opts)
}

// Duration declares a time span from low to high, written like 90s or 1m30s.
func (s *Set) Duration(p *time.Duration, key, doc string, low, high time.Duration, opts ...Option) {
	bound := fmt.Sprintf("%s..%s", low, high)
	s.add(key, doc, bound, func(v string) error {
		d, err := time.ParseDuration(strings.TrimSpace(v))
		if err != nil || d < low || d > high {
			return errors.New("want " + bound + ", with its unit")
		}
		*p = d
		return nil
	}, func() string { return p.String() }, opts)
}

// List declares texts, separated by commas or written as a YAML list.
func (s *Set) List(p *[]string, key, doc string, opts ...Option) {
	s.add(key, doc, "a list", func(v string) error {
		*p = nil
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
		return nil
	}, func() string { return strings.Join(*p, ",") }, opts)
}

// Text declares a text that may be long, such as a certificate: like a secret it may be named by a file, and unlike one
// it prints.
func (s *Set) Text(p *string, key, doc string, opts ...Option) {
	s.add(key, doc, "", func(v string) error { *p = v; return nil }, func() string { return *p }, opts).file = true
}

// Secret declares a secret: it prints as redacted, and it may be named by a file: the key with _file behind it, or the
// variable with _FILE.
func (s *Set) Secret(p *Secret, key, doc string, opts ...Option) {
	t := s.add(key, doc, "", func(v string) error { *p = Secret(v); return nil }, func() string { return p.String() }, opts)
	t.secret, t.file = true, true
}

// Secret is a text that does not print: not with any verb, not in JSON, not in a log. Reveal is the only way out.
type Secret string

const redacted = "redacted"

// String hides the secret; an empty one stays visible as empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format hides the secret from every verb, %#v and %x included.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// MarshalText hides the secret from JSON, YAML and slog.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Reveal returns the secret.
func (s Secret) Reveal() string { return string(s) }
