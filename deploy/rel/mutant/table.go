package mutant

import "strings"

// Mutant is one way to break a promise, and who must notice.
type Mutant struct {
	Name  string
	Edits []Edit
	Kill  Kill
}

// Edit replaces text of a file, which must be there exactly once.
type Edit struct{ File, Old, New string }

// Kill is who must turn red: tests of a package of the product, or a run.
type Kill struct {
	Package, Test string // ./broker and a pattern of go test -run

	Run  []string // arguments of rel run
	Rule string   // that must fail in the run
}

func test(pkg, pattern string) Kill { return Kill{Package: pkg, Test: pattern} }

func edit(file, old, changed string) []Edit { return []Edit{{file, old, changed}} }

// gates are the arguments of a short run of a workload behind three gateways that share one Redis, unless more says
// otherwise.
func gates(workload, nemeses string, more ...string) []string {
	return append([]string{
		"-workloads", workload, "-nemeses", nemeses, "-brokers", "1", "-gateways", "3", "-quota", "exact", "-quiet", "3s", "-load", "15s",
	}, more...)
}

// pooled are the arguments of a short run of a pool of three brokers.
func pooled(nemesis string) []string {
	return []string{"-workloads", "G11", "-nemeses", nemesis, "-brokers", "3", "-gateways", "2", "-quiet", "3s"}
}

// Routines of the database.
const (
	push       = "migrations/broker/routines/push.sql"
	claimReady = "migrations/broker/routines/ready.sql"
	claim      = "migrations/broker/routines/claim.sql"
	ack        = "migrations/broker/routines/ack.sql"
	retention  = "migrations/broker/routines/retention.sql"
)

