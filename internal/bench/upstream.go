package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queengate/queengate/wire"
)

// upstream is what the proxies that are compared stand before, in a process of its own: it answers a push with 201 as
// soon as it has come, holds a poll that waits for as long as its connection lives, and answers what a gateway asks a
// broker about itself and its tenants. It believes everybody.
type upstream struct {
	Cert, Key string // files; for its https address

	held atomic.Int64 // polls
}

// upstreamVariable makes the bench such an upstream, told as JSON, on the listeners that it inherits.
const upstreamVariable = "QUEENGATE_BENCH_UPSTREAM"

// upstreamProcess is one that runs.
type upstreamProcess struct {
	*child
	plain, secure string // host:port of http and https
}

func startUpstream(cert, key string) (*upstreamProcess, error) {
	text, err := json.Marshal(&upstream{Cert: cert, Key: key})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), upstreamVariable+"="+string(text))
	var addr [2]string
	for i := range addr {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() // the process has its own copy
		addr[i] = ln.Addr().String()
		f, err := ln.(*net.TCPListener).File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	c, err := startChild(cmd, "")
	if err != nil {
		return nil, err
	}
	return &upstreamProcess{child: c, plain: addr[0], secure: addr[1]}, nil
}

// serve answers until the process is ended.
func (u *upstream) serve() error {
	certificate, err := tls.LoadX509KeyPair(u.Cert, u.Key)
	if err != nil {
		return err
	}
	var lns [2]net.Listener
	for i := range lns {
		f := os.NewFile(uintptr(3+i), "listener")
		if lns[i], err = net.FileListener(f); err != nil {
			return err
		}
		syscall.CloseOnExec(int(f.Fd()))
	}
	lns[1] = tls.NewListener(lns[1], &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
	return workers(len(lns), func(i int) error {
		for {
			c, err := lns[i].Accept()
			if err != nil {
				return err
			}
			go func() {
				defer c.Close()
				_ = u.converse(c) // whoever hangs up does so
			}()
		}
	})
}

// pushed answers a push.
var pushed = answer(201, `[{"index":0}]`)

func answer(status int, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// converse answers the requests of a connection until it ends. It reads of a request only what it must: the loads share
// the cores with what is measured.
func (u *upstream) converse(c net.Conn) error {
	br := bufio.NewReaderSize(c, 4<<10)
	var first []byte
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		first = append(first[:0], line...)
		size, err := restOfHead(br)
		if err != nil {
			return err
		}
		reply := pushed
		switch {
		case bytes.HasPrefix(first, []byte("POST /api/v1/push ")):
			_, err = br.Discard(size)
		case bytes.Contains(first, []byte("wait=true")):
			return u.hold(br)
		default:
			body := make([]byte, size)
			if _, err = io.ReadFull(br, body); err == nil {
				reply, err = u.reply(string(first), body)
			}
		}
		if err == nil {
			_, err = c.Write(reply)
		}
		if err != nil {
			return err
		}
	}
}

// restOfHead reads the header lines of a request and returns the length of its body. Proxies write names as they like.
func restOfHead(br *bufio.Reader) (size int, err error) {
	for {
		line, err := br.ReadSlice('\n')
		if err != nil || len(line) <= len("\r\n") {
			return size, err
		}
		const name = "content-length:"
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			if size, err = strconv.Atoi(string(bytes.TrimSpace(line[len(name):]))); err != nil {
				return 0, err
			}
		}
	}
}

// hold waits for the end of the connection of a poll.
func (u *upstream) hold(br *bufio.Reader) error {
	u.held.Add(1)
	defer u.held.Add(-1)
	_, err := br.ReadByte()
	if err == nil {
		err = errors.New("bytes after a poll")
	}
	return err
}

// heldPath tells how many polls there are.
const heldPath = "/held"

func (u *upstream) reply(first string, body []byte) ([]byte, error) {
	_, path, _ := strings.Cut(first, " ")
	path, _, _ = strings.Cut(path, " ")
	var out any
	switch {
	case path == heldPath:
		out = u.held.Load()
	case strings.Contains(path, "/names"):
		out = wire.NamesPage{Names: []wire.QueuePartition{}}
	case strings.HasSuffix(path, "/usage"):
		var q wire.UsageQuestion
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		a := wire.UsageAnswer{Tenants: []wire.TenantUsage{}}
		for _, t := range q.Tenants {
			a.Tenants = append(a.Tenants, wire.TenantUsage{Tenant: t, ComputedAt: time.Now()})
		}
		out = a
	default:
		out = struct{}{}
	}
	text, err := json.Marshal(out)
	return answer(200, string(text)), err
}
