package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Root finds the folder of the product's module above a folder: the one whose go.mod is not that of this harness.
func Root(from string) (string, error) {
	dir, err := filepath.Abs(from)
	if err != nil {
		return "", err
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module github.com/queengate/queengate\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the product's source is not above this folder: name it with -product")
		}
		dir = filepath.Dir(dir)
	}
}

// Build builds the product from its source into a folder, and returns the path of the binary.
func Build(ctx context.Context, root, into string, flags ...string) (string, error) {
	path := filepath.Join(into, "queengate")
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build"}, flags...), "-o", path, "./cmd/queengate")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the product in %s: %w\n%s", root, err, out)
	}
	return path, nil
}

// HasSpool reports whether a binary knows the setting of the outage spool.
func HasSpool(ctx context.Context, binary string) bool {
	cmd := exec.CommandContext(ctx, binary, "broker", "--print-config")
	cmd.Env = []string{"QUEENGATE_BROKER_TENANCY=false"}
	out, _ := cmd.CombinedOutput() // what else it may say of this incomplete configuration does not matter
	return strings.Contains(string(out), "spool_dir")
}

// Revision names the commit of the source, with a mark when files differ from it, "" when that is not known.
func Revision(ctx context.Context, root string) string {
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
