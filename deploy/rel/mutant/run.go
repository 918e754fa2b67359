package mutant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Lab runs mutants in a copy of the product's source.
type Lab struct {
	Root string // the product's source
	Work string // an empty folder for the copy, binaries and runs
	// Rel runs `rel run` with a binary and arguments, in a folder of runs, and returns the rules that failed, and those that
	// a busy machine kept from being judged.
	Rel func(ctx context.Context, binary string, args []string) (failed, unjudged []string, err error)
	Out io.Writer // what killers print

	copied string
	clean  map[string]error // killers without a mutant
}

// Outcome is what became of a mutant.
type Outcome string

// The outcomes. Only Killed is good.
const (
	Killed   Outcome = "killed"
	Survived Outcome = "SURVIVED"
	Broken   Outcome = "BROKEN" // the edit does not apply or compile, the killer is red by itself, or a busy machine kept it from judging
)

// testTime bounds one killer.
const testTime = 4 * time.Minute

// Try runs the killer of a mutant without and with it.
func (l *Lab) Try(ctx context.Context, m *Mutant) (Outcome, error) {
	if err := l.copy(ctx); err != nil {
		return Broken, err
	}
	if m.Kill.Package != "" {
		if err := l.control(ctx, m.Kill); err != nil {
			return Broken, fmt.Errorf("the killer is red without the mutant: %w", err)
		}
	}
	undo, err := l.apply(m)
	if err != nil {
		return Broken, err
	}
	defer undo()
	binary := filepath.Join(l.Work, "queengate")
	if err := l.build(ctx, binary); err != nil {
		return Broken, err
	}
	if m.Kill.Package != "" {
		switch err := l.test(ctx, m.Kill); {
		case err == nil:
			return Survived, nil
		case ctx.Err() != nil:
			return Broken, ctx.Err()
		}
		return Killed, nil
	}
	failed, unjudged, err := l.Rel(ctx, binary, m.Kill.Run)
	switch {
	case err != nil:
		return Broken, err
	case slices.Contains(failed, m.Kill.Rule):
		return Killed, nil
	case slices.Contains(unjudged, m.Kill.Rule):
		return Broken, fmt.Errorf("%s was not judged: busy machine", m.Kill.Rule)
	}
	return Survived, fmt.Errorf("want %s to fail, failed were %v", m.Kill.Rule, failed)
}

// copy copies what git knows of the source, once.
func (l *Lab) copy(ctx context.Context) error {
	if l.copied != "" {
		return nil
	}
	dir := filepath.Join(l.Work, "source")
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".", ":!deploy/rel")
	cmd.Dir = l.Root
	list, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list the source: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(l.Root, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("copy the source: %w", err)
		}
	}
	l.copied, l.clean = dir, map[string]error{}
	return nil
}

func copyFile(to, from string) error {
	info, err := os.Lstat(from)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, info.Mode().Perm())
}

// apply makes the edits of a mutant in the copy.
func (l *Lab) apply(m *Mutant) (undo func(), err error) {
	before := map[string][]byte{}
	undo = func() {
		for path, b := range before {
			_ = os.WriteFile(path, b, 0o644) // the next build would say
		}
	}
	for _, e := range m.Edits {
		path := filepath.Join(l.copied, e.File)
		b, err := os.ReadFile(path)
		if err != nil {
			undo()
			return nil, err
		}
		changed, err := e.Apply(string(b))
		if err != nil {
			undo()
			return nil, err
		}
		if _, again := before[path]; !again {
			before[path] = b
		}
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			undo()
			return nil, err
		}
	}
	return undo, nil
}

// Apply makes the edit in the text of its file.
func (e *Edit) Apply(text string) (string, error) {
	if n := strings.Count(text, e.Old); n != 1 {
		return "", fmt.Errorf("%s has %d places that read %q, want one", e.File, n, e.Old)
	}
	return strings.Replace(text, e.Old, e.New, 1), nil
}

func (l *Lab) build(ctx context.Context, binary string) error {
	return l.command(ctx, "go", "build", "-o", binary, "./cmd/queengate")
}

// control runs a killer without any mutant, once.
func (l *Lab) control(ctx context.Context, k Kill) error {
	key := k.Package + " " + k.Test
	err, known := l.clean[key]
	if !known {
		err = l.test(ctx, k)
		l.clean[key] = err
	}
	return err
}

// test runs tests of the copy with a PostgreSQL and Redis of their own, unless the environment names some.
func (l *Lab) test(ctx context.Context, k Kill) error {
	return l.command(ctx, "scripts/testenv.sh", "go", "test", "-count=1", "-failfast", "-timeout", testTime.String(), "-run", k.Test, k.Package)
}

func (l *Lab) command(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = l.copied, l.Out, l.Out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return nil
}
