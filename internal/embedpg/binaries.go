package embedpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the first major version that has what the schema uses.
const oldest = 15

// Binaries is one installation of PostgreSQL.
type Binaries struct {
	Dir     string
	Version string // as it says itself: 15.18
	Major   int
}

func (b Binaries) path(program string) string { return filepath.Join(b.Dir, program) }

// places are where distributions put the server, which is rarely on PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // PGDG on Fedora, RHEL
	"/usr/libexec/postgresql*",  // Alpine
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
}

// Find returns the newest installation of PostgreSQL 15 or newer, or, when major is not 0, the newest of exactly that
// major version: a cluster can only be opened by the version that made it.
func Find(major int) (Binaries, error) {
	var found []Binaries
	for _, dir := range candidates() {
		if b, err := inspect(dir); err == nil {
			found = append(found, b)
		}
	}
	return choose(found, major)
}

func candidates() []string {
	var dirs []string
	for _, p := range places {
		m, _ := filepath.Glob(p) // the patterns are constants and well formed
		dirs = append(dirs, m...)
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	return dirs
}

// choose picks from what was found; the error names what to install.
func choose(found []Binaries, major int) (Binaries, error) {
	usable := slices.DeleteFunc(slices.Clone(found), func(b Binaries) bool { return b.Major < oldest || major != 0 && b.Major != major })
	if len(usable) > 0 {
		return slices.MaxFunc(usable, func(a, b Binaries) int { return compareVersions(a.Version, b.Version) }), nil
	}
	var have []string
	for _, b := range found {
		have = append(have, b.Version+" in "+b.Dir)
	}
	if len(have) == 0 {
		have = []string{"none"}
	}
	if major != 0 {
		return Binaries{}, fmt.Errorf("the data folder was made by PostgreSQL %d, whose programs are not installed (found: %s): install them "+
			"(Debian and Ubuntu: apt-get install postgresql-%[1]d), or move the cluster to another version with pg_upgrade", major, strings.Join(have, ", "))
	}
	return Binaries{}, fmt.Errorf("PostgreSQL %d or newer is needed, with initdb (found: %s): install it (Debian and Ubuntu: apt-get install "+
		"postgresql; Fedora: dnf install postgresql-server; Alpine: apk add postgresql; macOS: brew install postgresql@17), or name a running one with --postgres",
		oldest, strings.Join(have, ", "))
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)(\S*)`)

// inspect asks the server in dir for its version; without initdb beside it, it is not usable.
func inspect(dir string) (Binaries, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return Binaries{}, err
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, err
	}
	return parseVersion(dir, string(out))
}

func parseVersion(dir, text string) (Binaries, error) {
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return Binaries{}, fmt.Errorf("%s: not a version of PostgreSQL: %q", dir, text)
	}
	major, err := strconv.Atoi(m[1])
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{Dir: dir, Version: m[1] + m[2], Major: major}, nil
}

// compareVersions orders 9.6 < 15.2 < 15.18 < 18beta1 < 18.0; a part that is no number counts as what precedes it.
func compareVersions(a, b string) int {
	return slices.Compare(versionParts(a), versionParts(b))
}

func versionParts(v string) []int {
	var parts []int
	for p := range strings.SplitSeq(v, ".") {
		n := strings.IndexFunc(p, func(r rune) bool { return r < '0' || r > '9' })
		if n >= 0 {
			p = p[:n]
		}
		num, _ := strconv.Atoi(p) // an empty part is 0
		parts = append(parts, num)
	}
	return parts
}

// clusterVersion returns the major version that made the cluster, 0 when there is none.
func clusterVersion(cluster string) (int, error) {
	text, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(cluster); err == nil {
			return 0, fmt.Errorf("%s exists but is no PostgreSQL cluster: move it away", cluster)
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Join(cluster, "PG_VERSION"), err)
	}
	return major, nil
}
