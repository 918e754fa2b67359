package broker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

type redriveState struct {
	ID           string
	State        string
	Rate         int
	Limit        *int
	ErrorMessage *string
	Progress     struct {
		Matched, Moved, Duplicate, Failed, Gone, Remaining int
		Done, Cancelled                                    bool
	}
	FinishedAt *time.Time
}

func (w *world) redrive(body string) redriveState {
	w.t.Helper()
	return decode[redriveState](w.t, w.do("POST", "/api/v1/dlq/redrive", body).want(w.t, 202))
}

func (w *world) redriveState(id string) redriveState {
	w.t.Helper()
	return decode[redriveState](w.t, w.do("GET", "/api/v1/dlq/redrive/"+id, "").want(w.t, 200))
}

// ended waits for a redrive.
func (w *world) ended(id string) (r redriveState) {
	w.t.Helper()
	w.until("the redrive ends", func() bool {
		r = w.redriveState(id)
		return r.State != "running"
	})
	return r
}

// drain pops everything of a queue and returns the payloads of each partition in order.
func (w *world) drain(queue string) map[string][]string {
	w.t.Helper()
	out := map[string][]string{}
	for {
		got := w.pop(queue + "?batch=1000&autoAck=true&partitions=100")
		if len(got.Messages) == 0 {
			return out
		}
		for _, m := range got.Messages {
			out[m.Partition] = append(out[m.Partition], string(m.Data))
		}
	}
}

func TestARedriveMovesAThousandLettersInOrderAtItsRate(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "one", 600)
	w.bulk("q", "two", 400)
	w.bulk("other", "p", 5)
	const rate = 1000
	if a := w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q","dryRun":true,"filter":{"partition":"two"}}`).want(t, 200); a.body != `{"success":true,"dryRun":true,"queue":"q","progress":{"matched":400}}` {
		t.Errorf("%s", a.body)
	}
	begin := time.Now()
	started := w.redrive(fmt.Sprintf(`{"queue":"q","rate":%d}`, rate))
	if started.State != "running" || started.Progress.Matched != 1000 || started.Rate != rate {
		t.Fatalf("%+v", started)
	}
	r := w.ended(started.ID)
	if took, least := time.Since(begin), (1000-redriveChunk)*time.Second/rate; took < least {
		t.Errorf("a thousand letters took %v, less than %v", took, least)
	}
	if p := r.Progress; r.State != "done" || p.Moved != 1000 || p.Duplicate+p.Failed+p.Gone+p.Remaining != 0 || !p.Done || r.FinishedAt == nil {
		t.Errorf("%+v", r)
	}
	got := w.drain("q")
	for lane, n := range map[string]int{"one": 600, "two": 400} {
		if len(got[lane]) != n {
			t.Fatalf("%s has %d messages", lane, len(got[lane]))
		}
		for i, data := range got[lane] {
			if want := fmt.Sprintf(`{"n": %d}`, i+1); data != want {
				t.Fatalf("%s: message %d is %s, want %s", lane, i, data, want)
			}
		}
	}
	if n := w.letters("").Total; n != 5 {
		t.Errorf("%d letters of another queue", n)
	}
	var segments int
	if err := w.pool.QueryRow(t.Context(), "SELECT sum(segments) FROM queen.log_partitions").Scan(&segments); err != nil || segments > 30 {
		t.Errorf("a thousand letters are %d segments (%v)", segments, err)
	}
}

