package lab

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"
)

// Redis is the one that gateways share. It keeps nothing: one that starts again is empty.
type Redis struct {
	service

	lab  *Lab
	path string
	port int
}

// placeRedis starts Redis where it is installed: gateways do with it or without.
func (l *Lab) placeRedis(ctx context.Context) error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if l.cfg.Quota != "" {
			return fmt.Errorf("%s quotas need Redis: %w", l.cfg.Quota, err)
		}
		return nil
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	l.Redis = &Redis{lab: l, path: path, port: port}
	return l.Redis.Restart(ctx)
}

func (r *Redis) addr() string { return fmt.Sprintf("127.0.0.1:%d", r.port) }

// Restart starts Redis again, empty, if it is not there, and waits until it answers.
func (r *Redis) Restart(ctx context.Context) error {
	if !r.Alive() {
		p, err := r.lab.start("redis", exec.Command(r.path, "--bind", "127.0.0.1", "--port", fmt.Sprint(r.port), "--save", "",
			"--appendonly", "no", "--dir", r.lab.dir))
		if err != nil {
			return err
		}
		r.now.Store(p)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		answer, err := r.Do(ctx, "PING")
		if err == nil && answer == "+PONG" {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for Redis (last answer %q): %w", answer, ctx.Err())
		}
	}
}

// Do sends one command on a connection of its own, past all links, and returns the first line of the answer.
func (r *Redis) Do(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.addr())
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	if _, err := c.Write([]byte(command + "\r\n")); err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}
