package main

import "testing"

func TestALimitOfOpenFilesIsHeldAgainstWhatIsPromised(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		limit   uint64
		clients int
		want    string
	}{
		"enough":             {2*1000 + descriptorsBeside, 1000, ""},
		"unlimited":          {1<<64 - 1, 1_000_000, ""},
		"one short":          {2*1000 + descriptorsBeside - 1, 1000, "x = 1000 wants 2512: raise the limit (LimitNOFILE, ulimit -n), or lower the setting to 999"},
		"the usual 1024":     {1024, 50_000, "x = 50000 wants 100512: raise the limit (LimitNOFILE, ulimit -n), or lower the setting to 256"},
		"not even our needs": {100, 16, "x = 16 wants 544: raise the limit (LimitNOFILE, ulimit -n), or lower the setting to 0"},
	} {
		if got := shortOfDescriptors(c.limit, "x", c.clients); got != c.want {
			t.Errorf("%s: %q, want %q", rule, got, c.want)
		}
	}
}
