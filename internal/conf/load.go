package conf

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Request is what a command line asks for beside running.
type Request struct {
	Args  []string // what follows the flags
	Inert []Inert  // variables that are set and have no effect
	Print bool     // --print-config
	Check bool     // --check-config
}

// Inert is a variable of the existing system that is set and has no effect here.
type Inert struct{ Name, Instead string }

// Load fills the settings that command reads. args are the arguments behind the command's name, environ the process's
// environment. flag.ErrHelp is returned as it is, after usage was written to usage; every other error is the joined
// list of problems, each with key, value, bound and origin. Extra flags of the command are declared by extra, which
// may be nil.
func (s *Set) Load(command string, args, environ []string, usage io.Writer, extra func(*flag.FlagSet)) (Request, error) {
	var req Request
	env := map[string]string{}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	fs := flag.NewFlagSet("queengate "+command, flag.ContinueOnError)
	fs.SetOutput(usage)
	file := fs.String("config", env[Prefix+"CONFIG"], "YAML `file` with settings")
	fs.BoolVar(&req.Print, "print-config", false, "print the settings in force, secrets redacted, and exit")
	fs.BoolVar(&req.Check, "check-config", false, "check the settings and exit")
	given := map[*setting]string{}
	for t := range s.of(command) {
		if t.flag != "" {
			fs.Func(t.flag, t.usage(), func(v string) error { given[t] = v; return nil })
		}
	}
	if extra != nil {
		extra(fs)
	}
	if err := fs.Parse(args); err != nil {
		return req, err
	}
	req.Args = fs.Args()

	var problems []error
	if *file != "" {
		problems = append(problems, s.fromFile(*file)...)
	}
	problems = append(problems, s.fromEnv(env)...)
	for t := range s.of(command) {
		if v, ok := given[t]; ok {
			problems = append(problems, t.take(v, "flag --"+t.flag))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return req, err
	}
	for _, c := range s.checks {
		if slices.Contains(c.commands, command) {
			problems = append(problems, c.run())
		}
	}
	req.Inert = s.inertOf(command, env)
	return req, errors.Join(problems...)
}

// inertOf lists the variables that are set for nothing.
func (s *Set) inertOf(command string, env map[string]string) (found []Inert) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if i := slices.IndexFunc(s.inert, func(n inert) bool { return n.has(name) }); i >= 0 && env[name] != "" && slices.Contains(s.inert[i].commands, command) {
			found = append(found, Inert{name, s.inert[i].instead})
		}
	}
	return found
}

func (n inert) has(name string) bool {
	return slices.ContainsFunc(n.names, func(pattern string) bool {
		prefix, family := strings.CutSuffix(pattern, "*")
		return pattern == name || family && strings.HasPrefix(name, prefix)
	})
}

// of yields the settings that command reads; "" means all.
func (s *Set) of(command string) func(yield func(*setting) bool) {
	return func(yield func(*setting) bool) {
		for _, sec := range s.sections {
			if command != "" && !slices.Contains(sec.commands, command) {
				continue
			}
			for _, t := range sec.settings {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// usage is the help of the setting's flag. Package flag would take quoted words for the name of its value.
func (t *setting) usage() string {
	text := strings.ReplaceAll(t.doc, "`", "")
	if t.fallback != "" {
		text += fmt.Sprintf(" (default %s)", t.fallback)
	}
	return text
}

// take parses a value; a problem names everything needed to mend it.
func (t *setting) take(v, origin string) error {
	if err := t.parse(v); err != nil {
		if t.secret {
			v = redacted
		}
		return fmt.Errorf("%s = %s: %w (%s)", t.key, v, err, origin)
	}
	t.origin = origin
	return nil
}

// takeFile reads a secret from a file: without the line end that editors add.
func (t *setting) takeFile(name, origin string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("%s: %w (%s)", t.key, err, origin)
	}
	return t.take(strings.TrimRight(string(text), "\r\n"), origin)
}

func (s *Set) fromEnv(env map[string]string) (problems []error) {
	known := map[string]bool{Prefix + "CONFIG": true}
	get := func(name string) string { return env[name] }
	for t := range s.of("") {
		own := t.env()
		known[own] = true
		for _, h := range t.honoured {
			for _, name := range h.names {
				known[name] = true
			}
		}
		known[own+"_FILE"] = known[own+"_FILE"] || t.file
		// The existing system takes an empty variable for an absent one, but for a few; so do we, for its names and ours.
		counts := func(name string) bool {
			v, set := env[name]
			return v != "" || set && t.emptyCounts
		}
		for _, h := range t.honoured {
			if !slices.ContainsFunc(h.names, counts) {
				continue
			}
			origin := "environment " + strings.Join(h.names, ", ")
			v, err := h.value(get)
			switch {
			case err != nil:
				problems = append(problems, fmt.Errorf("%s: %w (%s)", t.key, err, origin))
			case v != "" || t.emptyCounts:
				problems = append(problems, t.take(v, origin))
			}
		}
		if counts(own) {
			problems = append(problems, t.take(env[own], "environment "+own))
		}
		if name := env[own+"_FILE"]; t.file && name != "" {
			problems = append(problems, t.takeFile(name, "environment "+own+"_FILE"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		// The variables of the tests are not settings of the program.
		if strings.HasPrefix(name, Prefix) && !strings.HasPrefix(name, Prefix+"TEST_") && !known[name] {
			problems = append(problems, fmt.Errorf("environment %s: no such setting", name))
		}
	}
	return problems
}

func (s *Set) fromFile(name string) (problems []error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return []error{err}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return []error{fmt.Errorf("%s: %w", name, err)}
	}
	if len(doc.Content) == 0 {
		return nil // an empty file
	}
	settings := map[string]*setting{}
	for t := range s.of("") {
		settings[t.key] = t
	}
	seen := map[string]bool{}
	flatten(doc.Content[0], "", func(key string, n *yaml.Node, err error) {
		origin := fmt.Sprintf("%s line %d", name, n.Line)
		t, fromFile := settings[key], false
		if t == nil {
			t = settings[strings.TrimSuffix(key, "_file")]
			fromFile = t != nil && t.file
		}
		switch {
		case err != nil:
		case seen[key]:
			err = fmt.Errorf("%s: set twice (%s)", key, origin)
		case fromFile:
			err = t.takeFile(n.Value, origin)
		case settings[key] == nil:
			err = fmt.Errorf("%s: no such setting (%s)", key, origin)
		default:
			err = t.take(n.Value, origin)
		}
		seen[key] = true
		problems = append(problems, err)
	})
	return problems
}

// flatten calls each for every value below n, its key written with dots. Lists become one text with commas.
func flatten(n *yaml.Node, key string, each func(key string, n *yaml.Node, err error)) {
	switch n.Kind {
	case yaml.ScalarNode:
		each(key, n, nil)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			flatten(n.Content[i+1], strings.TrimPrefix(key+"."+n.Content[i].Value, "."), each)
		}
	case yaml.SequenceNode:
		var items []string
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode || strings.Contains(c.Value, ",") {
				each(key, c, fmt.Errorf("%s: a list holds plain texts without commas (line %d)", key, c.Line))
				return
			}
			items = append(items, c.Value)
		}
		each(key, &yaml.Node{Value: strings.Join(items, ","), Line: n.Line}, nil)
	default:
		each(key, n, fmt.Errorf("%s: anchors and aliases are not taken (line %d)", key, n.Line))
	}
}