func TestARedriveFilters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		want int
	}{
		"group":           {`{"queue":"q","consumerGroup":"odd","rate":5000}`, 11},
		"partition":       {`{"queue":"q","filter":{"partition":"b"},"rate":5000}`, 5},
		"error":           {`{"queue":"q","filter":{"error":"step 1"},"rate":5000}`, 8},
		"error with %":    {`{"queue":"q","filter":{"error":"step%"},"rate":5000}`, 0},
		"transaction ids": {`{"queue":"q","filter":{"transactionIds":["q-2","q-3","zzz"]},"rate":5000}`, 4},
		"no ids":          {`{"queue":"q","filter":{"transactionIds":[]},"rate":5000}`, 0},
		"time":            {`{"queue":"q","filter":{"from":"2020-01-01T00:00:00Z","to":"2020-01-02T00:00:00Z"}}`, 0},
		"beside it":       {`{"queue":"q","partition":"b","rate":5000}`, 5},
		"a limit":         {`{"queue":"q","limit":3,"rate":5000}`, 3},
		"a limit of more": {`{"queue":"q","limit":21,"rate":5000}`, 20},
		"limit and all":   {`{"queue":"q","limit":2,"partition":"b","consumerGroup":"odd","rate":5000}`, 2},
		"nulls":           {`{"queue":"q","filter":null,"destination":null,"rate":null,"consumerGroup":null}`, 20},
		"another queue":   {`{"queue":"none"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, nil)
			w.bulk("q", "a", 15)
			w.bulk("q", "b", 5)
			r := w.ended(w.redrive(c.body).ID)
			if r.State != "done" || r.Progress.Matched != c.want || r.Progress.Moved != c.want {
				t.Errorf("%+v, want %d", r, c.want)
			}
			if n := w.letters("limit=1000").Total; n != 20-c.want {
				t.Errorf("%d letters left", n)
			}
		})
	}
}

func TestARedriveSurvivesItsBroker(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 400)
	// A broker that claims, moves a part and dies without a word.
	db := store.New(w.pool)
	r, err := db.StartRedrive(t.Context(), &store.Redrive{Tenant: DefaultTenant, Filter: store.LetterFilter{Queue: "q"}, Rate: 2000})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := db.ClaimRedrive(t.Context(), "dead")
	if err != nil || dead == nil {
		t.Fatalf("%+v %v", dead, err)
	}
	if again, err := db.ClaimRedrive(t.Context(), "other"); err != nil || again != nil {
		t.Fatalf("claimed twice: %+v %v", again, err)
	}
	page, err := db.RedrivePage(t.Context(), dead, 100)
	if err != nil || len(page) != 100 {
		t.Fatalf("%d letters, %v", len(page), err)
	}
	part, err := db.Lookup(t.Context(), DefaultTenant, []store.Pair{{Queue: "q", Partition: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	first, second := w.moveOf(t, db, part[0], page[:40], dead), w.moveOf(t, db, part[0], page[40:80], dead)
	if v, err := db.MoveLetters(t.Context(), first); err != nil || v.Outcome != store.MoveDone {
		t.Fatalf("%+v %v", v, err)
	}
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.redrives SET lease_until = clock_timestamp() - interval '1 second'"); err != nil {
		t.Fatal(err)
	}
	w.b.redrives.look()
	end := w.ended(r.ID.String())
	if p := end.Progress; end.State != "done" || p.Moved != 400 || p.Matched != 400 || p.Gone != 0 {
		t.Errorf("%+v", end)
	}
	// It comes back from its pause.
	if v, err := db.MoveLetters(t.Context(), second); err != nil || v.Outcome != store.MoveLost {
		t.Errorf("the late holder moves: %+v %v", v, err)
	}
	if held, err := db.SettleRedrive(t.Context(), dead, page[99].LetterKey, 0); err != nil || held {
		t.Errorf("the late holder settles: %v %v", held, err)
	}
	got := w.drain("q")["p"]
	if len(got) != 400 {
		t.Fatalf("%d messages", len(got))
	}
	for i, data := range got {
		if want := fmt.Sprintf(`{"n": %d}`, i+1); data != want {
			t.Fatalf("message %d is %s", i, data)
		}
	}
}

func (w *world) moveOf(t *testing.T, db *store.Store, to store.Partition, items []store.RedriveItem, r *store.Redrive) *store.Move {
	t.Helper()
	ids := make([]uuid.UUID, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	letters, err := db.LettersByID(t.Context(), DefaultTenant, ids)
	if err != nil {
		t.Fatal(err)
	}
	m, err := w.b.newMove(DefaultTenant, to, "", inOrder(letters, ids))
	if err != nil {
		t.Fatal(err)
	}
	m.Redrive = r
	return m
}

func TestAStoppedBrokerHandsItsRedriveOver(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	other := serve(t, w.pool, nil)
	w.bulk("q", "p", 300)
	id := w.redrive(`{"queue":"q","rate":5}`).ID // it would take a minute
	w.until("it runs", func() bool { return w.redriveState(id).Progress.Moved > 0 })
	w.stop()
	if p := other.redriveState(id).Progress; p.Done || p.Moved == 300 {
		t.Fatalf("it was over before the stop: %+v", p)
	}
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.redrives SET rate = 1000"); err != nil { // it need not, any more
		t.Fatal(err)
	}
	other.b.redrives.look()
	if r := other.ended(id); r.State != "done" || r.Progress.Moved != 300 {
		t.Errorf("%+v", r)
	}
	if n := len(other.drain("q")["p"]); n != 300 {
		t.Errorf("%d messages", n)
	}
}

func TestACancelledRedriveStops(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 100)
	id := w.redrive(`{"queue":"q","rate":1}`).ID // it would take longer than a test waits for anything
	w.until("it runs", func() bool { return w.redriveState(id).Progress.Moved > 0 })
	r := decode[redriveState](t, w.do("DELETE", "/api/v1/dlq/redrive/"+id, "").want(t, 200))
	if r.State != "cancelled" || !r.Progress.Cancelled || r.Progress.Done || r.Progress.Remaining != 100-r.Progress.Moved {
		t.Errorf("%+v", r)
	}
	w.until("the run ends", func() bool { w.b.redrives.mu.Lock(); defer w.b.redrives.mu.Unlock(); return w.b.redrives.running == 0 })
	if n := w.letters("limit=1000").Total; n != 100-r.Progress.Moved {
		t.Errorf("%d letters after %d moves", n, r.Progress.Moved)
	}
	if again := decode[redriveState](t, w.do("DELETE", "/api/v1/dlq/redrive/"+id, "").want(t, 200)); again.State != "cancelled" || !again.FinishedAt.Equal(*r.FinishedAt) {
		t.Errorf("%+v", again)
	}
	w.do("DELETE", "/api/v1/dlq/redrive/"+uuid.NewString(), "").want(t, 404)
	w.do("GET", "/api/v1/dlq/redrive/nope", "").want(t, 404)
}

func TestARedriveCountsWhatItCannotMove(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 10)
	if _, err := w.pool.Exec(t.Context(), `UPDATE queen.log_dlq SET payload = NULL WHERE offset_ IN (3, 7)`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.Exec(t.Context(), `UPDATE queen.log_dlq SET consumer_group = '__timer__' WHERE offset_ = 9`); err != nil {
		t.Fatal(err)
	}
	var fourth uuid.UUID
	if err := w.pool.QueryRow(t.Context(), `SELECT id FROM queen.log_dlq WHERE offset_ = 4`).Scan(&fourth); err != nil {
		t.Fatal(err)
	}
	w.push(fmt.Sprintf(`{"items":[{"queue":"q","partition":"p","transactionId":"dlq:%s","payload":4}]}`, fourth))
	r := w.ended(w.redrive(`{"queue":"q","rate":1000}`).ID)
	if p := r.Progress; r.State != "done" || p.Matched != 9 || p.Moved != 6 || p.Duplicate != 1 || p.Failed != 2 || p.Gone != 0 {
		t.Errorf("%+v", r)
	}
	if n := w.letters("").Total; n != 3 {
		t.Errorf("%d letters left", n)
	}
	if n := len(w.drain("q")["p"]); n != 7 {
		t.Errorf("%d messages", n)
	}
}

func TestARedriveToAnotherPartition(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "a", 5)
	w.bulk("q", "b", 5)
	for _, body := range []string{
		`{}`, `{"queue":""}`, `{"queue":"q","rate":0}`, `{"queue":"q","rate":10001}`, `{"queue":"q","rate":1.5}`,
		`{"queue":"q","destination":{"queue":"r"}}`, `{"queue":"q","destination":{}, "destination":{}}`, `{"queue":"q","filter":[]}`,
		`{"queue":"q","filter":{"from":"soon"}}`, `{"queue":"q","consumerGroup":"__timer__"}`, ``,
	} {
		if a := w.do("POST", "/api/v1/dlq/redrive", body); a.status != 400 {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	r := w.ended(w.redrive(`{"queue":"q","rate":5000,"destination":{"queue":"r","partition":"all"}}`).ID)
	if r.State != "done" || r.Progress.Moved != 10 {
		t.Errorf("%+v", r)
	}
	if n := len(w.drain("r")["all"]); n != 10 {
		t.Errorf("%d messages", n)
	}
	w.bulk("q", "a", 500)
	id := w.redrive(`{"queue":"q","rate":40,"destination":{"queue":"gone","partition":"p"}}`).ID
	w.do("DELETE", "/api/v1/resources/queues/gone", "").want(t, 200)
	if r := w.ended(id); r.State != "failed" || r.ErrorMessage == nil || *r.ErrorMessage != "the destination does not exist any more" {
		t.Errorf("%+v", r)
	}
}

func TestRunningRedrivesOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 1000)
	for range 4 {
		w.redrive(`{"queue":"q","rate":1}`)
	}
	// One with a second's work left, when it could not have ended in an hour.
	refused := func(least, most int) {
		t.Helper()
		a := w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q"}`)
		r := a.refused(t, wire.RateLimited)
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		if err != nil || seconds < least || seconds > most || !r.Retryable || r.Limit.Name != "redrives" || r.Limit.Used != 4 {
			t.Errorf("Retry-After %q: %s", a.header.Get("Retry-After"), a.body)
		}
	}
	refused(900, 1000)
	list := decode[struct{ Redrives []redriveState }](t, w.do("GET", "/api/v1/dlq/redrive?limit=1", "").want(t, 200))
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.redrives SET matched = matched * 1000 WHERE id <> $1", list.Redrives[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.redrives SET matched = moved + 60 WHERE id = $1", list.Redrives[0].ID); err != nil {
		t.Fatal(err)
	}
	refused(30, 60)
	w.do("DELETE", "/api/v1/dlq/redrive/"+list.Redrives[0].ID, "").want(t, 200)
	if r := w.redrive(`{"queue":"q","rate":1}`); r.State != "running" {
		t.Errorf("%+v", r)
	}
}

