package httpkit

import (
	"net"
	"sync/atomic"
	"testing"
)

// pair is a connection with both of its ends.
func pair(t *testing.T) (client, served net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if served, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); served.Close() })
	return client, served
}

func stand(t *testing.T, c net.Conn, input bool) (*Sentry, <-chan struct{}) {
	t.Helper()
	alarm := make(chan struct{})
	s, ok := Stand(c, input, func() { close(alarm) })
	if !ok {
		t.Skip("no sentries on this system")
	}
	return s, alarm
}

func TestASentryTellsOfAHalfCloseAndOfOneThatHasHappened(t *testing.T) {
	t.Parallel()
	client, served := pair(t)
	s, alarm := stand(t, served, false)
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	await(t, alarm)
	s.Stop()
	s, alarm = stand(t, served, false)
	await(t, alarm)
	s.Stop()
}

func TestASentryForInputTellsOfInputAndReadsNone(t *testing.T) {
	t.Parallel()
	client, served := pair(t)
	hangUp, gone := stand(t, served, false)
	send(t, client, "a")
	hangUp.Stop()
	select {
	case <-gone:
		t.Error("a byte is taken for a hang-up")
	default:
	}
	s, alarm := stand(t, served, true)
	await(t, alarm)
	s.Stop()
	b := make([]byte, 1)
	if _, err := served.Read(b); err != nil || b[0] != 'a' {
		t.Errorf("read %q, %v", b, err)
	}
}

// TestAStoppedSentryIsSilent stops sentries while their clients go, and looks that no alarm comes after Stop has returned:
// the next connection has the same descriptor.
func TestAStoppedSentryIsSilent(t *testing.T) {
	t.Parallel()
	for range 200 {
		client, served := pair(t)
		var stopped, late atomic.Bool
		s, ok := Stand(served, false, func() { late.Store(stopped.Load()) })
		if !ok {
			t.Skip("no sentries on this system")
		}
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		s.Stop()
		stopped.Store(true)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		if err := served.Close(); err != nil {
			t.Fatal(err)
		}
		if late.Load() {
			t.Fatal("an alarm after Stop")
		}
	}
}

func TestASentryOnWhatIsClosedHereSoundsOnce(t *testing.T) {
	t.Parallel()
	_, served := pair(t)
	var alarms atomic.Int32
	s, ok := Stand(served, false, func() { alarms.Add(1) })
	if !ok {
		t.Skip("no sentries on this system")
	}
	if err := served.Close(); err != nil {
		t.Fatal(err)
	}
	s.Sound()
	s.Sound()
	if n := alarms.Load(); n != 1 {
		t.Errorf("%d alarms, want 1", n)
	}
	s.Stop()
	late, alarm := stand(t, served, false)
	await(t, alarm)
	late.Stop()
}

func TestClosingAWatchedConnectionIsAHangUp(t *testing.T) {
	t.Parallel()
	_, served := pair(t)
	h := &HoldbackConn{Conn: served}
	w := h.Watch()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, w.Gone())
	w.Stop()
}

func TestWhatIsNoSocketHasNoSentry(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, ok := Stand(a, false, func() {}); ok {
		t.Error("a sentry on a pipe")
	}
}