// All are the mutants.
var All = []Mutant{
	{
		"pushes do not wait for the disk of PostgreSQL",
		nil, // a setting does it
		Kill{Run: []string{
			"-workloads", "W1", "-nemeses", "N8:immediate", "-brokers", "1",
			"-postgres", "synchronous_commit=off", "-postgres", "wal_writer_delay=10s",
		}, Rule: "D1"},
	},
	{
		"the standby is asynchronous, and everybody believes that it is not",
		nil,
		Kill{Run: []string{
			"-workloads", "W1", "-nemeses", "N10", "-brokers", "1", "-standby", "sync", "-postgres", "synchronous_standby_names=",
		}, Rule: "D1"},
	},
	{
		"a commit that its standby did not confirm is a success",
		edit("internal/pg/session.go", "return errors.Join(ErrUnconfirmed, err)", "return err"),
		test("./internal/pg", "TestACommitThatTheStandbyDidNotConfirmIsUnknown"),
	},
	{
		"a lost answer means that nothing was done",
		edit("internal/pg/pg.go", `case s == "", s == "57P01"`, `case s == "57P01"`),
		test("./internal/pg", "TestOutcomes"),
	},
	{
		"a primary that was replaced is written to",
		edit("internal/pg/fence.go", "case id.timeline < newest:", "case false:"),
		test("./internal/pg", "TestAPromotionIsAnotherLife"),
	},
	{
		"what was learned of one life of the database is believed in the next", // three walls stand before that
		[]Edit{
			{"broker/feed.go", "	b.fuser.ForgetAll()\n	b.segments.clear()\n	b.leases.clear()\n	b.names.clear()\n", ""},
			{"broker/store/push.go", "segs[order[i]].Verified.in(life)", "segs[order[i]].Verified.Offset"},
			{"broker/fuse/flush.go", "case v.LastOffset < e.verified || v.Life != e.life:", "case v.LastOffset < e.verified:"},
		},
		test("./broker", "TestNothingKnownOfAReplacedPrimaryIsTrusted"),
	},
	{
		"ids are looked for before the partition is locked",
		[]Edit{
			{push, "        FOR NO KEY UPDATE OF p SKIP LOCKED\n    ) l;\n    v_now", "    ) l;\n    v_now"},
			{push, "        PERFORM 1 FROM queen.log_partitions p WHERE p.id = ANY (p_partitions) ORDER BY p.id FOR NO KEY UPDATE;", "        NULL;"},
		},
		test("./broker/store", "TestRacingSessionsStoreEveryIDOnce"),
	},
	{
		"the memory of one broker decides alone what is a duplicate",
		edit(push, "i.time_window > 0 AND p.last_offset > i.verified AS unvouched", "false AS unvouched"),
		test("./broker/store", "TestDuplicateReportsTheLowestOriginal|TestRacingSessionsStoreEveryIDOnce"),
	},
	{
		"messages are stamped with the clock as it is",
		edit(push, "            last_created_at = greatest(v_now, p.last_created_at),", "            last_created_at = v_now,"),
		test("./broker/store", "TestStampsNeverFall"),
	},
	{
		"offsets leave a gap between two pushes",
		edit(push, "SET last_offset     = p.last_offset + i.count,", "SET last_offset     = p.last_offset + i.count + 1,"),
		test("./broker/store", "TestPushAllocatesOffsetsFromZero"),
	},
	{
		"two pops may claim one partition",
		[]Edit{
			{claim, "           AND k.committed = c.committed AND (k.lease_expires_at IS NULL OR k.lease_expires_at <= v_now)\n", ""},
			{claim, "           FOR NO KEY UPDATE OF k SKIP LOCKED\n", ""},
		},
		test("./broker/store", "TestConcurrentClaimsNeverOverlap"),
	},
	{
		"a lease that has ended may still acknowledge",
		[]Edit{
			{claimReady, "k.worker_id = p_lease[g.n] AND k.lease_expires_at > clock_timestamp()", "true"},
			{ack, "WHEN g.named AND (k.live AND k.worker_id = g.lease) IS NOT TRUE THEN 3", ""},
		},
		Kill{Run: []string{"-workloads", "W2", "-nemeses", "N3", "-brokers", "2"}, Rule: "L2"},
	},
	{
		"of mixed acks the highest signal counts",
		edit(ack, "min(i.at * 4 + 3 - i.status) FILTER", "max(i.at * 4 + 3 - i.status) FILTER"),
		test("./broker/store", "TestAckDecisionTable"),
	},
	{
		"a dead letter is not filed",
		edit(ack, "         WHERE d.verdict = 0 AND d.act = 3\n", "         WHERE false\n"),
		test("./broker/store", "TestDeadLetterReason"),
	},
	{
		"retention of what is completed asks the fastest group",
		edit(retention, "    SELECT min(g.committed)\n      FROM queen.log_partitions p", "    SELECT max(g.committed)\n      FROM queen.log_partitions p"),
		test("./broker/janitor", "TestRulesOfAQueue"),
	},
	{
		"the spool answers before its file is on disk",
		edit("internal/spool/file.go", `	if err := o.f.Sync(); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	o.synced`, "	o.synced"),
		Kill{Run: []string{"-workloads", "W13", "-nemeses", "N16"}, Rule: "D4"},
	},
	{
		"the spool does not check what it reads",
		edit("internal/spool/file.go", "if binary.LittleEndian.Uint32(b[8:]) != k.check(n, data) {", "if false {"),
		test("./internal/spool", "."),
	},
	{
		"the spool lets go of messages before the database has them",
		[]Edit{
			{"broker/drain.go", "	tried, err := d.offer()\n", "	_ = batch.Settle()\n	tried, err := d.offer()\n"},
		},
		test("./broker", "TestAKillInTheDrainStoresNothingTwice|TestPushesOfAnOutageAreStoredInOrderAfterIt|TestAnUnknownOutcome"),
	},
	{
		"the drain gives messages new transaction ids",
		edit("broker/drain.go", "segment.Frame{TransactionID: r.rec.txn,", `segment.Frame{TransactionID: r.rec.txn + "'",`),
		test("./broker", "TestPushesOfAnOutageAreStoredInOrderAfterIt"),
	},
	{
		"a push overtakes what waits in the spool",
		edit("broker/spool.go", " || l.before(p.who.tenant, p.groups)", ""),
		test("./broker", "TestAPushGoesBehindTheSpooledOnesOfItsPartition"),
	},
	{
		"answers of a push stand at the wrong items",
		edit("broker/push.go", "		v := &g.out[at.frame]", "		v := &g.out[len(g.out)-1-at.frame]"),
		Kill{Run: []string{"-workloads", "W1", "-nemeses", "none", "-load", "10s", "-brokers", "1"}, Rule: "O4"},
	},
	{
		"a lost claim that acknowledges by itself ends in 204",
		edit("broker/pop.go", "away(err) && !p.unsure:", "away(err):"),
		test("./broker", "TestALostClaimThatAcknowledgesByItselfIsSaid"),
	},
	{
		"an ack that lost its answer has failed",
		edit("broker/store/ack.go", "			b.blame(round, err)\n", ""),
		test("./broker", "TestAnAckThatLostAnAnswerDoesNotSayThatNothingHappened"),
	},
	{
		"queues are remembered without their tenant",
		edit("broker/names.go", "n, k := b.names, queueKey{tenant, name}", "n, k := b.names, queueKey{name: name}"),
		test("./broker", "TestTenantsWithTheSameNamesMeetNowhere"),
	},
	{
		"a request may have trailers",
		edit("broker/routes.go", "if len(h.Peek(fasthttp.HeaderTrailer)) > 0 || len(h.PeekTrailerKeys()) > 0 {", "if false {"),
		test("./broker", "TestAmbiguousRequestsAreRefused"),
	},
	{
		"the mesh believes every certificate",
		edit("mesh/keys.go", "return a.believe(s.PeerCertificates[0])", "return nil"),
		test("./mesh", "TestAStrangerIsRefused|TestCertificateFiles"),
	},
	{
		"a place under a cap is not given back",
		edit("quota/registry.go", "func (r *registry) release(holds []hold) {\n	for _, h := range holds {", "func (r *registry) release(holds []hold) {\n	for _, h := range holds[:0] {"),
		test("./quota", "TestNames|TestRefundReturnsEverything|TestARefusalLeavesEverythingAsItWas"),
	},
	{
		"every gateway of a fleet decides by itself",
		nil, // a setting does it
		Kill{Run: gates("G1", "none", "-quota", "local"), Rule: "C1"},
	},
	{
		"a tenth of the rate is kept back",
		edit("quota/decide.lua", "  return b.rate\nend", "  return floor(b.rate * 0.9)\nend"),
		Kill{Run: gates("G1", "none"), Rule: "C2"},
	},
	{
		"Retry-After is rounded down",
		edit("wire/catalogue.go", "return max(1, int(math.Ceil(e.RetryAfter.Seconds())))", "return max(1, int(math.Floor(e.RetryAfter.Seconds())))"),
		Kill{Run: gates("G1", "none"), Rule: "C3"},
	},
	{
		"the gateway's estimate of retained bytes refuses nothing",
		[]Edit{
			{"quota/storage.go", "return s.blocked || s.total(parts) >= cap }", "return s.blocked }"},
			{"quota/decide.lua", "  return p.blocked or used >= p.most\n", "  return p.blocked\n"},
		},
		Kill{Run: gates("G3", "none"), Rule: "C6"},
	},
	{
		"the size of a payload is judged before the plan's counts",
		edit("quota/order.go", `	{limitQueues, creates, checkQueues, refuseQueues, reportQueues},
	{limitPartitions, stores, checkPartitions, refusePartitions, reportPartitions},
	{limitBody, all, checkBodySize, refuseBodySize, reportBodySize},
	{limitPayload, pushes, checkPayload, refusePayload, reportPayload},
`, `	{limitPayload, pushes, checkPayload, refusePayload, reportPayload},
	{limitQueues, creates, checkQueues, refuseQueues, reportQueues},
	{limitPartitions, stores, checkPartitions, refusePartitions, reportPartitions},
	{limitBody, all, checkBodySize, refuseBodySize, reportBodySize},
`),
		Kill{Run: gates("G4", "none"), Rule: "C7"},
	},
	{
		"queues are remembered without their tenant, and read by a neighbour",
		edit("broker/names.go", "n, k := b.names, queueKey{tenant, name}", "n, k := b.names, queueKey{name: name}"),
		Kill{Run: gates("G5", "none"), Rule: "I1"},
	},
	{
		"a hang-up is noticed at the end of its poll",
		edit("proxy/upstream.go", "		_ = k.conn.Close() // the reader of it reports what happened\n", ""),
		Kill{Run: gates("G2", "none", "-load", "24s"), Rule: "C4"},
	},
	{
		"a poll whose client hung up keeps its slot",
		edit("proxy/poll.go", "	case p.gave() == errClientGone:\n		g.settle(ex, quota.Outcome{})\n", "	case p.gave() == errClientGone:\n		ex.admission = nil\n"),
		Kill{Run: gates("G2", "none", "-load", "24s"), Rule: "C4"},
	},
	{
		"some more polls wait than a plan has slots",
		edit("quota/decide.lua", "judge(16, slot_mode, used >= most_slots)", "judge(16, slot_mode, used >= most_slots + 5)"),
		Kill{Run: gates("G2", "none", "-load", "24s"), Rule: "C4"},
	},
	{
		"a broker lets a poll wait whose client is gone",
		edit("broker/detach.go", "conn.Stand(false, p.hangUp)", "conn.Stand(false, func() {})"),
		Kill{Run: gates("G2", "none", "-load", "24s"), Rule: "C4"},
	},
	{
		"a poll whose client hung up is forgotten with all that it holds",
		edit("proxy/sleep.go", "			p.cancel(errClientGone)\n		} else {", "			return\n		} else {"),
		Kill{Run: gates("G2", "none", "-load", "24s"), Rule: "F1"},
	},
	{
		"a push that a broker refused keeps its places",
		edit("proxy/forward.go", "	case status >= 500 && a.saysNone():\n		g.refund(ex)\n", "	case status >= 500 && a.saysNone():\n		ex.admission = nil\n"),
		Kill{Run: gates("G3", "N4:refusals", "-load", "30s"), Rule: "C5"},
	},
	{
		"a deleted queue keeps its place",
		[]Edit{
			{"proxy/forward.go", "			g.gate.QueueDeleted(ex.cluster, ex.params[0])\n", ""},
			{"quota/seed.go", "	return !early && g.ensure(ctx, c, true) == nil", "	return early && g.ensure(ctx, c, true) == nil"},
		},
		Kill{Run: gates("G3", "none", "-load", "20s"), Rule: "C5"},
	},
	{
		"neither gateways nor brokers count queues and partitions",
		[]Edit{
			{"quota/rules.go", "	if s.newQueues > 0 && used > most {", "	if s.newQueues > 0 && used < 0 {"},
			{"quota/rules.go", "	if s.grows && int64(s.growsTo) > most {", "	if s.grows && most < 0 {"},
			{"quota/decide.lua", "  judge(4, queue_mode, new_queues > 0 and queues + new_queues > most_queues)\n  judge(8, partition_mode, grows_to > most_partitions)\n", ""},
			{"broker/identity.go", "caps := store.Caps{MaxQueues: c.MaxQueues, MaxPartitions: c.MaxPartitions}", "caps := store.Caps{}"},
		},
		Kill{Run: gates("G3", "none"), Rule: "C5"},
	},
	{
		"every gateway of a fleet counts the month by itself",
		nil, // a setting does it
		Kill{Run: gates("G3", "none", "-quota", "local"), Rule: "C6"},
	},
	{
		"of a full gateway the first comes first",
		edit("internal/fair/places.go", "	c.queue.Push(owner, v)", "	var all K\n	c.queue.Push(all, v)"),
		Kill{Run: []string{
			"-workloads", "G6-turns", "-nemeses", "none", "-brokers", "1", "-gateways", "2", "-quota", "exact", "-load", "10s", "-far", "20ms",
			"-setting", "QUEENGATE_GATEWAY_MAX_IN_FLIGHT=8",
		}, Rule: "I2"},
	},
	{
		"a lost notification is not made up for",
		edit("plans/book.go", "			case <-wakeC:\n			case <-tick.C:\n", "			case <-wakeC:\n"),
		// The second credentials are made before, and revoked meanwhile; the third ones would tell of it.
		Kill{Run: gates("G8", "N23:mute", "-quiet", "7300ms"), Rule: "Y1"},
	},
	{
		"a gateway keeps nothing for a start without its control database",
		edit("plans/book.go", "func WithFile(f File) Option { return func(b *Book) { b.keeper = newKeeper(b.log, f) } }", "func WithFile(File) Option { return func(*Book) {} }"),
		Kill{Run: gates("G8", "N23:reboot"), Rule: "EXT"},
	},
	{
		"a revoked session is believed",
		edit("plans/snapshot.go", "	_, revoked := s.revoked[jti]\n	return revoked", "	_, revoked := s.revoked[jti]\n	return revoked && jti == \"\""),
		Kill{Run: gates("G8", "none"), Rule: "Y1"},
	},
	{
		"what is under way at a broker that hangs is left there",
		edit("proxy/standing.go", "		b.conns.cut()", "		_ = b.conns.cut"),
		Kill{Run: []string{"-workloads", "G11", "-nemeses", "N4:deaf-back", "-brokers", "3", "-gateways", "2", "-quiet", "3s"}, Rule: "P2"},
	},
	{
		"a pop hands on what its broker says",
		edit("proxy/forward.go", "{ return a.status() >= 500 ||", "{ return a.status() >= 999 ||"),
		Kill{Run: []string{
			"-workloads", "G11", "-nemeses", "N4:errors", "-brokers", "3", "-gateways", "2", "-quiet", "3s", "-once=false", "-load", "50s",
		}, Rule: "P1"},
	},
	{
		"a broker that does not answer stays in its pool",
		[]Edit{
			{"proxy/standing.go", "	failuresOut = 2\n", "	failuresOut = 1 << 30\n"},
			{"proxy/standing.go", "	lossesOut = 3\n", "	lossesOut = 1 << 30\n"},
		},
		Kill{Run: append(pooled("N4:deaf-back"), "-once=false", "-load", "50s"), Rule: "P2"}, // some of them are long
	},
	{
		"a push goes to another broker when its answer was lost",
		edit("proxy/forward.go", "		if far != unsent && !read {", "		if far == partial && !read {"),
		Kill{Run: pooled("N4:lost"), Rule: "D2"},
	},
	{
		"a pool takes out all of its brokers",
		edit("proxy/pool.go", "	return 2*others >= len(all)", "	return others < len(all)"),
		Kill{Run: pooled("N4:lost"), Rule: "P2"},
	},
}

func (k Kill) String() string {
	if k.Package != "" {
		return k.Package + " " + k.Test
	}
	return k.Rule + " in rel run " + strings.Join(k.Run, " ")
}
