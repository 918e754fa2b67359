package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// spending is what has been spent of the CPUs of this machine since it was started, in ticks of the kernel. All is zero
// where the kernel does not say.
type spending struct {
	all  int64 // by anybody, or by nobody
	idle int64
	used int64 // by processes, or by other machines on the same host; interrupts are nobody's
	own  int64 // by one process and all that it has started
}

// others is the part of the CPUs that was spent since before by processes that are not our own.
func (s spending) others(before spending) float64 {
	return s.part(before, max(0, s.used-before.used-(s.own-before.own)))
}

// busy is the part of the CPUs that was not idle since before.
func (s spending) busy(before spending) float64 {
	return s.part(before, s.all-before.all-(s.idle-before.idle))
}

func (s spending) part(before spending, ticks int64) float64 {
	if s.all <= before.all {
		return 0
	}
	return float64(ticks) / float64(s.all-before.all)
}

// spent reads what has been spent, by process pid and its descendants among others.
func spent(pid int) (s spending) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return s
	}
	line, _, _ := strings.Cut(string(text), "\n")
	const user, nice, system, idle, iowait, steal = 1, 2, 3, 4, 5, 8
	f := strings.Fields(line) // guests are users, too
	if len(f) <= steal {
		return s
	}
	for i := user; i <= steal; i++ {
		n, _ := strconv.ParseInt(f[i], 10, 64) // a kernel that writes anything else is not known
		s.all += n
		switch i {
		case idle, iowait:
			s.idle += n
		case user, nice, system, steal:
			s.used += n
		}
	}
	s.own = family(pid)
	return s
}

// family is what a process and its descendants have spent, with those that have ended and were waited for.
func family(pid int) (sum int64) {
	type process struct {
		parent int
		spent  int64
	}
	all := map[int]process{}
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is a good one
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it is gone
		}
		var p process
		id, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // digits, by the pattern
		// The name, in parentheses, may hold anything. Behind it come the state, the parent, and as the 12th to 15th what it
		// and its children have spent.
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(f) < 15 {
			continue
		}
		p.parent, _ = strconv.Atoi(f[1])
		for _, ticks := range f[11:15] {
			n, _ := strconv.ParseInt(ticks, 10, 64)
			p.spent += n
		}
		all[id] = p
	}
	for id, p := range all {
		for of, steps := id, 0; of != 0 && steps < len(all); of, steps = all[of].parent, steps+1 {
			if of == pid {
				sum += p.spent
				break
			}
		}
	}
	return sum
}
