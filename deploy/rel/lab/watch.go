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

// parkedSeries is the gauge of waiting polls.
const parkedSeries = "queengate_proxy_parked_polls"

// Parked notes, every so often until ctx ends, how many polls each gateway says to have waiting.
func (l *Lab) Parked(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		for _, g := range l.Gateways {
			began := time.Now()
			v, err := g.gauge(ctx, parkedSeries)
			if err != nil {
				continue
			}
			l.rec.Note(hist.Parked, &hist.ParkedNote{Gateway: g.Name, Polls: int(v), AskedMs: time.Since(began).Milliseconds() + 1})
		}
	}
}

// gauge reads one series without labels of a gateway's metrics.
func (g *Gateway) gauge(ctx context.Context, name string) (float64, error) {
	text, err := g.metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("%s shows no %s", g.Name, name)
}

// metrics are those that an operator sees of a gateway.
func (g *Gateway) metrics(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.ops+"/metrics", http.NoBody)
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
