package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
)

// rawBroker is a broker whose every byte is a test's: probes are answered, any other request is handed to script, which
// answers by writing to the connection. The connection is closed when script returns false.
func rawBroker(t *testing.T, script func(c net.Conn, r *http.Request, body string) bool) (address string) {
	t.Helper()
	ln := listen(t)
	var served sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	served.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			served.Go(func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					if r.URL.Path == "/livez" || r.URL.Path == "/readyz" || r.URL.Path == namesOfNobody {
						io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
						continue
					}
					if !script(c, r, string(body)) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		served.Wait()
	})
	return ln.Addr().String()
}

// answerJSON writes a small answer.
func answerJSON(c net.Conn, status, body string) {
	io.WriteString(c, "HTTP/1.1 "+status+"\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
}
