package wl

// all are the workloads by the names of the programme.
var all = map[string]func() Workload{
	"W1":  Log,
	"W2":  Queue,
	"W5":  Pipeline,
	"W6":  Dedup,
	"W7":  Letters,
	"W8":  Retention,
	"W11": Wake,
	"W13": Outage,

	"G1": Rates,
	"G2": Slots,
	"G3": Caps,
	"G4": Order,
	"G5": Walls,
	"G6": Neighbours,
	"G8": Revocations,

	"G6-turns": Turns,

	"G11": Pool,
}

// Named makes the workload of a name.
func Named(name string) (Workload, bool) {
	make, ok := all[name]
	if !ok {
		return Workload{}, false
	}
	return make(), true
}
