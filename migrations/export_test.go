package migrations

// For the tests of the package, which must stand outside of it: pgtest applies migrations too.
var (
	ApplyWithin = apply
	GivingWay   = givingWay
	Generations = generations
)

// Routines returns the names of the set's routine files and their hashes.
func Routines(set Set) map[string]string {
	out := map[string]string{}
	for _, r := range set.routines() {
		out[r.name] = r.hash
	}
	return out
}
