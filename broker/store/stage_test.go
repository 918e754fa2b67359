package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A stage plays two sessions against each other in every order of their steps. The database stops each session at gates:
// in front of every statement that writes partitions, cursors, letters or registrations, behind the plan of a step of retention, and in
// front of the commit. A step goes from one gate to the next, and what a session does in between it does with the product's own statements.
//
// Sessions that would wait for each other do, and whether one waits is read from the server. A run ends when both sessions
// are done. What came of it, answers and all that is stored, must be what some order of whole calls gives: whoever was told
// that another is at it asks again at the end, as its caller would.

// gateSQL makes the gates. A session that is an actor takes the shared lock (actor, gate), which the stage holds until it
// lets the session go on.
const gateSQL = `
CREATE FUNCTION queen.gate() RETURNS void LANGUAGE plpgsql AS $f$
DECLARE
    v_actor integer := nullif(current_setting('stage.actor', true), '')::integer;
    v_gate  integer := coalesce(nullif(current_setting('stage.gate', true), ''), '0')::integer + 1;
BEGIN
    IF v_actor > 0 THEN
        PERFORM set_config('stage.gate', v_gate::text, false);
        PERFORM pg_advisory_lock_shared(v_actor, v_gate);
        PERFORM pg_advisory_unlock_shared(v_actor, v_gate);
    END IF;
END $f$;
CREATE FUNCTION queen.statement_gate() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN
    PERFORM queen.gate();
    RETURN NULL;
END $f$;
CREATE FUNCTION queen.commit_gate() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN
    IF coalesce(current_setting('stage.committing', true), '') = '' THEN -- once, whatever the number of rows
        PERFORM set_config('stage.committing', 'on', true);
        PERFORM queen.gate();
    END IF;
    RETURN NULL;
END $f$;
ALTER FUNCTION queen.trim_plan(text, bigint[], integer) RENAME TO plan_of_trim;
CREATE FUNCTION queen.trim_plan(p_task text, p_partitions bigint[], p_batch integer) RETURNS SETOF queen.trim_step LANGUAGE plpgsql AS $f$
BEGIN
    RETURN QUERY SELECT * FROM queen.plan_of_trim(p_task, p_partitions, p_batch);
    PERFORM queen.gate();
END $f$;`

const maxGates = 24

type stage struct {
	*world
	control *pgx.Conn // holds the gates
	actors  [2]*actor
}

type actor struct {
	number int // 1 or 2
	name   string
	pool   *pgxpool.Pool // of one session
	store  *Store
	pid    uint32

	// Of the run:
	ops   []op
	next  int // of ops
	open  int // gates opened
	ended chan verdict
	busy  bool // a call is under way
	said  []verdict
}

// op is one call of a session. It returns what the caller is told, and whether the caller would ask again, since another
// session was at it.
type op func(s *Store, sc *scene) verdict

type verdict struct {
	text  string
	again bool
}

// scene is a tenant of a run's own with queue "q" and partition "p" in it.
type scene struct {
	*world
	lane    lane
	workers [3]uuid.UUID
	task    TaskLease
	letter  uuid.UUID
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{world: newWorld(t)}
	s.exec(gateSQL)
	for _, table := range []string{"log_partitions", "log_consumers", "log_dlq", "group_registrations"} {
		s.exec("CREATE TRIGGER gate BEFORE INSERT OR UPDATE OR DELETE ON queen." + table + " FOR EACH STATEMENT EXECUTE FUNCTION queen.statement_gate()")
		s.exec("CREATE CONSTRAINT TRIGGER gate_commit AFTER INSERT OR UPDATE OR DELETE ON queen." + table +
			" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION queen.commit_gate()")
	}
	cfg := s.pool.Config().Copy()
	for _, bound := range []string{"lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"} {
		cfg.ConnConfig.RuntimeParams[bound] = "0" // a session may stand at a gate for as long as the machine likes
	}
	var err error
	if s.control, err = pgx.ConnectConfig(s.ctx, cfg.ConnConfig); err != nil {
		t.Fatal(err)
	}
	for i := range s.actors {
		a := &actor{number: i + 1, name: string(rune('A' + i))}
		one := cfg.Copy()
		one.MaxConns = 1
		a.pool = openPool(t, one)
		a.store = New(a.pool)
		if err := a.pool.QueryRow(s.ctx, "SELECT pg_backend_pid()").Scan(&a.pid); err != nil {
			t.Fatal(err)
		}
		s.actors[i] = a
	}
	t.Cleanup(func() { s.control.Close(s.ctx) }) // before the pools: it opens all gates
	return s
}

