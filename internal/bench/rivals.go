package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	texts "text/template"
	"time"
)

// errNotInstalled is about a program that others made: cases that need it are left out.
var errNotInstalled = errors.New("is not installed")

// program finds one, also where the path of an ordinary user does not lead.
func program(name string) (string, error) {
	for _, at := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name} {
		if path, err := exec.LookPath(at); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s %w", name, errNotInstalled)
}

// rival is a proxy of others.
type rival struct {
	name    string // of its program
	config  *texts.Template
	args    func(config, dir string) []string
	version []string // arguments that print it
	workers int      // processes that its first one starts
	self    bool     // it is this program: see bare
}

var (
	//go:embed rivals/nginx.conf.tmpl
	nginxConfig string
	//go:embed rivals/haproxy.cfg.tmpl
	haproxyConfig string
	//go:embed rivals/Caddyfile.tmpl
	caddyConfig string
)

var rivals = map[string]*rival{
	"nginx": {
		name: "nginx", config: texts.Must(texts.New("nginx").Parse(nginxConfig)), version: []string{"-v"}, workers: runtime.NumCPU(),
		args: func(config, dir string) []string { return []string{"-e", "stderr", "-p", dir, "-c", config} },
	},
	"bare": {name: "bare", self: true, config: texts.Must(texts.New("bare").Parse(bareConfig))},
	"haproxy": {
		name: "haproxy", config: texts.Must(texts.New("haproxy").Parse(haproxyConfig)), version: []string{"-v"},
		args: func(config, _ string) []string { return []string{"-db", "-f", config} },
	},
	"caddy": {
		name: "caddy", config: texts.Must(texts.New("caddy").Parse(caddyConfig)), version: []string{"version"},
		args: func(config, _ string) []string { return []string{"run", "--adapter", "caddyfile", "--config", config} },
	},
}

// program finds what the rival runs.
func (r *rival) program() (string, error) {
	if r.self {
		return os.Executable()
	}
	return program(r.name)
}

// front is what a rival is told.
type front struct {
	Addr, Host, Port string // where it listens
	Upstream         string // host:port
	Cert, Key        string // files; "": plain
	Bundle           string // file with both
	Dir              string // of its own
	Spent            bool   // everybody is over the rate
	Threads          int
	Clients          int  // it must take
	Files            int  // and for them open
	Root             bool // it is started as root
}

// A rival takes more clients than any case has, each of which may have a connection to the upstream.
const (
	frontClients = 5_000
	frontFiles   = 2*frontClients + 1000
)

// start has the rival listen on a free address and returns it. Whether it serves, the caller finds out.
func (r *rival) start(f front) (c *child, addr string, err error) {
	bin, err := r.program()
	if err != nil {
		return nil, "", err
	}
	if f.Addr, err = freeAddress(); err != nil {
		return nil, "", err
	}
	if f.Host, f.Port, err = net.SplitHostPort(f.Addr); err != nil {
		return nil, "", err
	}
	if f.Dir, err = os.MkdirTemp("", "queengate-bench-"+r.name+"-"); err != nil {
		return nil, "", err
	}
	f.Threads, f.Clients, f.Files, f.Root = runtime.NumCPU(), frontClients, frontFiles, os.Geteuid() == 0
	config, err := r.configure(&f)
	if err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(f.Dir))
	}
	cmd := exec.Command(bin)
	cmd.Dir = f.Dir
	cmd.Env = append(os.Environ(), "HOME="+f.Dir, "XDG_CONFIG_HOME="+f.Dir, "XDG_DATA_HOME="+f.Dir)
	if r.self {
		cmd.Env = append(cmd.Env, bareVariable+"="+config)
	} else {
		cmd.Args = append(cmd.Args, r.args(config, f.Dir)...)
	}
	if c, err = startChild(cmd, f.Dir); err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(f.Dir))
	}
	return c, f.Addr, nil
}

// configure writes the configuration, and the files it speaks of, into the rival's folder.
func (r *rival) configure(f *front) (path string, err error) {
	if f.Cert != "" {
		var bundle []byte
		for _, file := range []string{f.Cert, f.Key} {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			bundle = append(bundle, text...)
		}
		f.Bundle = filepath.Join(f.Dir, "bundle.pem")
		if err := os.WriteFile(f.Bundle, bundle, 0o600); err != nil {
			return "", err
		}
	}
	var text bytes.Buffer
	if err := r.config.Execute(&text, f); err != nil {
		return "", err
	}
	path = filepath.Join(f.Dir, r.name+".conf")
	return path, os.WriteFile(path, text.Bytes(), 0o644)
}

// release returns what the rival calls itself, "" when it is not there.
func (r *rival) release() string {
	if r.self {
		return "fasthttp " + moduleVersion("github.com/valyala/fasthttp")
	}
	bin, err := program(r.name)
	if err != nil {
		return ""
	}
	out, err := exec.Command(bin, r.version...).CombinedOutput()
	if err != nil {
		return ""
	}
	for word := range strings.FieldsSeq(string(out)) {
		word = strings.TrimPrefix(strings.TrimPrefix(word, "nginx/"), "v")
		if word[0] >= '0' && word[0] <= '9' {
			return r.name + " " + word
		}
	}
	return r.name
}

// child is a process that the bench started, with its children.
type child struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
	dir    string // removed at its end; "": none
}

func startChild(cmd *exec.Cmd, dir string) (*child, error) {
	c := &child{cmd: cmd, ended: make(chan struct{}), dir: dir}
	cmd.Stderr = &c.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // how it ends does not matter, only whether it does so too early
		close(c.ended)
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// stop ends the process, with force when it does not do so by itself.
func (c *child) stop() error {
	err := c.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = fmt.Errorf("%s has ended by itself\n%s", filepath.Base(c.cmd.Path), c.stderr.String())
	}
	select {
	case <-c.ended:
	case <-time.After(10 * time.Second):
		err = errors.Join(err, c.cmd.Process.Kill())
		<-c.ended
	}
	if c.dir != "" {
		err = errors.Join(err, os.RemoveAll(c.dir))
	}
	return err
}

// family returns a process and those that it and its children have started.
func family(pid int) []int {
	parents := map[int][]int{}
	eachProcess(func(pid int, f []string) {
		parent, _ := strconv.Atoi(f[1])
		parents[parent] = append(parents[parent], pid)
	})
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, parents[all[i]]...)
	}
	return all
}

// privateMemory returns the bytes that processes have each for themselves.
func privateMemory(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if strings.HasPrefix(line, "Private_Clean:") || strings.HasPrefix(line, "Private_Dirty:") {
				kb, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return 0, err
				}
				sum += kb * 1024
			}
		}
	}
	return sum, nil
}

// reached waits until a child listens.
func reached(ctx context.Context, c *child, network, addr string) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := net.Dial(network, addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-c.ended:
			return fmt.Errorf("%s has ended by itself\n%s", filepath.Base(c.cmd.Path), c.stderr.String())
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", filepath.Base(c.cmd.Path), err)
		}
		if err := settle(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}
