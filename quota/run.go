package quota

import (
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// maxRun bounds the decisions of one run, for nothing else is done by Redis meanwhile: some 0.2 ms.
const maxRun = 32

// fixedArgs is how many arguments a call of decide.lua has before its names: the time, the gateway, how many calls follow,
// and the call.
const fixedArgs = 4

// run is the calls that one run of a script answers. Mostly it is one; decisions of one cluster that wait for the same round
// trip are together, since most of what a decision costs Redis is to begin a run, and to read and write the buckets.
type run []*call

// runsOf puts calls together without changing the order of any cluster's.
func runsOf(calls []*call) []run {
	runs := make([]run, 0, len(calls))
	var open map[string]int // runs that may grow, by cluster
	if len(calls) > 1 {
		open = make(map[string]int)
	}
	for i, x := range calls {
		cluster := hashTag(x.keys[0])
		if at, ok := open[cluster]; ok && runs[at].takes(x) {
			runs[at] = append(runs[at], x)
			continue
		}
		if open != nil {
			open[cluster] = len(runs)
		}
		runs = append(runs, calls[i:i+1:i+1])
	}
	return runs
}

// takes reports whether the call can follow in the run: both are decisions without names, of the same buckets.
func (r run) takes(x *call) bool {
	plain := func(x *call) bool { return x.script == decideScript && len(x.args) == fixedArgs }
	first := r[0]
	return len(r) < maxRun && plain(first) && plain(x) && first.args[0] == x.args[0] && slices.Equal(first.keys, x.keys)
}

// args are those of the whole run.
func (r run) args() []any {
	if len(r) == 1 {
		return r[0].args
	}
	args := append(make([]any, 0, fixedArgs-1+len(r)), r[0].args[:fixedArgs-2]...)
	args = append(args, len(r))
	for _, x := range r {
		args = append(args, x.args[fixedArgs-1])
	}
	return args
}

var errAnswers = errors.New("not an answer for each decision")

// answer gives each call its part of what the script answered.
func (r run) answer(reply *redis.Cmd) error {
	if r[0].script != decideScript {
		var err error
		r[0].reply, err = reply.Int64Slice()
		r[0].err = err
		return err
	}
	texts, err := reply.StringSlice()
	if err == nil && len(texts) != len(r) {
		err = errAnswers
	}
	if err != nil {
		return err
	}
	for i, x := range r {
		x.answer, x.err = packed(texts[i]), nil
	}
	return nil
}

// hashTag is the part of a key by which Redis places it.
func hashTag(key string) string {
	_, tag, _ := strings.Cut(key, "{")
	tag, _, _ = strings.Cut(tag, "}")
	return tag
}
