package conf

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Print writes the settings that command reads as YAML that Load takes back, secrets apart, each with its origin.
func (s *Set) Print(w io.Writer, command string) error {
	var b strings.Builder
	open := ""
	for t := range s.of(command) {
		head, name, nested := strings.Cut(t.key, ".")
		if !nested {
			head, name = "", t.key
		}
		if head != open && head != "" {
			fmt.Fprintf(&b, "%s:\n", head)
		}
		open = head
		if head != "" {
			b.WriteString("  ")
		}
		origin := t.origin
		if origin == "" {
			origin = "default"
		}
		fmt.Fprintf(&b, "%s: %s # %s\n", name, strconv.Quote(t.show()), origin)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown writes the reference of all settings.
func (s *Set) Markdown(w io.Writer) error {
	var b strings.Builder
	for _, sec := range s.sections {
		title, rest, _ := strings.Cut(sec.doc, ". ")
		fmt.Fprintf(&b, "\n## %s\n\n", strings.TrimSuffix(title, "."))
		if rest != "" {
			b.WriteString(rest + " ")
		}
		fmt.Fprintf(&b, "Read by %s.\n\n", strings.Join(sec.commands, ", "))
		b.WriteString("| Key | Default | Bounds | Variable | Flag | Meaning |\n|---|---|---|---|---|---|\n")
		for _, t := range sec.settings {
			names := "`" + t.env() + "`"
			if t.file {
				names += ", `" + t.env() + "_FILE`"
			}
			for _, h := range t.honoured {
				names += "; also `" + strings.Join(h.names, "`, `") + "`"
			}
			flag := ""
			if t.flag != "" {
				flag = "`--" + t.flag + "`"
			}
			fallback := ""
			if t.fallback != "" {
				fallback = "`" + t.fallback + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", t.key, fallback, t.bound, names, flag, strings.ReplaceAll(t.doc, "|", `\|`))
		}
	}
	s.existing(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// existing writes what became of each variable of the existing system, by name.
func (s *Set) existing(b *strings.Builder) {
	here := map[string][]string{}
	for t := range s.of("") {
		for _, h := range t.honoured {
			for _, name := range h.names {
				if !strings.HasPrefix(name, Prefix) {
					here[name] = append(here[name], "`"+t.key+"`")
				}
			}
		}
	}
	for _, n := range s.inert {
		for _, name := range n.names {
			here[name] = append(here[name], "no effect: "+n.instead)
		}
	}
	b.WriteString(`
## Variables of the existing system

Each of them is one of our settings, or has no effect: then a start that finds it set warns and says what is there
instead. Switches are true or false, 1 or 0, yes or no, on or off, in any case; a switch or a number that is none of it
stops the start. Intervals below their least value count as that. A setting's own variable ranks above them.

| Variable | Here |
|---|---|
`)
	for _, name := range slices.Sorted(maps.Keys(here)) {
		fmt.Fprintf(b, "| `%s` | %s |\n", name, strings.Join(here[name], ", "))
	}
}
