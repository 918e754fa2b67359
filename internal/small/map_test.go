package small

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// TestMapIsAMap runs the same steps on a Map and on a map.
func TestMapIsAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var m Map[int, string]
		model := map[int]string{}
		key := rapid.IntRange(0, 2*few+1)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k, v := key.Draw(t, "key"), rapid.StringN(1, 3, -1).Draw(t, "value")
				_, known := model[k]
				model[k] = v
				if added := m.Put(k, v); added == known {
					t.Fatalf("Put(%d) reports %v", k, added)
				}
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				delete(model, k)
				m.Delete(k)
			},
			"delete while walking": func(t *rapid.T) {
				odd := rapid.IntRange(0, 1).Draw(t, "which")
				visits := map[int]int{}
				for k := range m.All() {
					visits[k]++
					if k%2 == odd {
						m.Delete(k)
					}
				}
				for k := range model {
					if visits[k] != 1 {
						t.Fatalf("%d was visited %d times", k, visits[k])
					}
				}
				maps.DeleteFunc(model, func(k int, _ string) bool { return k%2 == odd })
			},
			"": func(t *rapid.T) {
				if got := maps.Collect(m.All()); !maps.Equal(got, model) || m.Len() != len(model) {
					t.Fatalf("%v (%d entries), want %v", got, m.Len(), model)
				}
				for k := range 2*few + 2 {
					v, ok := m.Get(k)
					if want, there := model[k]; v != want || ok != there || m.At(k) != want {
						t.Fatalf("Get(%d) = %q, %v, want %q, %v", k, v, ok, want, there)
					}
				}
			},
		})
	})
}

// TestASmallMapIsSmall: that is what it is for. One entry is one allocation of its own size.
func TestASmallMapIsSmall(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		var m Map[int64, *int]
		m.Put(1, nil)
		sink = m.Len()
	}); n > 1 {
		t.Errorf("%v allocations for one entry", n)
	}
}

var sink int
