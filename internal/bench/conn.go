package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"
)

// target is where a load goes: straight to the broker, or through the gateway.
type target struct {
	w    *world
	addr string
	tls  *tls.Config // nil: plain
	head string      // header lines of every request: host and credentials
}

func newTarget(w *world, base string, config *tls.Config, credentials string) (*target, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	return &target{w: w, addr: u.Host, tls: config, head: "Host: " + u.Host + "\r\n" + credentials}, nil
}

// get and post return the bytes of a request. Loads make them once and change only what differs from one request to the
// next, as pgbench does: the loader has the same cores as what it measures.

func (t *target) get(path string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\n" + t.head + "\r\n")
}

func (t *target) post(path string, body []byte) []byte {
	head := "POST " + path + " HTTP/1.1\r\n" + t.head + "Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	return append([]byte(head), body...)
}

// postTo appends a request with a body of any length to dst.
func (t *target) postTo(dst []byte, path string, body []byte) []byte {
	dst = append(append(append(dst, "POST "...), path...), " HTTP/1.1\r\n"...)
	dst = append(append(dst, t.head...), "Content-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	return append(append(dst, "\r\n\r\n"...), body...)
}

// patience is the longest a connection may be silent: beyond it a measurement fails instead of hanging.
const patience = 90 * time.Second

// conn is a keep-alive connection of one worker. It understands the answers of the product: a status, Content-Length,
// a body.
type conn struct {
	net.Conn
	in   []byte
	used int // of in: what the last answer took
}

func (t *target) dial() (*conn, error) {
	c, err := net.DialTimeout("tcp", t.addr, 10*time.Second)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if t.tls != nil {
		secure := tls.Client(c, t.tls)
		if err := secure.Handshake(); err != nil { // here, and not within what is measured
			return nil, errors.Join(err, c.Close())
		}
		c = secure
	}
	return &conn{Conn: c, in: make([]byte, 0, 4096)}, nil
}

// do sends a request and returns the answer; body is valid until the next call.
func (c *conn) do(request []byte) (status int, body []byte, err error) {
	if _, err := c.Write(request); err != nil {
		return 0, nil, err
	}
	c.in = c.in[:copy(c.in, c.in[c.used:])]
	c.used = 0
	head := -1
	for {
		if head = bytes.Index(c.in, []byte("\r\n\r\n")); head >= 0 {
			break
		}
		if err := c.more(); err != nil {
			return 0, nil, err
		}
	}
	if status, err = strconv.Atoi(string(c.in[len("HTTP/1.1 "):len("HTTP/1.1 200")])); err != nil {
		return 0, nil, fmt.Errorf("no answer: %q", c.in[:head])
	}
	size, err := contentLength(c.in[:head+2])
	if err != nil {
		return 0, nil, err
	}
	from := head + 4
	for len(c.in) < from+size {
		if err := c.more(); err != nil {
			return 0, nil, err
		}
	}
	c.used = from + size
	return status, c.in[from:c.used], nil
}

func (c *conn) more() error {
	if len(c.in) == cap(c.in) {
		c.in = append(make([]byte, 0, 2*cap(c.in)), c.in...)
	}
	n, err := c.Read(c.in[len(c.in):cap(c.in)])
	c.in = c.in[:len(c.in)+n]
	return err
}

// contentLength reads the header; an answer without one has no body. HAProxy writes names in small letters.
func contentLength(head []byte) (int, error) {
	_, v, ok := bytes.Cut(head, []byte("\r\nContent-Length: "))
	if !ok {
		if _, v, ok = bytes.Cut(head, []byte("\r\ncontent-length: ")); !ok {
			return 0, nil
		}
	}
	v, _, _ = bytes.Cut(v, []byte("\r\n"))
	return strconv.Atoi(string(v))
}

// expect is do for a request that has one good answer.
func (c *conn) expect(status int, what string, request []byte) error {
	got, body, err := c.do(request)
	if err == nil && got != status {
		err = fmt.Errorf("%d %s", got, body)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
