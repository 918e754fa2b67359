package check

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Verdict is what a run, or a rule, comes to.
type Verdict string

// The verdicts. Unjudged is for rules only: no workload of the run touches them. NotJudged is UNKNOWN for no other reason
// than that the machine was busy.
const (
	Pass      Verdict = "PASS"
	Fail      Verdict = "FAIL"
	Unknown   Verdict = "UNKNOWN"
	NotJudged Verdict = "NOT JUDGED"
	Unjudged  Verdict = "-"
)

// busyMachine stands before what was not judged for that.
const busyMachine = "not judged: busy machine: "

// Counts is how much there was.
type Counts struct {
	Events       int `json:"events"`
	Operations   int `json:"operations"` // that came back
	Pushes       int `json:"pushes"`     // items answered queued
	Duplicates   int `json:"duplicates"`
	Buffered     int `json:"buffered"`
	Acks         int `json:"acks"` // items that took effect
	Redeliveries int `json:"redeliveries"`
	Infos        int `json:"infos"`
	Transactions int `json:"transactions"`
	Fenced       int `json:"fenced"`
	DeadLetters  int `json:"deadLetters"`
	Deleted      int `json:"deleted"`
	Wakes        int `json:"wakes"`
	Reads        int `json:"reads"`
	Admitted     int `json:"admitted"` // of requests to gateways that are judged
	Refused      int `json:"refused"`  // likewise, for a limit
}

// Report is the outcome of a run.
type Report struct {
	Run     string       `json:"run"`
	Seed    uint64       `json:"seed"`
	Git     string       `json:"git,omitzero"`
	Cmd     string       `json:"cmd"` // what to type to run it again
	Began   time.Time    `json:"began"`
	Verdict Verdict      `json:"verdict"`
	Reasons []string     `json:"reasons,omitempty"` // why it is not PASS
	Rules   []RuleReport `json:"rules"`
	Counts  Counts       `json:"counts"`
	Faults  []string     `json:"faults,omitempty"`
	Busy    float64      `json:"busy,omitzero"` // part of the time in which the machine was
	Wakes   *Latencies   `json:"wakes,omitempty"`
}

// Latencies are of waiting pops that another broker's push woke while no fault was under way.
type Latencies struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50Ms"`
	P99   float64 `json:"p99Ms"`
	Max   float64 `json:"maxMs"`
}

// RuleReport is the outcome of one rule.
type RuleReport struct {
	Rule       string      `json:"rule"`
	Promise    string      `json:"promise"`
	Verdict    Verdict     `json:"verdict"`
	Checked    int64       `json:"checked"` // facts that were tested
	Violations int64       `json:"violations,omitzero"`
	Unjudged   int64       `json:"unjudged,omitzero"` // facts that a busy machine kept from being judged
	Reason     string      `json:"reason,omitzero"`   // of UNKNOWN and NOT JUDGED
	First      []Violation `json:"first,omitempty"`   // the first violations
}

// Violation is one broken promise. Ops are the operations that show it; Events are their lines, once Explain has found
// them.
type Violation struct {
	Text   string           `json:"text"`
	Ops    []int64          `json:"ops,omitempty"`
	Events []jsontext.Value `json:"events,omitempty"`
}

