package quota

// slots are the parked polls of a cluster: a heap by deadline, so that a refusal can name the earliest one. Each
// Admission remembers its place, so it leaves in O(log n) and exactly once. Not safe for concurrent use.
type slots []*Admission

// earliest returns the first deadline among the parked; ok is false when nobody parks.
func (s slots) earliest() (deadline int64, ok bool) {
	if len(s) == 0 {
		return 0, false
	}
	return s[0].deadline, true
}

// park adds a.
func (s *slots) park(a *Admission) {
	a.place = int32(len(*s))
	*s = append(*s, a)
	s.up(int(a.place))
}

// leave removes a and reports whether it was parked.
func (s *slots) leave(a *Admission) bool {
	i, last := int(a.place), len(*s)-1
	if i < 0 {
		return false
	}
	h := *s
	h[i] = h[last]
	h[i].place = int32(i)
	h[last] = nil
	*s = h[:last]
	a.place = -1
	if i < last {
		s.down(i)
		s.up(i)
	}
	return true
}

func (s slots) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if s[parent].deadline <= s[i].deadline {
			return
		}
		s.swap(i, parent)
		i = parent
	}
}

func (s slots) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(s) {
			return
		}
		if right := child + 1; right < len(s) && s[right].deadline < s[child].deadline {
			child = right
		}
		if s[i].deadline <= s[child].deadline {
			return
		}
		s.swap(i, child)
		i = child
	}
}

func (s slots) swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = int32(i), int32(j)
}