// A limit takes the letters that failed first, whatever others take meanwhile and whoever goes on after a crash.
func TestALimitedRedriveMovesTheOldest(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 100)
	if a := w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q","dryRun":true,"limit":30}`).want(t, 200); !strings.Contains(a.body, `"matched":30}`) {
		t.Errorf("%s", a.body)
	}
	db := store.New(w.pool)
	r, err := db.StartRedrive(t.Context(), &store.Redrive{Tenant: DefaultTenant, Filter: store.LetterFilter{Queue: "q"}, Rate: 2000, Limit: 30})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := db.ClaimRedrive(t.Context(), "dead")
	if err != nil || dead == nil || dead.Limit != 30 || dead.Matched != 30 {
		t.Fatalf("%+v %v", dead, err)
	}
	page, err := db.RedrivePage(t.Context(), dead, 1000)
	if err != nil || len(page) != 30 {
		t.Fatalf("%d letters, %v", len(page), err)
	}
	part, err := db.Lookup(t.Context(), DefaultTenant, []store.Pair{{Queue: "q", Partition: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := db.MoveLetters(t.Context(), w.moveOf(t, db, part[0], page[:20], dead)); err != nil || v.Outcome != store.MoveDone {
		t.Fatalf("%+v %v", v, err)
	}
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.redrives SET lease_until = clock_timestamp() - interval '1 second'"); err != nil {
		t.Fatal(err)
	}
	w.b.redrives.look()
	if end := w.ended(r.ID.String()); end.State != "done" || end.Progress.Moved != 30 || end.Limit == nil || *end.Limit != 30 {
		t.Errorf("%+v", end)
	}
	if got := w.drain("q")["p"]; len(got) != 30 || got[29] != `{"n": 30}` {
		t.Errorf("moved %v", got)
	}
}

// A redrive whose id was lost with its answer is found in the list.
func TestRedrivesAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	list := func(query string) (ids []string) {
		t.Helper()
		for _, r := range decode[struct{ Redrives []redriveState }](t, w.do("GET", "/api/v1/dlq/redrive"+query, "").want(t, 200)).Redrives {
			ids = append(ids, r.ID)
		}
		return ids
	}
	if a := w.do("GET", "/api/v1/dlq/redrive", "").want(t, 200); a.body != `{"redrives":[]}` {
		t.Errorf("none: %s", a.body)
	}
	w.bulk("q", "p", 200) // at one a second they outlast the test
	var some []string
	for i := range 100 {
		some = append(some, fmt.Sprintf("%q", fmt.Sprint("q-", i+1)))
	}
	first := w.redrive(`{"queue":"q","rate":1,"limit":90,"filter":{"transactionIds":[` + strings.Join(some, ",") + `]}}`).ID
	w.do("DELETE", "/api/v1/dlq/redrive/"+first, "").want(t, 200) // before the third takes its letters
	second := w.redrive(`{"queue":"r"}`).ID
	third := w.redrive(`{"queue":"q","rate":1}`).ID
	w.ended(second)
	for query, want := range map[string][]string{
		"": {third, second, first}, "?limit=2": {third, second}, "?queue=q": {third, first}, "?state=done": {second},
		"?state=running&queue=q": {third}, "?state=cancelled": {first}, "?state=failed": nil,
	} {
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
	// One says of itself what the list says of it.
	one := w.do("GET", "/api/v1/dlq/redrive/"+first, "").want(t, 200).body
	if listed := w.do("GET", "/api/v1/dlq/redrive?state=cancelled", "").want(t, 200).body; listed != `{"redrives":[{`+strings.TrimPrefix(one, `{"success":true,`)+`]}` || !strings.Contains(one, `"transactionIds":100},"limit":90,`) {
		t.Errorf("%s\n%s", listed, one)
	}
	for _, query := range []string{"?limit=0", "?limit=1001", "?state=lost", "?queue=%01"} {
		w.do("GET", "/api/v1/dlq/redrive"+query, "").want(t, 400)
	}
}

func TestAQueueIsDeletedUnderItsRedrive(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 200)
	id := w.redrive(`{"queue":"q","rate":10}`).ID // it looks five seconds ahead, and would take twenty
	w.until("it runs", func() bool { return w.redriveState(id).Progress.Moved > 0 })
	w.do("DELETE", "/api/v1/resources/queues/q", "").want(t, 200)
	r := w.ended(id)
	if p := r.Progress; r.State != "done" || p.Moved+p.Gone != 200 || p.Gone == 0 || p.Failed != 0 {
		t.Errorf("%+v", r)
	}
}

