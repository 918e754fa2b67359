package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// truth counts what a namespace of the brokers holds: queues, the named partitions of the queue that has most, and bytes.
const truth = `SELECT
	(SELECT count(*) FROM queen.queues WHERE tenant_id = $1),
	coalesce((SELECT max(n) FROM (SELECT count(*) FILTER (WHERE p.name <> 'Default') AS n FROM queen.queues q
		JOIN queen.log_partitions p ON p.queue_id = q.id WHERE q.tenant_id = $1 GROUP BY q.id) x), 0),
	coalesce((SELECT sum(p.retained_bytes) FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id WHERE q.tenant_id = $1), 0)::bigint`

// Watch notes, every so often until ctx ends, what the database holds of tenants. What cannot be read now is left out.
func (l *Lab) Watch(ctx context.Context, every time.Duration, tenants []*Tenant) {
	var c *pgx.Conn
	defer func() {
		if c != nil {
			_ = c.Close(context.WithoutCancel(ctx))
		}
	}()
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		if c == nil || c.IsClosed() {
			var err error
			if c, err = l.Current().Connect(ctx, database); err != nil {
				continue
			}
		}
		for _, t := range tenants {
			_ = l.see(ctx, c, t, false)
		}
	}
}

// Full notes what the database holds of a tenant whose clients have gone to its caps.
func (l *Lab) Full(ctx context.Context, t *Tenant) error {
	return l.control(ctx, func(c *pgx.Conn) error { return l.see(ctx, c, t, true) })
}

func (l *Lab) see(ctx context.Context, c *pgx.Conn, t *Tenant, full bool) error {
	n := hist.TruthNote{Cluster: t.Name, Full: full}
	if err := c.QueryRow(ctx, truth, t.Spaces).Scan(&n.Queues, &n.Partitions, &n.Bytes); err != nil {
		return fmt.Errorf("count what %s holds: %w", t.Name, err)
	}
	l.rec.Note(hist.Truth, &n)
	return nil
}

// The series of waiting polls, of a gateway and of a broker, and that of goroutines.
const (
	parkedSeries  = "queengate_proxy_parked_polls"
	waitingSeries = "queen_parked_long_polls"
	routineSeries = "go_goroutines"
)

// Parked notes, every so often until ctx ends, how many polls each gateway and each broker says to have waiting.
func (l *Lab) Parked(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		note := func(name string, metrics func(context.Context) ([]byte, error), series string) {
			began := time.Now()
			if text, err := metrics(ctx); err == nil {
				if v, ok := gauge(text, series); ok {
					l.rec.Note(hist.Parked, &hist.ParkedNote{Gateway: name, Polls: int(v), AskedMs: time.Since(began).Milliseconds() + 1})
				}
			}
		}
		for _, g := range l.Gateways {
			note(g.Name, g.metrics, parkedSeries)
		}
		for _, b := range l.Brokers {
			note(b.Name, b.metrics, waitingSeries)
		}
	}
}

// gauge finds one series without labels among metrics.
func gauge(text []byte, name string) (v float64, ok bool) {
	for line := range strings.Lines(string(text)) {
		if s, found := strings.CutPrefix(line, name+" "); found {
			v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
			return v, err == nil
		}
	}
	return 0, false
}

// atRestTime bounds the wait for processes to let go of what clients held.
const atRestTime = 12 * time.Second

// AtRest notes what each gateway and each broker holds when clients have nothing under way. After a storm it waits until
// that is what it was before it, for some seconds.
func (l *Lab) AtRest(ctx context.Context, after bool) {
	ctx, cancel := context.WithTimeout(ctx, atRestTime)
	defer cancel()
	note := func(name string, pid int, broker bool, metrics func(context.Context) ([]byte, error)) {
		for {
			n := hist.RestNote{Process: name, PID: pid, Broker: broker, After: after, Files: int(usage(pid)["files"])}
			if text, err := metrics(context.WithoutCancel(ctx)); err == nil {
				v, _ := gauge(text, routineSeries)
				n.Goroutines = int(v)
			}
			before, known := l.before[name]
			if after && known && before.PID == pid && !n.Within(&before) {
				select {
				case <-time.After(100 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
			if !after {
				if l.before == nil {
					l.before = map[string]hist.RestNote{}
				}
				l.before[name] = n
			}
			l.rec.Note(hist.Rest, &n)
			return
		}
	}
	for _, g := range l.Gateways {
		note(g.Name, g.PID(), false, g.metrics)
	}
	for _, b := range l.Brokers {
		note(b.Name, b.PID(), true, b.metrics)
	}
}

// Pools notes, every so often until ctx ends, what each gateway says of the cell's brokers.
func (l *Lab) Pools(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		for _, g := range l.Gateways {
			text, err := g.metrics(ctx)
			if err != nil {
				continue
			}
			n := hist.PoolNote{Gateway: g.Name}
			for line := range strings.Lines(string(text)) {
				if !strings.HasPrefix(line, "queengate_proxy_broker_up{") {
					continue
				}
				up := strings.HasSuffix(line, "} 1\n")
				switch {
				case strings.Contains(line, `probe="livez"`):
					n.Brokers++
					if up {
						n.Live++
					}
				case strings.Contains(line, `probe="serving"`) && up:
					n.Serving++
				}
			}
			l.rec.Note(hist.Pooled, &n)
		}
	}
}

// metrics are those that an operator sees of a broker.
func (b *Broker) metrics(ctx context.Context) ([]byte, error) {
	return page(ctx, "http://"+b.Addr+"/metrics/prometheus")
}

// metrics are those that an operator sees of a gateway.
func (g *Gateway) metrics(ctx context.Context) ([]byte, error) {
	return page(ctx, "http://"+g.ops+"/metrics")
}

func page(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(res.Body)
	return text, errors.Join(err, res.Body.Close())
}

// ScanFor notes where the logs of the product, or the metrics of its gateways, show one of some texts of tenants.
func (l *Lab) ScanFor(ctx context.Context, canaries []string) error {
	if len(canaries) == 0 {
		return nil
	}
	quoted := make([]string, len(canaries))
	for i, c := range canaries {
		quoted[i] = regexp.QuoteMeta(c)
	}
	canary := regexp.MustCompile(strings.Join(quoted, "|"))
	found := func(where string, text []byte) {
		if at := canary.FindIndex(text); at != nil {
			l.rec.Note(hist.Leak, &hist.LeakNote{Where: where, Text: string(text[max(0, at[0]-40):min(len(text), at[1]+40)])})
		}
	}
	logs, err := filepath.Glob(filepath.Join(l.dir, "log", "*.log"))
	if err != nil {
		return err
	}
	for _, name := range logs {
		if process := filepath.Base(name); strings.HasPrefix(process, "pg") || strings.HasPrefix(process, "redis") {
			continue // those are not the product's
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		found(filepath.Base(name), text)
	}
	for _, g := range l.Gateways {
		text, err := g.metrics(ctx)
		if err != nil {
			return err
		}
		found("the metrics of "+g.Name, text)
	}
	return nil
}