// enter begins a run: a fresh scene, all gates shut or, for a run of whole calls, nobody an actor.
func (s *stage) enter(gated bool, prepare func(*scene), ops [2][]op) *scene {
	s.t.Helper()
	w := *s.world
	w.tenant = uuid.New()
	sc := &scene{world: &w}
	for i := range sc.workers {
		sc.workers[i] = uuid.UUID{0: byte(i + 1)}
	}
	w.exec("INSERT INTO queen.tenants (tenant_id, queue_count) VALUES ($1, 1)", w.tenant)
	w.queue = "q"
	w.id = w.newQueue(w.tenant, w.queue)
	w.exec("UPDATE queen.queues SET partition_count = 1 WHERE id = $1", w.id)
	sc.lane = w.lane("p")
	w.readsAll(stageGroup, sc.lane)
	if err := w.store.seedCursors(w.ctx, []int64{sc.lane.id}, []string{stageGroup}); err != nil {
		s.t.Fatal(err)
	}
	prepare(sc)
	for i, a := range s.actors {
		a.ops, a.next, a.open, a.busy, a.said = ops[i], 0, 0, false, nil
		a.ended = make(chan verdict, 1)
		number := 0
		if gated {
			number = a.number
		}
		if _, err := a.pool.Exec(s.ctx, fmt.Sprintf("SELECT set_config('stage.actor', '%d', false), set_config('stage.gate', '0', false)", number)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.gates("SELECT pg_advisory_unlock_all()")
	if gated {
		s.gates(fmt.Sprintf("SELECT pg_advisory_lock(a, g) FROM generate_series(1, 2) a, generate_series(1, %d) g", maxGates))
	}
	return sc
}

func (s *stage) gates(sql string) {
	s.t.Helper()
	if _, err := s.control.Exec(s.ctx, sql); err != nil {
		s.t.Fatal(err)
	}
}

func (a *actor) done() bool { return !a.busy && a.next == len(a.ops) }

// step lets an actor go on: into its next call, or through the gate it stands at.
func (s *stage) step(a *actor, sc *scene) {
	if !a.busy {
		call := a.ops[a.next]
		a.next++
		a.busy = true
		go func() { a.ended <- call(a.store, sc) }()
		return
	}
	a.open++
	s.gates(fmt.Sprintf("SELECT pg_advisory_unlock(%d, %d)", a.number, a.open))
}

// settle waits until nothing moves any more, and returns who can go on.
func (s *stage) settle() (able []*actor) {
	s.t.Helper()
	s.until("the sessions come to rest", func() bool {
		able = able[:0]
		for i, a := range s.actors {
			select {
			case v := <-a.ended:
				a.busy = false
				a.said = append(a.said, v)
			default:
			}
			if a.done() {
				continue
			}
			if !a.busy {
				able = append(able, a)
				continue
			}
			var gate *int
			var blocked bool
			if err := s.control.QueryRow(s.ctx, `SELECT
  (SELECT l.objid::integer FROM pg_locks l WHERE l.pid = $1 AND l.locktype = 'advisory' AND l.classid = $2 AND NOT l.granted),
  $3 = ANY (pg_blocking_pids($1))`, a.pid, a.number, s.actors[1-i].pid).Scan(&gate, &blocked); err != nil {
				s.t.Fatal(err)
			}
			switch {
			case gate != nil && *gate > a.open:
				if *gate >= maxGates {
					s.t.Fatalf("%s stands at gate %d", a.name, *gate)
				}
				able = append(able, a)
			case blocked:
			default:
				return false
			}
		}
		// Nobody able, and somebody not done: a circle, which the server breaks.
		return len(able) > 0 || s.actors[0].done() && s.actors[1].done()
	})
	return able
}

// run plays one order: at each point the actor that choose picks goes on. It returns the order and what came of it.
func (s *stage) run(prepare func(*scene), ops [2][]op, choose func(able int) int) (order, outcome string) {
	s.t.Helper()
	sc := s.enter(true, prepare, ops)
	var b strings.Builder
	for able := s.settle(); len(able) > 0; able = s.settle() {
		a := able[choose(len(able))]
		b.WriteString(a.name)
		s.step(a, sc)
	}
	// From here on nobody is an actor: who was turned away asks again.
	s.gates("SELECT pg_advisory_unlock_all()")
	return b.String(), s.outcome(sc)
}

// outcome asks again for whoever was turned away, and says all that can be known of the scene.
func (s *stage) outcome(sc *scene) string {
	s.t.Helper()
	var b strings.Builder
	for _, a := range s.actors {
		for i := range a.said {
			for again := 0; a.said[i].again && again < 3; again++ {
				if _, err := a.pool.Exec(s.ctx, "SELECT set_config('stage.actor', '0', false)"); err != nil {
					s.t.Fatal(err)
				}
				a.said[i] = a.ops[i](a.store, sc)
			}
			fmt.Fprintf(&b, "%s: %s\n", a.name, a.said[i].text)
		}
	}
	b.WriteString(sc.picture())
	return b.String()
}

// picture is all that a tenant has, without times and ids.
func (sc *scene) picture() string {
	sc.t.Helper()
	var text string
	sc.scan(`SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
SELECT format('log %s/%s %s..%s, %s segments, %s bytes, %s', q.name, p.name, p.log_start, p.last_offset, p.segments, p.retained_bytes,
    (SELECT string_agg(encode(substring(t.hashes FOR 3), 'hex'), ' ' ORDER BY t.base_offset) FROM queen.log_txns t WHERE t.partition_id = p.id)) AS line
  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id WHERE q.tenant_id = $1
UNION ALL
SELECT format('stored %s/%s %s..%s', q.name, p.name, s.base_offset, s.end_offset)
  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id JOIN queen.log_segments s ON s.partition_id = p.id
 WHERE q.tenant_id = $1 AND s.base_offset >= p.log_start
UNION ALL
SELECT format('cursor %s/%s %s: %s to %s by %s, retries %s, attempt %s at %s, consumed %s', q.name, p.name, k.consumer_group, k.committed, k.batch_end,
    left(k.worker_id::text, 2), k.batch_retry_count, k.attempt_count, k.attempt_offset, k.total_consumed)
  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id JOIN queen.log_consumers k ON k.partition_id = p.id WHERE q.tenant_id = $1
UNION ALL
SELECT format('letter %s/%s %s: %s', d.queue, d.partition_name, d.consumer_group, d.offset_) FROM queen.log_dlq d WHERE d.tenant_id = $1
UNION ALL
SELECT format('registered %s %s, owed from %s', r.queue, r.consumer_group, r.seeded_to) FROM queen.group_registrations r WHERE r.tenant_id = $1
UNION ALL
SELECT format('queue %s counts %s partitions', q.name, q.partition_count) FROM queen.queues q WHERE q.tenant_id = $1
UNION ALL
SELECT format('tenant counts %s queues and %s bytes', t.queue_count, t.retained_bytes + coalesce((
    SELECT sum(l.bytes) FROM queen.retained_ledger l WHERE l.tenant_id = $1), 0)) FROM queen.tenants t WHERE t.tenant_id = $1) x`,
		[]any{sc.tenant}, &text)
	return text
}

// play enumerates all orders of the steps, and checks each against the orders of whole calls.
func (s *stage) play(prepare func(*scene), a, b []op) {
	s.t.Helper()
	ops := [2][]op{a, b}
	serial := map[string]string{}
	for _, whole := range merges(len(a), len(b)) {
		sc := s.enter(false, prepare, ops)
		for _, i := range whole {
			who := s.actors[i]
			who.said = append(who.said, who.ops[who.next](who.store, sc))
			who.next++
		}
		serial[s.outcome(sc)] = fmt.Sprint(whole)
	}
	// A run follows the choices of prefix and then takes the first that is able; taken notes how many there were.
	type choice struct{ taken, of int }
	var path []choice
	runs := 0
	for {
		runs++
		at := 0
		order, outcome := s.run(prepare, ops, func(able int) int {
			if at == len(path) {
				path = append(path, choice{0, able})
			}
			// How many are able is the same each time, but for a wait so short that it was seen once and not again.
			path[at].of = max(path[at].of, able)
			at++
			return min(path[at-1].taken, able-1)
		})
		if serial[outcome] == "" {
			s.t.Fatalf("the order %s is that of no whole calls:\n%s\n\nwhole calls give\n%s", order, outcome, strings.Join(slices.Sorted(keys(serial)), "\n\n"))
		}
		for len(path) > 0 && path[len(path)-1].taken+1 == path[len(path)-1].of {
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			break
		}
		path[len(path)-1].taken++
	}
	var deadlocks int
	s.scan("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()", nil, &deadlocks)
	if deadlocks > 0 {
		s.t.Errorf("%d deadlocks", deadlocks)
	}
	s.t.Logf("%d orders, %d outcomes of whole calls", runs, len(serial))
	if runs < 6 {
		s.t.Errorf("only %d orders: the sessions do not stop at their gates", runs)
	}
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// merges returns every order of n calls of session 0 and m of session 1.
func merges(n, m int) (all [][]int) {
	if n == 0 && m == 0 {
		return [][]int{{}}
	}
	if n > 0 {
		for _, rest := range merges(n-1, m) {
			all = append(all, append([]int{0}, rest...))
		}
	}
	if m > 0 {
		for _, rest := range merges(n, m-1) {
			all = append(all, append([]int{1}, rest...))
		}
	}
	return all
}

// wait is how long a claim holds in a scene: nothing expires by itself.
const wait = time.Hour
