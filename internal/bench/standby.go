package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// confirmed runs a load while PostgreSQL waits with every commit for a streaming standby on the same machine and disk.
func (w *world) confirmed(load func(context.Context, time.Duration) (sample, error)) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (s sample, err error) {
		stop, err := w.standby(ctx)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		return load(ctx, d)
	}
}

// standby starts one and has the primary wait for it; stop takes both back.
func (w *world) standby(ctx context.Context) (stop func() error, err error) {
	data, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", w.postmaster))
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(data)
	if err != nil {
		return nil, err
	}
	owner := info.Sys().(*syscall.Stat_t)
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", w.postmaster))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "queengate-bench-standby-")
	if err != nil {
		return nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
		return nil, errors.Join(err, remove())
	}
	at := w.db.Config().ConnConfig
	as := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(filepath.Dir(program), name), args...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
		}
		return cmd
	}
	backup := as("pg_basebackup", "-D", filepath.Join(dir, "data"), "-h", at.Host, "-p", strconv.Itoa(int(at.Port)), "-U", at.User, "-R", "-X", "stream", "-c", "fast")
	if out, err := backup.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("pg_basebackup: %w: %s", err, out), remove())
	}
	// The primary's settings stand on its command line; a standby must allow at least as many connections.
	server := as("postgres", "-D", filepath.Join(dir, "data"), "-c", "listen_addresses=", "-c", "unix_socket_directories="+dir,
		"-c", "shared_buffers=128MB", "-c", "max_connections=1000")
	var said bytes.Buffer
	server.Stderr = &said
	if err := server.Start(); err != nil {
		return nil, errors.Join(err, remove())
	}
	demand := func(names string) error {
		_, err := w.db.Exec(ctx, fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = '%s'", names))
		if err == nil {
			_, err = w.db.Exec(ctx, "SELECT pg_reload_conf()")
		}
		return err
	}
	stop = func() error {
		err := demand("")
		_ = server.Process.Signal(syscall.SIGQUIT) // it has nothing to lose
		_ = server.Wait()                          // and says so
		return errors.Join(err, remove())
	}
	if err := w.streaming(ctx); err != nil {
		err = errors.Join(err, stop())
		return nil, fmt.Errorf("%w: %s", err, said.String())
	}
	if err := demand("*"); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// streaming waits until a standby has caught up.
func (w *world) streaming(ctx context.Context) error {
	end := time.Now().Add(30 * time.Second)
	for time.Now().Before(end) {
		var n int
		if err := w.db.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'").Scan(&n); err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
		if err := settle(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the standby does not stream")
}
