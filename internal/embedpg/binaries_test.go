package embedpg

import (
	"strings"
	"testing"
)

func TestTheNewestUsableInstallationIsChosen(t *testing.T) {
	t.Parallel()
	parse := func(dir, text string) Binaries {
		b, err := parseVersion(dir, text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	old := parse("/14", "postgres (PostgreSQL) 14.2")
	debian := parse("/15", "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n")
	minor := parse("/15b", "postgres (PostgreSQL) 15.2")
	beta := parse("/18", "postgres (PostgreSQL) 18beta1")
	for rule, tc := range map[string]struct {
		found []Binaries
		major int
		want  string // the folder, or a part of the error
	}{
		"the newest major version":                 {[]Binaries{debian, beta, old}, 0, "/18"},
		"minor versions compare as numbers":        {[]Binaries{debian, minor}, 0, "/15"},
		"an existing cluster decides":              {[]Binaries{debian, beta}, 15, "/15"},
		"too old is refused with what was found":   {[]Binaries{old}, 0, "found: 14.2 in /14"},
		"nothing found names the package":          {nil, 0, "apt-get install postgresql;"},
		"a missing version of a cluster is named":  {[]Binaries{beta}, 15, "apt-get install postgresql-15"},
		"a cluster of an old version is no reason": {[]Binaries{old}, 14, "made by PostgreSQL 14"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			got, err := choose(tc.found, tc.major)
			switch {
			case err != nil && !strings.Contains(err.Error(), tc.want):
				t.Errorf("got error %v, want %s", err, tc.want)
			case err == nil && got.Dir != tc.want:
				t.Errorf("got %s, want %s", got.Dir, tc.want)
			}
		})
	}
}

func TestTextThatIsNoVersionIsAnError(t *testing.T) {
	t.Parallel()
	if b, err := parseVersion("/x", "mysqld 8.0"); err == nil {
		t.Errorf("got %+v, want an error", b)
	}
}

func TestSharedBuffersStayWithinBounds(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{0: 128 << 20, 1 << 30: 128 << 20, 4 << 30: 512 << 20, 64 << 30: 1 << 30} {
		if got := sharedBuffers(memory); got != want {
			t.Errorf("%d bytes of memory: got %d, want %d", memory, got, want)
		}
	}
}