// Everything that takes locks on letters at once: nobody may wait in a circle, and no message may double.
func TestLettersUnderEveryHandAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	other := serve(t, w.pool, nil)
	for round := range 6 {
		for _, lane := range []string{"a", "b", "c"} {
			w.bulk("q", lane, 60)
		}
		ids := w.letters("queue=q&limit=1000").Messages
		var wg sync.WaitGroup
		hand := func(from *world, method, path, body string) {
			a, err := from.try(method, path, body)
			if err != nil || a.status >= 500 {
				t.Errorf("%s %s: %d %s %v", method, path, a.status, a.body, err)
			}
		}
		wg.Go(func() { hand(w, "POST", "/api/v1/dlq/redrive", `{"queue":"q","rate":10000}`) })
		wg.Go(func() {
			hand(other, "POST", "/api/v1/dlq/redrive", `{"queue":"q","rate":10000,"destination":{"queue":"to","partition":"a"}}`)
		})
		wg.Go(func() { hand(other, "DELETE", "/api/v1/dlq?queue=q&consumerGroup=odd", "") })
		for k := range 4 {
			wg.Go(func() {
				for i := k; i < len(ids); i += 9 {
					hand(w, "POST", "/api/v1/dlq/"+ids[i].ID+"/replay", [...]string{``, `{"queue":"to","partition":"b"}`}[i%2])
				}
			})
		}
		if round%2 == 1 {
			wg.Go(func() { hand(other, "DELETE", "/api/v1/resources/queues/q", "") })
		}
		wg.Wait()
		w.until("the redrives end", func() bool {
			var running int
			err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM queen.redrives WHERE state = 'running'").Scan(&running)
			return err == nil && running == 0
		})
	}
	var twice, failed int
	if err := w.pool.QueryRow(t.Context(), `SELECT
		(SELECT count(*) FROM (SELECT 1 FROM queen.log_txns t CROSS JOIN generate_series(0, octet_length(t.hashes) / 16 - 1) AS i
			GROUP BY substring(t.hashes FROM 16 * i + 1 FOR 16) HAVING count(*) > 1) d),
		(SELECT count(*) FROM queen.redrives WHERE state <> 'done')`).Scan(&twice, &failed); err != nil {
		t.Fatal(err)
	}
	if twice != 0 || failed != 0 {
		t.Errorf("%d messages are in the log twice, %d redrives failed", twice, failed)
	}
}

