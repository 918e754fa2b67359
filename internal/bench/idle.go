package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/migrations"
)

// Sizes of the cases about what nothing costs, those of the targets.
const (
	idleQueues  = 10_000
	idlePolls   = 10_000
	parkedPolls = 5_000
	firstPolls  = 500 // before the memory is read first

	// reported is how long PostgreSQL may keep back what a session did that has been idle since.
	reported = 15 * time.Second
	idleFor  = 30 * time.Second // at least: some of the upkeep is due once a minute
	wakes    = 300

	parkedQueues = 50
)

// figure is one number of a case that is about no rate. Smaller is better.
type figure struct {
	name          string
	unit          string
	value         float64
	floor, target float64 // 0: none
}

// idleWorld is a database of its own with many queues, for brokers that do nothing.
type idleWorld struct {
	*world
	bin string
	dsn string
	db  *pgxpool.Pool
}

const idleDatabase = "idle"

// idleness is what nothing costs.
func (w *world) idleness() group {
	return group{
		name: "idle", alone: true,
		// Every broker that is measured starts on a database that has the queues.
		prepare: func(ctx context.Context) error {
			_, err := w.with(ctx, func(i *idleWorld, b *lone) ([]figure, error) {
				if _, err := b.serving(ctx, "/livez"); err != nil {
					return nil, err
				}
				return nil, i.use(ctx, b)
			})
			return err
		},
		cases: []kase{
			{"idle", "a broker with 10,000 queues and no traffic", w.idleCase},
			{"parked", "a broker that holds polls", w.parkedCase},
			{"gateway-parked", "a gateway that holds polls over TLS", w.gatewayPollsCase},
		},
	}
}

// openIdle makes the database on the first call.
func (w *world) openIdle(ctx context.Context) (*idleWorld, error) {
	if w.idle != nil {
		return w.idle, nil
	}
	if _, err := w.db.Exec(ctx, "CREATE DATABASE "+idleDatabase); err != nil {
		return nil, err
	}
	cfg := w.db.Config().ConnConfig.Copy()
	cfg.Database = idleDatabase
	if err := migrations.Apply(ctx, cfg, migrations.Broker); err != nil {
		return nil, err
	}
	i := &idleWorld{world: w, bin: w.bin, dsn: fmt.Sprintf("host='%s' port=%d user=%s dbname=%s", cfg.Host, cfg.Port, cfg.User, idleDatabase)}
	var err error
	if i.db, err = pg.Open(ctx, pg.Config{DSN: i.dsn, MaxConn: 2}); err != nil {
		return nil, err
	}
	w.idle = i
	return i, nil
}

func idleQueue(n int) string { return fmt.Sprint("idle-", n) }

