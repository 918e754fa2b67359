package httpkit

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// served returns both ends of a connection as HoldbackListener accepts it.
func served(t *testing.T) (server *HoldbackConn, client net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	c, err := HoldbackListener{ln}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*HoldbackConn), client
}

func TestTheWaitForAByteTakesAllThatCame(t *testing.T) {
	t.Parallel()
	server, client := served(t)
	waiting := make(chan error, 1)
	var first [1]byte
	go func() {
		_, err := server.Read(first[:])
		waiting <- err
	}()
	sent := strings.Repeat("0123456789", 1000) // more than a look ahead holds
	if _, err := io.WriteString(client, sent); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil || first[0] != '0' {
		t.Fatalf("read %q: %v", first, err)
	}
	if len(server.held) == 0 {
		t.Error("nothing was read ahead")
	}
	rest := make([]byte, len(sent)-1)
	if _, err := io.ReadFull(server, rest); err != nil || string(rest) != sent[1:] {
		t.Errorf("the rest came as %d bytes: %v", len(rest), err)
	}
	if server.first.room != nil {
		t.Error("a connection that was read to the end still has a buffer")
	}
}

func TestAWatchAppendsToWhatWasReadAhead(t *testing.T) {
	t.Parallel()
	server, client := served(t)
	if _, err := io.WriteString(client, "abc"); err != nil {
		t.Fatal(err)
	}
	var first [1]byte
	if _, err := server.Read(first[:]); err != nil {
		t.Fatal(err)
	}
	w := server.Watch()
	if _, err := io.WriteString(client, "def"); err != nil {
		t.Fatal(err)
	}
	client.Close()
	<-w.Gone()
	w.Stop()
	rest, err := io.ReadAll(server)
	if got := string(first[:]) + string(rest); err != nil || got != "abcdef" {
		t.Errorf("read %q, want abcdef: %v", got, err)
	}
}

func TestAWaitForAByteEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end  func(server *HoldbackConn, client net.Conn) error
		want func(error) bool
	}{
		"with the connection": {
			func(_ *HoldbackConn, client net.Conn) error { return client.Close() },
			func(err error) bool { return err == io.EOF },
		},
		"with its deadline": {
			func(server *HoldbackConn, _ net.Conn) error { return server.SetReadDeadline(time.Unix(1, 0)) },
			func(err error) bool { ne, ok := err.(net.Error); return ok && ne.Timeout() },
		},
		"when it is closed here": {
			func(server *HoldbackConn, _ net.Conn) error { return server.Close() },
			func(err error) bool { return err != nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := served(t)
			if err := tc.end(server, client); err != nil {
				t.Fatal(err)
			}
			var b [1]byte
			if n, err := server.Read(b[:]); n != 0 || !tc.want(err) {
				t.Errorf("read %d bytes: %v", n, err)
			}
		})
	}
}
