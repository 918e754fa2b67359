// Package check judges a recorded run against the promises of the product.
//
// A promise is a [Rule]. Judge reads a history once, in the order of its stamps, and keeps for every partition what was
// pushed to it and what was ever read from it, and for every partition and group who was given what and which
// acknowledgement moved the cursor; the rules are comparisons of these. Time and memory grow linearly with the number of
// messages (about 250 bytes for one that is pushed, popped and read), except for the searches of LIN and T3, which are
// bounded and answer UNKNOWN when the bound is met.
//
// There are four verdicts. FAIL names a promise that was broken and the operations that show it. PASS says that every
// promise that the workloads of the run touch was tested on at least one fact, and held. Anything that stands between the
// two (floors not reached, a fault that was never seen to work, a history that is cut, a machine too noisy) is UNKNOWN
// with its reason, and UNKNOWN never counts as a pass. NOT JUDGED is UNKNOWN for the only reason that something was late, or
// too little, while the machine was busy with other things; what the run itself spends is no excuse.
//
// What the judge relies on: stamps are of one monotonic clock and enclose the operation; labels are those of package
// hist. Where it cannot know, it errs on the side of the product: a lease is taken to be held only as long as it surely
// was, a cursor to be moved by everything that may have moved it. So a FAIL is a finding and not a guess. A rule that
// never turned red is no evidence; every rule here has a hand-made bad history in the tests that turns it, and no other
// rule, red.
package check
