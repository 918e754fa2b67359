// Package migrations holds the schema of the two databases and brings a database to it.
//
// A set is a folder: NNNNN_subject.sql files that goose applies once, in order and forward only, and routines/*.sql,
// which are applied again whenever their text changes, so that a review shows a diff of a function and not a copy.
// Both happen under one advisory lock, so any number of processes may start at once.
//
// Programs of two releases work on one schema while a cell is upgraded, the newer one: a release only adds to what the one
// before it uses (docs/adr/0007-old-and-new-side-by-side.md), and an older program that applies its set leaves a newer
// schema as it is.
package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

//go:embed broker gateway
var files embed.FS

// Set names one of the two schemas.
type Set string

const (
	Broker  Set = "broker"  // schema queen: queues, segments, cursors
	Gateway Set = "gateway" // schema queengate: tenants, plans, keys
)

// generations number the routines of a set, release by release: unlike the migrations they have no order of their own by
// which a program could tell whether the ones it finds are older than its own or newer. One is added in the first commit
// of a release that changes a routine.
var generations = map[Set]int{Broker: 1, Gateway: 1}

// lockID guards the application of any set. Brokers of the existing system use the same number for their schema.
const lockID = 778120010

// Fingerprint changes whenever any file of the set does, or its generation: it names test templates.
func Fingerprint(set Set) string {
	h := sha256.New()
	fmt.Fprintln(h, generations[set])
	// Walking an embedded tree cannot fail: it is part of the binary.
	must(fs.WalkDir(files, string(set), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", p, len(b))
		h.Write(b)
		return nil
	}))
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// newest returns the number of the last migration of the set.
func (set Set) newest() (number int64) {
	names, err := fs.Glob(files, path.Join(string(set), "*.sql"))
	must(err)
	for _, name := range names {
		digits, _, _ := strings.Cut(path.Base(name), "_")
		n, err := strconv.ParseInt(digits, 10, 64)
		must(err)
		number = max(number, n)
	}
	return number
}

// routine is a file of routines and the hash by which a database knows it.
type routine struct{ name, hash, text string }

// routines returns the routine files of the set in the order in which they are applied.
func (set Set) routines() (all []routine) {
	names, err := fs.Glob(files, path.Join(string(set), "routines", "*.sql")) // sorted
	must(err)
	for _, name := range names {
		text, err := files.ReadFile(name)
		must(err)
		sum := sha256.Sum256(text)
		all = append(all, routine{name, hex.EncodeToString(sum[:]), string(text)})
	}
	return all
}

// table is where goose notes what it has applied, and generation the row of public.queengate_routines that has the
// generation, beside those of the files.
func (set Set) table() string      { return "public.queengate_" + string(set) + "_version" }
func (set Set) generation() string { return string(set) + "/generation" }