func TestMaintenancePausesARedrive(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 160) // four seconds' worth: it is paused long before its end
	id := w.redrive(`{"queue":"q","rate":40}`).ID
	w.until("it runs", func() bool { return w.redriveState(id).Progress.Moved > 0 })
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q"}`).want(t, 503)
	at := w.redriveState(id).Progress.Moved
	w.do("GET", "/api/v1/pop/queue/none?wait=true&timeout=1500", "") // a second in which a chunk would have been due
	if now := w.redriveState(id).Progress.Moved; now > at+10 || now == 160 {
		t.Errorf("%d moved under maintenance, %d before", now, at)
	}
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	if r := w.ended(id); r.State != "done" || r.Progress.Moved != 160 {
		t.Errorf("%+v", r)
	}
}

// What the database undoes again and again ends a redrive, with the error shown; asking again goes on with the rest.
func TestARedriveThatTheDatabaseUndoesFailsAndIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.redrivePause = time.Millisecond })
	w.bulk("q", "p", 300) // the first transaction takes 250
	for _, sql := range []string{
		`CREATE FUNCTION queen.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'P4711'; END $$`,
		`CREATE TRIGGER refuse BEFORE DELETE ON queen.log_dlq FOR EACH ROW WHEN (OLD.offset_ = 299) EXECUTE FUNCTION queen.refuse()`,
	} {
		if _, err := w.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	r := w.ended(w.redrive(`{"queue":"q","rate":1000}`).ID)
	if r.State != "failed" || r.ErrorMessage == nil || !strings.Contains(*r.ErrorMessage, "SQLSTATE P4711") || r.Progress.Moved != 250 || r.Progress.Remaining != 50 {
		t.Fatalf("%+v", r)
	}
	if _, err := w.pool.Exec(t.Context(), `DROP TRIGGER refuse ON queen.log_dlq`); err != nil {
		t.Fatal(err)
	}
	if r := w.ended(w.redrive(`{"queue":"q","rate":1000}`).ID); r.State != "done" || r.Progress.Moved != 50 {
		t.Fatalf("%+v", r)
	}
	if n := len(w.drain("q")["p"]); n != 300 {
		t.Errorf("%d messages, want each of 300 once", n)
	}
}

// A gateway learns from a header what a replay or redrive stores, since the plan counts it.
func TestAReplaySaysWhatItStores(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 3)
	ids := w.letters("queue=q").Messages
	w.push(fmt.Sprintf(`{"items":[{"queue":"q","partition":"p","transactionId":"dlq:%s","payload":1}]}`, ids[0].ID))
	for i, want := range []string{"0", "1"} {
		if a := w.do("POST", "/api/v1/dlq/"+ids[i].ID+"/replay", "").want(t, 200); a.header.Get(wire.HeaderStored) != want {
			t.Errorf("replay %d: %q stored, want %s: %s", i, a.header.Get(wire.HeaderStored), want, a.body)
		}
	}
	if a := w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q"}`).want(t, 202); a.header.Get(wire.HeaderStored) != "1" {
		t.Errorf("redrive: %q", a.header.Get(wire.HeaderStored))
	}
	if a := w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q","dryRun":true}`).want(t, 200); a.header.Get(wire.HeaderStored) != "" {
		t.Errorf("a dry run: %q", a.header.Get(wire.HeaderStored))
	}
}
