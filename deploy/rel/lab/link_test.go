package lab

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// echo answers every line with itself.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return ln.Addr().String()
}

// caller is a connection through a link.
type caller struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, l *Link) *caller {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &caller{c, bufio.NewReader(c)}
}

// say sends a line and reads one, for so long.
func (c *caller) say(line string, patience time.Duration) (string, error) {
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		return "", err
	}
	return c.hear(patience)
}

// hear reads a line, for so long.
func (c *caller) hear(patience time.Duration) (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	s, err := c.in.ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err
}

func link(t *testing.T) *Link {
	t.Helper()
	l, err := newLink("test", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// felt waits until the weather was felt: what was said may not have come to the link yet.
func felt(t *testing.T, l *Link) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(long); l.Hits() == 0; {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("nobody felt it")
		}
	}
}

// short is how long a test waits for what must not come, long for what must.
const (
	short = 50 * time.Millisecond
	long  = 10 * time.Second
)

func TestALinkCarriesBothWays(t *testing.T) {
	t.Parallel()
	c := dial(t, link(t))
	for _, line := range []string{"a", strings.Repeat("long", 50_000), "b"} {
		if got, err := c.say(line, long); got != line || err != nil {
			t.Fatalf("%d bytes came back as %d, %v", len(line), len(got), err)
		}
	}
}

func TestTheEndOfAStreamIsHandedOn(t *testing.T) {
	t.Parallel()
	c := dial(t, link(t))
	if _, err := c.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c.in); string(b) != "last words" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
}

func TestACutResetsWhatIsThereAndWhatComes(t *testing.T) {
	t.Parallel()
	l := link(t)
	c := dial(t, l)
	if _, err := c.say("before", long); err != nil {
		t.Fatal(err)
	}
	l.Set(Weather{Cut: true})
	if _, err := c.say("during", long); err == nil {
		t.Error("a connection outlives the cut")
	}
	if conn, err := net.Dial("tcp", l.Addr()); err == nil { // the reset may come a moment later than the connection
		if _, err := (&caller{conn, bufio.NewReader(conn)}).say("during", long); err == nil {
			t.Error("a connection is made during the cut")
		}
		_ = conn.Close()
	}
	if l.Hits() < 2 {
		t.Errorf("the cut was felt %d times", l.Hits())
	}
	l.Set(Weather{})
	if got, err := dial(t, l).say("after", long); got != "after" || err != nil {
		t.Errorf("after the cut: %q, %v", got, err)
	}
}

func TestADeafLinkHoldsWhatItCarriesUntilItHears(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]Way{"forth": Forth, "back": Back} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := link(t)
			c := dial(t, l)
			var w Weather
			w.Deaf[way] = true
			l.Set(w)
			if _, err := io.WriteString(c, "held\n"); err != nil {
				t.Fatal(err)
			}
			felt(t, l)
			if got, err := c.hear(short); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("through a deaf link came %q, %v", got, err)
			}
			l.Set(Weather{})
			if got, err := c.hear(long); got != "held" || err != nil {
				t.Errorf("what was held came as %q, %v", got, err)
			}
		})
	}
}

func TestLossLosesPieces(t *testing.T) {
	t.Parallel()
	l := link(t)
	c := dial(t, l)
	l.Set(Weather{Loss: 1})
	if _, err := io.WriteString(c, "lost\n"); err != nil {
		t.Fatal(err)
	}
	felt(t, l)
	l.Set(Weather{})
	if got, err := c.say("kept", long); got != "kept" || err != nil {
		t.Errorf("behind what was lost came %q, %v", got, err)
	}
}

func TestALostAnswerIsThatOfWhatWasHeard(t *testing.T) {
	t.Parallel()
	l := link(t)
	l.Set(Weather{On: "push", Lost: true})
	c := dial(t, l)
	if got, err := c.say("pop", long); got != "pop" || err != nil {
		t.Errorf("what is not meant came as %q, %v", got, err)
	}
	if got, err := c.say("push", long); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the answer came as %q, %v", got, err)
	}
	if l.Hits() != 1 {
		t.Errorf("it was felt %d times", l.Hits())
	}
}

func TestSomeOfWhatIsSaidIsAnsweredByTheLink(t *testing.T) {
	t.Parallel()
	l := link(t)
	l.Set(Weather{On: "push", Share: 0.5, Answer: "no\n"})
	refused := 0
	const tries = 100
	for range tries {
		got, err := dial(t, l).say("push", long)
		if err != nil {
			t.Fatal(err)
		}
		if got == "no" {
			refused++
		}
	}
	if refused == 0 || refused == tries || int64(refused) != l.Hits() {
		t.Errorf("%d of %d are answered, and it was felt %d times", refused, tries, l.Hits())
	}
}

func TestAMuteLinkTakesNotificationsOnly(t *testing.T) {
	t.Parallel()
	const (
		note   = "A\x00\x00\x00\x0c\x00\x00\x00\x01c\x00x\x00"
		answer = "C\x00\x00\x00\x06S\x00"
	)
	for name, c := range map[string]struct{ in, want string }{
		"one":                {note, ""},
		"two":                {note + note, ""},
		"and an answer":      {note + answer, answer},
		"behind an answer":   {answer + note, answer + note},
		"half a one":         {note[:8], note[:8]},
		"a length too small": {"A\x00\x00\x00\x01", "A\x00\x00\x00\x01"},
	} {
		l := &Link{weather: Weather{Mute: true}}
		if got := string(l.mute([]byte(c.in))); got != c.want {
			t.Errorf("%s: %q passes, want %q", name, got, c.want)
		}
		l.weather.Mute = false
		if got := string(l.mute([]byte(c.in))); got != c.in {
			t.Errorf("%s: a link that is not mute passes %q", name, got)
		}
	}
}
