package conf

import (
	"fmt"
	"io"
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
			if t.secret {
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
	_, err := io.WriteString(w, b.String())
	return err
}