// use pushes a message to every queue and consumes it, so that the broker has met queue, partition and cursor of each.
// The database then shows it as an hour ago, which spares the bench the minute in which the change feed tells of it.
func (i *idleWorld) use(ctx context.Context, b *lone) error {
	const batch, workers = 200, 16
	for from := 0; from < idleQueues; from += batch {
		var body strings.Builder
		body.WriteString(`{"items":[`)
		for n := range batch {
			if n > 0 {
				body.WriteByte(',')
			}
			fmt.Fprintf(&body, `{"queue":%q,"payload":%d}`, idleQueue(from+n), n)
		}
		body.WriteString(`]}`)
		if err := b.call("POST", "/api/v1/push", body.String(), 201); err != nil {
			return err
		}
	}
	err := side(workers, func(worker int) error {
		for n := worker; n < idleQueues; n += workers {
			if err := b.call("GET", "/api/v1/pop/queue/"+idleQueue(n)+"?autoAck=true&consumerGroup=g&subscriptionMode=all", "", 200); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	_, err = i.db.Exec(ctx, `WITH log AS (UPDATE queen.log_writes SET written_at = written_at - interval '1 hour')
UPDATE queen.log_partitions SET last_write_at = last_write_at - interval '1 hour'`)
	return err
}

// warm has the broker open the sessions that it will have, whose memory is no queue's.
func (b *lone) warm() error {
	return side(32, func(worker int) error {
		for n := range 20 {
			if err := b.call("GET", fmt.Sprintf("/api/v1/pop/queue/warm-%d-%d", worker, n), "", 204); err != nil {
				return err
			}
		}
		return nil
	})
}

// side runs f in n workers side by side.
func side(n int, f func(worker int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for worker := range n {
		wg.Go(func() { errs[worker] = f(worker) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// call sends one request and checks its status.
func (b *lone) call(method, path, body string, status int) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.SetRequestURI("http://" + b.addr + path)
	req.Header.SetMethod(method)
	req.SetBodyString(body)
	if err := b.client.Do(req, resp); err != nil {
		return err
	}
	if resp.StatusCode() != status {
		return fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode(), resp.Body())
	}
	return nil
}

// with runs f on a fresh broker.
func (w *world) with(ctx context.Context, f func(i *idleWorld, b *lone) ([]figure, error)) (s sample, err error) {
	i, err := w.openIdle(ctx)
	if err != nil {
		return s, err
	}
	b, err := startLone(i.bin, i.dsn)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	s.figures, err = f(i, b)
	return s, err
}

// idleCase measures a broker with many queues and no traffic: at its start, and after it has met them all.
func (w *world) idleCase(ctx context.Context, d time.Duration) (sample, error) {
	return w.with(ctx, func(i *idleWorld, b *lone) ([]figure, error) {
		cold, err := b.serving(ctx, "/api/v1/pop/queue/"+idleQueue(1)+"?consumerGroup=g")
		if err != nil {
			return nil, err
		}
		if err := b.warm(); err != nil {
			return nil, err
		}
		before, err := b.memory()
		if err != nil {
			return nil, err
		}
		if err := i.use(ctx, b); err != nil {
			return nil, err
		}
		out, err := i.quiet(ctx, b, d)
		if err != nil {
			return nil, err
		}
		after, err := b.memory()
		if err != nil {
			return nil, err
		}
		return append(out,
			figure{"e1: broker heap per idle queue, partition and cursor", "KB", after.minus(before).heap / idleQueues / 1024, 5, 1.5},
			figure{"e4: resident size of a broker that has met no queue", "MB", before.resident / (1 << 20), 80, 40},
			figure{"the same after all of them were used", "MB", after.resident / (1 << 20), 0, 0},
			figure{"e5: start of the process to the first answered pop", "s", cold.Seconds(), 5, 1},
		), nil
	})
}

// quiet measures what a broker and its database do while nobody asks for anything.
func (i *idleWorld) quiet(ctx context.Context, b *lone, d time.Duration) (_ []figure, err error) {
	d = max(d, idleFor)
	// What the database does for itself is not the broker's.
	if err := i.autovacuum(ctx, false); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, i.autovacuum(context.WithoutCancel(ctx), true)) }()
	if err := settle(ctx, reported); err != nil {
		return nil, err
	}
	commits, err := i.commits(ctx)
	if err != nil {
		return nil, err
	}
	broker, database := runTime(b.cmd.Process.Pid), i.databaseTime(ctx)
	began := time.Now()
	if err := settle(ctx, d); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	broker, database = runTime(b.cmd.Process.Pid)-broker, i.databaseTime(ctx)-database
	after, err := i.commits(ctx)
	if err != nil {
		return nil, err
	}
	return []figure{
		{"e2: CPU of an idle broker and its part of PostgreSQL", "cores", (broker + database).Seconds() / took, 0.05, 0.015},
		{"the broker alone", "cores", broker.Seconds() / took, 0, 0},
		{"e3: SQL statements per second", "1/s", float64(after-commits) / took, 10, 2},
	}, nil
}

// autovacuum turns it on or off.
func (i *idleWorld) autovacuum(ctx context.Context, on bool) error {
	if _, err := i.world.db.Exec(ctx, fmt.Sprintf("ALTER SYSTEM SET autovacuum = %v", on)); err != nil {
		return err
	}
	_, err := i.world.db.Exec(ctx, "SELECT pg_reload_conf()")
	return err
}

func settle(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// commits returns the transactions of the database so far, but for those of the bench, which asks from another one.
func (i *idleWorld) commits(ctx context.Context) (n int64, err error) {
	err = i.world.db.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1`, idleDatabase).Scan(&n)
	return n, err
}

// databaseTime returns the processor time of the sessions of the idle database.
func (i *idleWorld) databaseTime(ctx context.Context) (sum time.Duration) {
	rows, err := i.world.db.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = $1`, idleDatabase)
	if err != nil {
		return 0
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if rows.Scan(&pid) == nil {
			sum += runTime(pid)
		}
	}
	return sum
}

// crowd is parked polls: connections with a request each that nobody has answered.
type crowd []net.Conn

// park opens polls until there are n, one after the other on queues 0, 1, …, queues-1, 0, …, and waits until the broker
// holds all of them and no others.
func (b *lone) park(ctx context.Context, c crowd, n, queues int) (crowd, error) {
	for k := len(c); k < n; k++ {
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			return c, fmt.Errorf("poll %d of %d: %w", k, n, err)
		}
		c = append(c, conn)
		_, err = fmt.Fprintf(conn, "GET /api/v1/pop/queue/%s?wait=true&timeout=300000&consumerGroup=g HTTP/1.1\r\nHost: bench\r\nAccept: application/json\r\nUser-Agent: bench\r\n\r\n", idleQueue(k%queues))
		if err != nil {
			return c, err
		}
	}
	for {
		metrics, err := b.get("/metrics")
		if err != nil {
			return c, err
		}
		if strings.Contains(metrics, fmt.Sprintf("\nqueengate_broker_parked_polls %v\n", float64(n))) {
			return c, nil
		}
		if err := settle(ctx, 50*time.Millisecond); err != nil {
			return c, err
		}
	}
}

func (c crowd) leave() {
	for _, conn := range c {
		_ = conn.Close() // the broker notices
	}
}

// parkedCase measures a broker that holds polls: their memory, how fast one is woken among them, and what they cost when
// nothing happens.
func (w *world) parkedCase(ctx context.Context, d time.Duration) (sample, error) {
	if err := files(idlePolls + 1000); err != nil {
		return sample{}, err
	}
	return w.with(ctx, func(i *idleWorld, b *lone) ([]figure, error) {
		if _, err := b.serving(ctx, "/api/v1/pop/queue/"+idleQueue(1)+"?consumerGroup=g"); err != nil {
			return nil, err
		}
		// What one of everything needs is there before the first reading.
		some, err := b.park(ctx, nil, firstPolls, parkedQueues)
		defer func() { some.leave() }()
		if err != nil {
			return nil, err
		}
		before, err := b.memory()
		if err != nil {
			return nil, err
		}
		if some, err = b.park(ctx, some, firstPolls+parkedPolls, parkedQueues); err != nil {
			return nil, err
		}
		after, err := b.memory()
		if err != nil {
			return nil, err
		}
		per := after.minus(before)
		wake, err := b.wakeLatency(ctx, b)
		if err != nil {
			return nil, err
		}
		some.leave()
		if some, err = b.park(ctx, nil, idlePolls, idleQueues); err != nil {
			return nil, err
		}
		quiet, err := i.quiet(ctx, b, d)
		if err != nil {
			return nil, err
		}
		return []figure{
			{"d1: resident bytes per parked poll", "KB", per.resident / parkedPolls / 1024, 16, 10},
			{"live heap per parked poll", "KB", per.heap / parkedPolls / 1024, 0, 0},
			{"stacks per parked poll", "KB", per.stacks / parkedPolls / 1024, 0, 0},
			{"d4: wake among 5,000, push to answer, p50 over push alone", "ms", wake.percent(50), 3, 1},
			{"the same at the tenth percentile, for a machine that others use", "ms", wake.percent(10), 0, 0},
			{"d3: CPU of a broker with 10,000 polls on 10,000 queues", "cores", quiet[1].value, 0.1, 0.03},
			{"e3: SQL statements per second with them", "1/s", quiet[2].value, 10, 2},
		}, nil
	})
}

// wakeTimes are the durations of pushes, and until a poll had the message of each, sorted.
type wakeTimes struct{ push, whole []time.Duration }

// percent returns how many milliseconds longer the second took, at a percentile of both.
func (w wakeTimes) percent(p int) float64 {
	return math.Max(0, ms(w.whole[len(w.whole)*p/100]-w.push[len(w.push)*p/100]))
}

// wakeLatency measures how long it takes from a push to the broker from until a poll on b has its message.
func (b *lone) wakeLatency(ctx context.Context, from *lone) (w wakeTimes, err error) {
	queue := fresh("wake")
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		return w, err
	}
	defer conn.Close()
	type arrival struct {
		at  time.Time
		err error
	}
	arrivals := make(chan arrival, 1)
	poll := func() error {
		_, err := fmt.Fprintf(conn, "GET /api/v1/pop/queue/%s?wait=true&timeout=30000&consumerGroup=g&subscriptionMode=all&autoAck=true HTTP/1.1\r\nHost: bench\r\n\r\n", queue)
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 16<<10)
			n, err := conn.Read(buf) // the answer is one packet
			if err == nil && !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200") {
				err = fmt.Errorf("poll: %s", buf[:n])
			}
			arrivals <- arrival{time.Now(), err}
		}()
		return nil
	}
	for range wakes {
		if err := poll(); err != nil {
			return w, err
		}
		if err := settle(ctx, 3*time.Millisecond); err != nil { // it is parked by then
			return w, err
		}
		began := time.Now()
		if err := from.call("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"partition":"p","payload":%s}]}`, queue, payload), 201); err != nil {
			return w, err
		}
		w.push = append(w.push, time.Since(began))
		a := <-arrivals
		if a.err != nil && !errors.Is(a.err, io.EOF) {
			return w, a.err
		}
		w.whole = append(w.whole, a.at.Sub(began))
	}
	slices.Sort(w.push)
	slices.Sort(w.whole)
	return w, nil
}