// report draws the sum.
func (j *judge) report() *Report {
	h := j.header
	r := &Report{Run: h.Run, Seed: h.Seed, Git: h.Git, Cmd: h.Cmd, Began: h.Began, Counts: j.counts}
	var broken, open, busy []string
	required := map[Rule]string{}
	for i := range h.Queues {
		for _, rule := range mustSee[h.Queues[i].Workload] {
			required[rule] = h.Queues[i].Workload
		}
	}
	for i := range h.Clusters {
		for _, rule := range mustSee[h.Clusters[i].Workload] {
			required[rule] = h.Clusters[i].Workload
		}
	}
	for rule := range ruleCount {
		f := &j.rules[rule]
		x := RuleReport{Rule: rule.String(), Promise: promises[rule].text, Checked: f.checked, Violations: f.broken, Unjudged: f.unjudged, Verdict: Pass}
		for _, v := range f.violations {
			x.First = append(x.First, Violation{Text: v.text, Ops: v.ops})
		}
		excuse := j.excuse(rule)
		switch {
		case f.broken > 0 && excuse == "":
			x.Verdict = Fail
			broken = append(broken, fmt.Sprintf("%s: %s", rule, f.violations[0].text))
		case f.broken > 0:
			x.Verdict, x.Reason = Unknown, excuse
		case f.unknown != "":
			x.Verdict, x.Reason = Unknown, f.unknown
		case f.busy != "":
			x.Verdict, x.Reason = NotJudged, busyMachine+f.busy
		case f.checked == 0 && required[rule] != "":
			x.Verdict, x.Reason = Unknown, required[rule]+" ran, and nothing of it tested this rule"
			if j.machine.part() > mostly {
				x.Verdict, x.Reason = NotJudged, busyMachine+x.Reason
			}
		case f.checked == 0:
			x.Verdict = Unjudged
		}
		switch why := fmt.Sprintf("%s: %s", rule, x.Reason); x.Verdict {
		case Unknown:
			open = append(open, why)
		case NotJudged:
			busy = append(busy, why)
		}
		r.Rules = append(r.Rules, x)
	}
	open = append(open, j.shortcomings()...)
	for _, why := range j.underFloors() {
		if j.machine.part() > mostly {
			busy = append(busy, busyMachine+why)
		} else {
			open = append(open, why)
		}
	}
	switch {
	case len(broken) > 0:
		r.Verdict = Fail
	case len(open) > 0:
		r.Verdict = Unknown
	case len(busy) > 0:
		r.Verdict = NotJudged
	default:
		r.Verdict = Pass
	}
	r.Reasons = slices.Concat(broken, open, busy)
	r.Busy = j.machine.part()
	for _, f := range j.faults.all {
		r.Faults = append(r.Faults, fmt.Sprintf("%s %s %s: began %s, seen %s (%s), ended %s", f.Name, f.Action, f.Target,
			moment(f.began), moment(f.observed), f.Effect, moment(f.ended)))
	}
	if n := len(j.live.slow); n > 0 {
		ms := func(i int) float64 { return float64(j.live.slow[i].Microseconds()) / 1000 }
		r.Wakes = &Latencies{n, ms(n / 2), ms(min(n-1, n*99/100)), ms(n - 1)}
	}
	return r
}

func moment(t int64) string {
	if t == never {
		return "never"
	}
	return clockTime(t)
}

// excuse says why a rule cannot be broken in this run, "" when it can.
func (j *judge) excuse(r Rule) string {
	if j.anew {
		switch r {
		case O1, O2, O3, O6, D1, D4, X2, A1, A2, A3, A6, LIN, T1, T3:
			return "a queue was deleted during the run: offsets began anew"
		}
	}
	if j.faults.lossy {
		switch r {
		case O2, O4, O6, D1, D4, X2, L1, L2, A1, A2, A3, A4, A5, A6, T1, T2, Q7, R1, R2:
			return "a failover lost commits by design"
		}
	}
	return ""
}

// shortcomings says why a run proves nothing although no promise was broken.
func (j *judge) shortcomings() (why []string) {
	why = append(why, j.noise...)
	if j.counts.Operations == 0 {
		why = append(why, "nothing was done")
	}
	if !j.phases[hist.Done] {
		why = append(why, "the run did not come to its end")
	}
	for _, f := range j.faults.all {
		switch {
		case f.observed == never:
			why = append(why, fmt.Sprintf("%s (%s %s) was never seen to work", f.Name, f.Action, f.Target))
		case f.ended == never:
			why = append(why, fmt.Sprintf("%s (%s %s) never ended", f.Name, f.Action, f.Target))
		}
	}
	return why
}

