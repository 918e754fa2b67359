package bearer

import (
	"fmt"
	"slices"
	"strings"
)

// The families of algorithms. All members of one use the same kind of key, ES apart, where each has a curve of its own.
var (
	hsFamily = []string{"HS256", "HS384", "HS512"}
	rsFamily = []string{"RS256", "RS384", "RS512"}
	psFamily = []string{"PS256", "PS384", "PS512"}
	esFamily = []string{"ES256", "ES384", "ES512"}
)

const edDSA = "EdDSA"

// sets are the names that a configuration may choose, with what each accepts. Those of the existing broker mean what they
// mean there: "auto" is its whole range, RS256 the whole family, and all others are exact.
var sets = func() map[string][]string {
	all := map[string][]string{edDSA: {edDSA}, "auto": slices.Concat(hsFamily, rsFamily, []string{edDSA})}
	for _, name := range slices.Concat(hsFamily, rsFamily, psFamily, esFamily) {
		all[name] = []string{name}
	}
	all["RS256"] = rsFamily
	return all
}()

// AlgorithmSets returns the names of sets of algorithms, in the order of a reference: "auto", then HS256 and the rest.
func AlgorithmSets() []string {
	return slices.Concat([]string{"auto"}, hsFamily, rsFamily, psFamily, esFamily, []string{edDSA})
}

// Algorithms returns the algorithms that a set accepts. Names are exact.
func Algorithms(set string) ([]string, error) {
	algs, ok := sets[set]
	if !ok {
		return nil, fmt.Errorf("algorithm %q: want one of %s", set, strings.Join(AlgorithmSets(), ", "))
	}
	return slices.Clone(algs), nil
}

// Shared reports whether an algorithm uses a shared secret.
func Shared(alg string) bool { return slices.Contains(hsFamily, alg) }
