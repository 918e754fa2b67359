package embedpg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// account is the user PostgreSQL runs as. It refuses to run as root, so root hands it to another.
type account struct {
	name     string
	uid, gid int
	other    bool // not the user of this process
}

// unprivileged returns the user of this process. For root it is the owner of an existing cluster, else postgres, or
// where that does not exist nobody.
func unprivileged(cluster string) (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{name: strconv.Itoa(uid), uid: uid, gid: os.Getegid()}, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(cluster, &st); err == nil && st.Uid != 0 {
		a := account{name: strconv.Itoa(int(st.Uid)), uid: int(st.Uid), gid: int(st.Gid), other: true}
		if u, err := user.LookupId(a.name); err == nil {
			a.name = u.Username
		}
		return a, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		return account{name: name, uid: uid, gid: gid, other: true}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody: start queengate as another user")
}

// command returns a command that runs as the account, in a process group of its own: a Ctrl-C at the terminal is for
// us, who then stop PostgreSQL after everything that needs it.
func (a account) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	// Nothing of our environment: PGDATA, PGPORT and their like would change what the programs do.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a.other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return cmd
}

// mkdir creates a folder that only the account may enter.
func (a account) mkdir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	if !a.other {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// mustReach checks that the account can enter dir and refuses with the folder that stands in the way. A data folder
// that root made for its own eyes is opened for passing through, since it is ours; what lies above is not.
func (a account) mustReach(dir string) error {
	if !a.other || a.enters(dir) {
		return nil
	}
	above := filepath.Dir(dir)
	if a.enters(above) {
		st, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if err := os.Chmod(dir, st.Mode().Perm()|0o011); err != nil {
			return err
		}
		if a.enters(dir) {
			return nil
		}
	}
	wall := above
	for parent := filepath.Dir(wall); parent != wall && !a.enters(parent); parent = filepath.Dir(wall) {
		wall = parent
	}
	return fmt.Errorf("PostgreSQL cannot use the data folder %s: started by root it runs as user %s, who may not pass through %s; "+
		"choose another folder (--data /var/lib/queengate), open the way (chmod o+x %s), or start queengate as a user who is not root",
		dir, a.name, wall, quote(wall))
}

// enters tries it: permissions are more than mode bits.
func (a account) enters(dir string) bool {
	cmd := a.command(context.Background(), "/bin/true")
	cmd.Dir = dir // entered after the change of user
	return cmd.Run() == nil
}

// quote makes a path safe to paste into a shell.
func quote(path string) string {
	if strings.IndexFunc(path, func(r rune) bool {
		return !strings.ContainsRune("/._-+", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// socketName is what PostgreSQL calls its socket on port 5432.
const socketName = ".s.PGSQL.5432"

// maxSocketPath is sun_path of a Unix socket address, without its closing NUL.
const maxSocketPath = 107

// socketDir makes the folder of the socket: in a runtime directory, since a socket below a deep data folder would have a
// longer path than the kernel takes, and named after the data folder, so that its address outlives a restart.
func socketDir(dir string, a account) (string, error) {
	sum := sha256.Sum256([]byte(dir))
	name := "queengate-" + hex.EncodeToString(sum[:6])
	var errs []error
	for _, base := range runtimeDirs(a) {
		path := filepath.Join(base, name)
		if len(path)+len("/"+socketName+".lock") > maxSocketPath {
			continue
		}
		err := ownDir(path, a)
		if err == nil {
			return path, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no runtime directory for the socket of PostgreSQL: %w", errors.Join(errs...))
}

func runtimeDirs(a account) []string {
	if a.other {
		return []string{"/run", "/tmp"}
	}
	dirs := []string{"/tmp"}
	if tmp := os.TempDir(); tmp != "/tmp" {
		dirs = []string{tmp, "/tmp"}
	}
	if x := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) {
		dirs = append([]string{x}, dirs...)
	}
	return dirs
}

// ownDir creates the folder or accepts one that is the account's alone: in a shared /tmp somebody else may have taken
// the name.
func ownDir(path string, a account) error {
	err := a.mkdir(path)
	if err == nil || !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != a.uid || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s is not a private folder of user %s: remove it", path, a.name)
	}
	return nil
}
