// Package mutant proves that the proofs are worth something: it breaks the product on purpose, one small edit at a time, in
// a copy of its source, and runs the test or the reliability run that must turn red. A check that no mutant ever turned red
// is no evidence.
//
// A mutant whose edit does not apply any more is an error, not a pass; so is a killer that is red without the mutant. What
// a killer prints is kept.
package mutant
