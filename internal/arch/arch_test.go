package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/queengate/queengate"

// pkg is what `go list` tells about a package.
type pkg struct {
	Dir, ImportPath string
	GoFiles         []string
	Imports         []string
}

func (p pkg) short() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

func list(t *testing.T) []pkg {
	t.Helper()
	// -e: a package that does not compile fails elsewhere, with a better message.
	cmd := exec.Command("go", "list", "-e", "-json=Dir,ImportPath,GoFiles,Imports", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// mayImport lists what a package may import of this module; a trailing /... means a tree. Whoever adds an arrow adds
// it here and says why in the commit.
var mayImport = map[string][]string{
	"wire":           {},
	"client":         {"wire"},
	"plans":          {"internal/datadir", "internal/pg"}, // the last-known-good file is in the data folder
	"quota":          {"quota/...", "plans", "wire"},
	"quota/meter":    {"internal/datadir", "internal/pg", "internal/spool"}, // what is not saved is in the data folder
	"proxy":          {"proxy/...", "plans", "quota/...", "wire", "internal/deadlines", "internal/fair", "internal/httpkit", "internal/obs", "internal/tracing"},
	"proxy/auth":     {"plans", "wire", "internal/bearer", "internal/pg"},
	"proxy/wipe":     {"plans", "wire", "internal/pg"},
	"proxy/control":  {"proxy/auth", "plans", "quota/meter", "internal/pg", "internal/httpkit"},
	"broker":         {"broker/...", "mesh", "wire", "internal/bearer", "internal/deadlines", "internal/fair", "internal/httpkit", "internal/obs", "internal/small", "internal/spool", "internal/tracing"},
	"broker/store":   {"broker/segment", "wire", "internal/pg"},
	"broker/fuse":    {"broker/store", "broker/segment", "wire", "internal/fair", "internal/pg", "internal/tracing"},
	"broker/segment": {},
	"broker/seal":    {},
	"broker/park":    {"internal/small"},
	"broker/janitor": {"broker/store"},
	"mesh":           {},
	"tls":            {"internal/pg", "internal/datadir"},
	"dashboard":      {"internal/httpkit"},
	"migrations":     {},
	"cmd/queengate":  {"..."},
	"cmd/queenctl":   {"client", "wire", "internal/conf"},
	// Tests only: they hold the files for operators against the program.
	"deploy": {"..."},

	// Both sides verify signed tokens; what a token allows is each side's own business.
	"internal/bearer": {},
	// Both sides share what is scarce among tenants.
	"internal/fair":      {},
	"internal/conf":      {},
	"internal/run":       {},
	"internal/obs":       {},
	"internal/memory":    {},
	"internal/small":     {},
	"internal/spool":     {},
	"internal/datadir":   {},
	"internal/embedpg":   {"internal/datadir"},
	"internal/tracing":   {},
	"internal/deadlines": {},
	"internal/httpkit":   {"wire", "internal/obs", "internal/tracing"},
	"internal/pg":        {"wire"},
	"internal/redistest": {},
	"internal/pgtest":    {"migrations", "internal/pg", "internal/embedpg"},
	// It writes what a control plane would, so it stands on the same ground.
	"internal/bootstrap": {"plans", "proxy/auth", "internal/conf", "internal/pg"},
	// These start and measure the whole system; no other package may import them.
	"internal/launch":       {},
	"internal/bench":        {"..."},
	"internal/e2e":          {"..."},
	"internal/e2e/contract": {"..."},
	"internal/arch":         {},
}

// walls are the arrows that must not exist even by a detour, with their reasons.
var walls = []struct {
	from, to, reason string
}{
	{"broker", "proxy", "a broker decides nothing about plans: it meets the gateway in wire and over HTTP only"},
	{"broker", "quota", "a broker counts nothing against a plan but the caps in the gateway's token"},
	{"broker", "plans", "a broker knows tenants only from the gateway's token"},
	{"proxy", "broker", "the gateway meets a broker in wire and over HTTP only"},
	{"proxy", "migrations", "only cmd brings a schema up to date"},
	{"broker", "migrations", "only cmd brings a schema up to date"},
	{"proxy", "tls", "the data path takes listeners: where certificates come from is the command's business"},
	{"client", "internal", "users of the SDK must not pull in our server"},
}

func within(path string, rules []string) bool {
	return slices.ContainsFunc(rules, func(r string) bool {
		tree, ok := strings.CutSuffix(r, "...")
		return r == path || ok && strings.HasPrefix(path+"/", tree)
	})
}

func TestImportsFollowTheArrows(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		rules, known := mayImport[p.short()]
		if !known {
			t.Errorf("%s has no line in mayImport: say what it may import", p.short())
			continue
		}
		for _, imp := range p.Imports {
			path, ours := strings.CutPrefix(imp, module+"/")
			if ours && !within(path, rules) {
				t.Errorf("%s imports %s, which is not among %v", p.short(), path, rules)
			}
		}
	}
}

func TestWallsHoldAgainstDetours(t *testing.T) {
	t.Parallel()
	imports := map[string][]string{}
	for _, p := range list(t) {
		for _, imp := range p.Imports {
			if path, ours := strings.CutPrefix(imp, module+"/"); ours {
				imports[p.short()] = append(imports[p.short()], path)
			}
		}
	}
	var reach func(from string, seen map[string]bool)
	reach = func(from string, seen map[string]bool) {
		for _, to := range imports[from] {
			if !seen[to] {
				seen[to] = true
				reach(to, seen)
			}
		}
	}
	for _, w := range walls {
		for from := range imports {
			if !within(from, []string{w.from + "/..."}) {
				continue
			}
			seen := map[string]bool{}
			reach(from, seen)
			for to := range seen {
				if within(to, []string{w.to + "/..."}) {
					t.Errorf("%s reaches %s: %s", from, to, w.reason)
				}
			}
		}
	}
}

// TestOnlyStoresSpeakToPostgres keeps SQL where it is read: beside the stores and in the packages made for it.
func TestOnlyStoresSpeakToPostgres(t *testing.T) {
	t.Parallel()
	may := []string{
		"internal/pg", "internal/pgtest", "internal/embedpg", "internal/bootstrap", "internal/bench", "internal/e2e", "migrations",
		"broker/store", "plans", "tls", "quota/meter", "proxy/auth", "proxy/control", "proxy/wipe", "cmd/queengate",
	}
	for _, p := range list(t) {
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "github.com/jackc/pgx") && !slices.Contains(may, p.short()) {
				t.Errorf("%s imports %s: SQL belongs to the stores (%v)", p.short(), imp, may)
			}
		}
	}
}

func TestEveryPackageSaysOnceWhatItIs(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		var commented []string
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				commented = append(commented, file)
			}
		}
		if len(commented) != 1 && len(p.GoFiles) > 0 {
			t.Errorf("%s has its package comment in %v, want exactly one file", p.short(), commented)
		}
	}
}

func TestNoBinaryLinksTheTestingPackage(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-e", "-deps", module+"/cmd/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module+"/wire") {
		t.Fatalf("go list -deps tells nothing of use: %d packages", len(deps))
	}
	for _, bad := range []string{"testing", module + "/internal/pgtest", module + "/internal/redistest", module + "/internal/launch"} {
		if slices.Contains(deps, bad) {
			t.Errorf("a binary links %s: test flags and test code do not belong there", bad)
		}
	}
}
