package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	// testWord is a test that a text names, or the folder that the tests behind it are in.
	testWord = regexp.MustCompile("`([a-z][a-z0-9/_]*)`|\\b((?:Test|Fuzz|Benchmark)[A-Z]\\w*)")
)

// A text that says which test holds a promise must be right about it: tests are renamed, and nobody looks.
func TestTheTestsThatTheTextsNameExist(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	tests, texts := map[string][]string{}, map[string]string{} // by folder, by path
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		code := strings.HasSuffix(path, "_test.go")
		if !code && filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !code {
			texts[path] = string(text)
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			tests[folder] = append(tests[folder], m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for path, text := range texts {
		for line := range strings.Lines(text) {
			folder := ""
			for _, m := range testWord.FindAllStringSubmatch(line, -1) {
				if m[2] == "" {
					if tests[m[1]] != nil {
						folder = m[1]
					}
					continue
				}
				named++
				exists := slices.Contains(tests[folder], m[2])
				for _, of := range tests {
					exists = exists || folder == "" && slices.Contains(of, m[2])
				}
				if !exists {
					t.Errorf("%s names %s, which is not in %s", path, m[2], folder)
				}
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d names of tests were found in the texts", named)
	}
}
