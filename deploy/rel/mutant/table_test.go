package mutant

import (
	"os"
	"path/filepath"
	"testing"
)

// The source moves on; a mutant that no longer applies would be a proof that nobody notices is gone.
func TestEveryEditApplies(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for i := range All {
		m := &All[i]
		if names[m.Name] {
			t.Errorf("two mutants are called %q", m.Name)
		}
		names[m.Name] = true
		if (m.Kill.Package == "") == (m.Kill.Rule == "") || (m.Kill.Rule == "") != (len(m.Kill.Run) == 0) {
			t.Errorf("%s: want tests or a run with a rule to kill it", m.Name)
		}
		for _, e := range m.Edits {
			b, err := os.ReadFile(filepath.Join("../../..", e.File))
			if err != nil {
				t.Errorf("%s: %v", m.Name, err)
				continue
			}
			if _, err := e.Apply(string(b)); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
	}
	if len(All) < 15 {
		t.Errorf("%d mutants, want 15 at least", len(All))
	}
}