// underFloors says of what there was too little for the run to prove anything.
func (j *judge) underFloors() (why []string) {
	floors, c := &j.header.Floors, &j.counts
	for _, f := range []struct {
		what        string
		floor, seen int
	}{
		{"pushes", floors.Pushes, c.Pushes},
		{"acks", floors.Acks, c.Acks},
		{"redeliveries", floors.Redeliveries, c.Redeliveries},
		{"operations of unknown outcome", floors.Infos, c.Infos},
		{"buffered messages", floors.Buffered, c.Buffered},
		{"duplicates", floors.Duplicates, c.Duplicates},
		{"transactions", floors.Transactions, c.Transactions},
		{"fenced acks", floors.Fenced, c.Fenced},
		{"dead letters", floors.DeadLetters, c.DeadLetters},
		{"deleted messages", floors.Deleted, c.Deleted},
		{"wakes", floors.Wakes, c.Wakes},
		{"reads", floors.Reads, c.Reads},
		{"requests let in by gateways", floors.Admitted, c.Admitted},
		{"requests refused by gateways", floors.Refused, c.Refused},
	} {
		if f.seen < f.floor {
			why = append(why, fmt.Sprintf("floor: %d %s, want %d", f.seen, f.what, f.floor))
		}
	}
	return why
}

// maxExplained is the most operations that Explain shows.
const maxExplained = 64

// Explain reads the history again and puts the lines of the operations that violations name into the report.
func (r *Report) Explain(h *hist.Reader) error {
	wanted := map[int64][]*Violation{}
	n := 0
	for i := range r.Rules {
		for k := range r.Rules[i].First {
			v := &r.Rules[i].First[k]
			for _, op := range v.Ops {
				if op != 0 && n < maxExplained {
					wanted[op] = append(wanted[op], v)
					n++
				}
			}
		}
	}
	if n == 0 {
		return nil
	}
	for text, err := range h.Lines() {
		if err != nil {
			return err
		}
		for _, v := range wanted[hist.OpOf(text)] {
			v.Events = append(v.Events, shorten(text))
		}
	}
	return nil
}

// longest is the longest line in a report.
const longest = 4 << 10

func shorten(text jsontext.Value) jsontext.Value {
	if len(text) <= longest {
		return text
	}
	cut, err := json.Marshal(strings.ToValidUTF8(string(text[:longest]), "") + "…")
	if err != nil {
		return nil
	}
	return cut
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	return json.MarshalWrite(w, r, jsontext.WithIndent("  "))
}

// WriteMarkdown writes the report for people.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s: %s\n\nSeed %d, began %s", r.Verdict, r.Run, r.Seed, r.Began.UTC().Format(time.RFC3339))
	if r.Git != "" {
		fmt.Fprintf(&b, ", %s", r.Git)
	}
	fmt.Fprintf(&b, ". Again: `%s`\n", r.Cmd)
	if r.Busy > 0 {
		fmt.Fprintf(&b, "\nThe machine was busy with other things for %.0f %% of the time.\n", 100*r.Busy)
	}
	if len(r.Reasons) > 0 {
		b.WriteString("\n## Why\n\n")
		for _, why := range r.Reasons {
			fmt.Fprintf(&b, "- %s\n", why)
		}
	}
	c := r.Counts
	fmt.Fprintf(&b, "\n## What happened\n\n%d events, %d operations (%d of unknown outcome). Pushed %d, duplicates %d, buffered %d, "+
		"acknowledged %d, redelivered %d, transactions %d, fenced %d, dead %d, deleted %d, read %d.\n",
		c.Events, c.Operations, c.Infos, c.Pushes, c.Duplicates, c.Buffered, c.Acks, c.Redeliveries, c.Transactions, c.Fenced, c.DeadLetters,
		c.Deleted, c.Reads)
	if r.Wakes != nil {
		fmt.Fprintf(&b, "\n%d pops were woken across brokers: p50 %.1f ms, p99 %.1f ms, max %.1f ms.\n", r.Wakes.Count, r.Wakes.P50, r.Wakes.P99, r.Wakes.Max)
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "\n- %s", f)
	}
	b.WriteString("\n\n## Rules\n\n| Rule | Verdict | Checked | Promise |\n|---|---|---:|---|\n")
	for _, x := range r.Rules {
		fmt.Fprintf(&b, "| %s | %s | %d | %s |\n", x.Rule, x.Verdict, x.Checked, x.Promise)
	}
	for _, x := range r.Rules {
		if len(x.First) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s: %s\n\n%d violations. The first:\n", x.Rule, x.Promise, x.Violations)
		for _, v := range x.First {
			fmt.Fprintf(&b, "\n- %s\n", v.Text)
			for _, e := range v.Events {
				fmt.Fprintf(&b, "  - `%s`\n", e)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
