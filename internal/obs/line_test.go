package obs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// tokens returns what a line of JSON says, in its order. It must be one whole line of valid UTF-8.
func tokens(t rapid.TB, line []byte) []json.Token {
	t.Helper()
	if bytes.Count(line, []byte{'\n'}) != 1 || line[len(line)-1] != '\n' || !json.Valid(line) || !utf8.Valid(line) {
		t.Fatalf("got %q, want one line of JSON", line)
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var all []json.Token
	for {
		token, err := d.Token()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, token)
	}
}

// A byte of any value, so also broken UTF-8, control characters, quotes and what HTML and JavaScript mind.
func anyText() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "\x00\x1f\x7f\"\\\b\f\n\r\t", "\u2028\u2029<&>", "\xff\xc0\x80\xed\xa0\x80", "é\U0001f600", "\"}\n{\"level\":\"ERROR"}))
}

func TestALineReadsAsThoseOfSlog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var ours, theirs bytes.Buffer
		b := NewBuffer(&ours)
		log, err := NewLogger(b, "json", "debug")
		if err != nil {
			t.Fatal(err)
		}
		reference := slog.New(slog.NewJSONHandler(&theirs, &slog.HandlerOptions{Level: slog.LevelDebug}))
		for range rapid.IntRange(0, 2).Draw(t, "with") {
			key, v := anyText().Draw(t, "key"), anyText().Draw(t, "text")
			log, reference = log.With(key, v), reference.With(key, v)
		}
		var at time.Time
		if rapid.Bool().Draw(t, "timed") {
			zone := time.FixedZone("", 60*rapid.IntRange(-14*60, 14*60).Draw(t, "zone"))
			at = time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "seconds"), rapid.Int64Range(0, 999999999).Draw(t, "nanoseconds")).In(zone)
		}
		level := slog.Level(rapid.IntRange(-4, 9).Draw(t, "level"))
		msg, key, text := anyText().Draw(t, "message"), anyText().Draw(t, "key"), anyText().Draw(t, "text")
		n, f := rapid.Int().Draw(t, "n"), rapid.Float64().Draw(t, "f")

		line := Begin(log, at, level, msg)
		if line == nil {
			t.Fatal("there is no line")
		}
		line.Str(key, text).Int("n", n).Float64("f", f).Send()
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
		r := slog.NewRecord(at, level, msg, 0)
		r.AddAttrs(slog.String(key, text), slog.Int("n", n), slog.Float64("f", f))
		if err := reference.Handler().Handle(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tokens(t, theirs.Bytes()), tokens(t, ours.Bytes())); d != "" {
			t.Errorf("-log/slog +ours\n%s", d)
		}
	})
}

func TestWhatHasNoLinesIsLeftToSlog(t *testing.T) {
	t.Parallel()
	logger := func(w io.Writer, format string) *slog.Logger {
		log, err := NewLogger(w, format, "info")
		if err != nil {
			t.Fatal(err)
		}
		return log
	}
	log := logger(NewBuffer(io.Discard), "json")
	for name, c := range map[string]struct {
		log   *slog.Logger
		level slog.Level
		want  bool
	}{
		"json":                     {log, slog.LevelInfo, true},
		"an attribute":             {log.With("part", "gateway"), slog.LevelInfo, true},
		"a level too low":          {log, slog.LevelDebug, false},
		"a number of every line":   {log.With("n", 1), slog.LevelInfo, false},
		"a group":                  {log.WithGroup("g"), slog.LevelInfo, false},
		"a group and an attribute": {log.WithGroup("g").With("part", "gateway"), slog.LevelInfo, false},
		"text":                     {logger(NewBuffer(io.Discard), "text"), slog.LevelInfo, false},
		"a writer of single calls": {logger(io.Discard, "json"), slog.LevelInfo, false},
		"another handler":          {slog.New(slog.DiscardHandler), slog.LevelInfo, false},
	} {
		if got := Begin(c.log, time.Time{}, c.level, "m") != nil; got != c.want {
			t.Errorf("%s: a line %v, want %v", name, got, c.want)
		}
	}
}

func TestALineOfAWarningDoesNotWait(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	log, err := NewLogger(NewBuffer(r), "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	Begin(log, time.Time{}, slog.LevelWarn, "one").Send()
	if got := strings.Join(r.read(), ""); got != `{"level":"WARN","msg":"one"}`+"\n" {
		t.Errorf("got %q, want the warning", got)
	}
}

// TestLinesAndRecordsDoNotMix writes both from many goroutines.
func TestLinesAndRecordsDoNotMix(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := NewBuffer(&out)
	log, err := NewLogger(b, "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				level := slog.Level(4 * (i % 2))
				Begin(log, time.Now(), level, "line").Str("writer", fmt.Sprint(w)).Int("i", i).Send()
				log.Log(t.Context(), level, "record", "writer", fmt.Sprint(w), "i", i)
			}
		})
	}
	wg.Wait()
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	for line := range bytes.Lines(out.Bytes()) {
		var l struct {
			Msg, Writer string
			I           int
		}
		if err := json.Unmarshal(line, &l); err != nil || l.I != next[l.Msg+l.Writer] {
			t.Fatalf("got %q, %v, want number %d of its writer", line, err, next[l.Msg+l.Writer])
		}
		next[l.Msg+l.Writer]++
	}
	if len(next) != 2*writers {
		t.Errorf("got lines of %v, want those of %d writers in two forms", next, writers)
	}
	for of, n := range next {
		if n != each {
			t.Errorf("%s: %d lines, want %d", of, n, each)
		}
	}
}

// TestALogThatCannotBeWrittenIsQuiet reads what the process says on standard error, which is everybody's: so it runs alone.
func TestALogThatCannotBeWrittenIsQuiet(t *testing.T) {
	stderr := os.Stderr
	t.Cleanup(func() { os.Stderr = stderr })
	f, err := os.Create(t.TempDir() + "/stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	os.Stderr = f
	r := &recorder{}
	r.fail(errors.New("disk full"))
	log, err := NewLogger(NewBuffer(r), "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	Begin(log, time.Time{}, slog.LevelInfo, strings.Repeat("x", bufferSize)).Send() // too much to wait
	Begin(log, time.Time{}, slog.LevelWarn, "m").Send()
	if said, err := os.ReadFile(f.Name()); err != nil || len(said) != 0 || len(r.read()) != 2 {
		t.Errorf("said %q, %v after %d writes, want nothing after 2", said, err, len(r.read()))
	}
}
