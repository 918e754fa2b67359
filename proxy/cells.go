package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// Cells is the gateway's own business with the brokers of all cells: where they are, how it proves itself to them, and
// what it asks them about tenants. It is the Seeder and the Measurer of the gateway's ledger. Safe for concurrent use.
type Cells struct {
	log    *slog.Logger
	book   Book
	pools  *pools
	tokens *cellTokens
	dialer *upstreamDialer
}

var (
	_ quota.Seeder   = (*Cells)(nil)
	_ quota.Measurer = (*Cells)(nil)
)

func newCells(log *slog.Logger, c *Config, book Book) *Cells {
	d := &upstreamDialer{connectTime: c.ConnectTime, maxIdle: c.MaxIdleUpstreams}
	tokens := newCellTokens(c.CellKey)
	return &Cells{log: log, book: book, pools: newPools(log, c, d, tokens), tokens: tokens, dialer: d}
}

// subjectGateway is who asks when no client does.
const subjectGateway = "gateway"

// maxInternalAnswer bounds what is read of an answer to a question of ours.
const maxInternalAnswer = 16 << 20

// ask makes one internal call to a ready broker of the cell on behalf of a cluster and reads the JSON answer into out.
func (cs *Cells) ask(ctx context.Context, p *pool, as *plans.Cluster, method, path string, body []byte, out any) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("an internal call without a deadline")
	}
	b := p.pick(homeKey(as.BrokerTenant, 0), needReady, nil)
	if b == nil {
		return fmt.Errorf("cell %s has no ready broker", p.cell)
	}
	now := time.Now()
	tok, err := cs.tokens.of(as, wire.AccessInternal, subjectGateway, false, now)
	if err != nil {
		return err
	}
	head := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n%s%s: %s\r\nContent-Length: %d\r\n",
		method, path, b.host, tok.lines, wire.HeaderRequestID, httpkit.NewRequestID(), len(body))
	if len(body) > 0 {
		head = append(head, "Content-Type: application/json\r\n"...)
	}
	head = append(head, "\r\n"...)
	a, far, err := cs.dialer.do(b, nil, head, body, deadline)
	if err != nil {
		b.fell(far, err)
		return fmt.Errorf("ask %s of broker %s: %w", path, b.address, err)
	}
	status := a.status()
	b.answered(a)
	var text []byte
	if s := a.resp.BodyStream(); s != nil {
		if text, err = io.ReadAll(io.LimitReader(s, maxInternalAnswer+1)); err != nil || len(text) > maxInternalAnswer {
			a.abandon()
			return fmt.Errorf("read %s of broker %s: %w", path, b.address, err)
		}
	}
	a.release()
	if status != 200 {
		return fmt.Errorf("ask %s of broker %s: status %d", path, b.address, status)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("read %s of broker %s: %w", path, b.address, err)
	}
	return nil
}

// namesPage is how many names one question asks for.
const namesPage = 5000

// Seed implements quota.Seeder with the names the cluster's brokers know.
func (cs *Cells) Seed(ctx context.Context, c *plans.Cluster, each func(quota.Pair) error) error {
	p, err := cs.pools.of(cs.book.Snapshot(), c.Cell)
	if err != nil {
		return err
	}
	var after wire.QueuePartition
	for {
		path := "/internal/v1/tenants/" + c.BrokerTenant.String() + "/names?limit=" + strconv.Itoa(namesPage)
		if after != (wire.QueuePartition{}) {
			path += "&after_queue=" + url.QueryEscape(after.Queue) + "&after_partition=" + url.QueryEscape(after.Partition)
		}
		var page wire.NamesPage
		if err := cs.ask(ctx, p, c, "GET", path, nil, &page); err != nil {
			return err
		}
		for _, n := range page.Names {
			if err := each(quota.Pair{Queue: n.Queue, Partition: n.Partition}); err != nil {
				return err
			}
		}
		if !page.More || len(page.Names) == 0 {
			return nil
		}
		after = page.Names[len(page.Names)-1]
	}
}

// Measure implements quota.Measurer.
func (cs *Cells) Measure(ctx context.Context, c *plans.Cluster) (quota.Usage, error) {
	found, err := cs.usage(ctx, c.Cell, []uuid.UUID{c.BrokerTenant})
	if err != nil {
		return quota.Usage{}, err
	}
	for _, u := range found {
		if u.Tenant == c.BrokerTenant {
			return quota.Usage{RetainedBytes: u.RetainedBytes, ComputedAt: u.ComputedAt}, nil
		}
	}
	return quota.Usage{}, fmt.Errorf("cell %s says nothing of the cluster", c.Cell)
}

// usage asks a cell how many bytes the tenants of some clusters retain.
func (cs *Cells) usage(ctx context.Context, cell string, tenants []uuid.UUID) ([]wire.TenantUsage, error) {
	p, err := cs.pools.of(cs.book.Snapshot(), cell)
	if err != nil {
		return nil, err
	}
	var all []wire.TenantUsage
	for some := range slices.Chunk(tenants, wire.MaxUsageTenants) {
		body, err := json.Marshal(wire.UsageQuestion{Tenants: some})
		if err != nil {
			return nil, fmt.Errorf("encode the question of usage: %w", err)
		}
		var answer wire.UsageAnswer
		// The question is about many tenants, so it is asked as none of them.
		if err := cs.ask(ctx, p, &p.self, "POST", "/internal/v1/tenants/usage", body, &answer); err != nil {
			return nil, err
		}
		all = append(all, answer.Tenants...)
	}
	return all, nil
}

// Retained returns the raw payload bytes that the cluster's cell holds of it. Errors are of the cell; ctx needs a deadline.
func (cs *Cells) Retained(ctx context.Context, c *plans.Cluster) (bytes int64, err error) {
	found, err := cs.usage(ctx, c.Cell, []uuid.UUID{c.BrokerTenant})
	if err != nil {
		return 0, err
	}
	for _, u := range found {
		bytes += u.RetainedBytes
	}
	return bytes, nil
}

// Wipe has the cluster's cell take some steps of the removal of all it holds of the cluster, for good: from then on the cell
// takes nothing of it any more. Call it until the answer says that it is done; it may be called by anybody at any time.
// Errors are of the cell, and then some steps may have been taken; ctx needs a deadline.
func (cs *Cells) Wipe(ctx context.Context, c *plans.Cluster) (answer wire.WipeAnswer, err error) {
	p, err := cs.pools.of(cs.book.Snapshot(), c.Cell)
	if err != nil {
		return answer, err
	}
	err = cs.ask(ctx, p, c, "POST", "/internal/v1/tenants/"+c.BrokerTenant.String()+"/wipe", nil, &answer)
	return answer, err
}

// followUsage asks every cell, once per UsageInterval, what the clusters that were in use lately retain, and hands the
// measures to the ledger. In a fleet one gateway asks for all; which, the ledger says. Cells are asked side by side: a dead
// one delays no other.
func (g *Gateway) followUsage(ctx context.Context) error {
	tick := time.NewTicker(g.cfg.UsageInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			g.measureUsage(ctx, now)
		}
	}
}

// recently is how long after its last request a cluster's usage is still followed: deletions and retention go on.
const recently = time.Minute

// measureUsage asks once. Only clusters with a cap on retained bytes are asked for.
func (g *Gateway) measureUsage(ctx context.Context, now time.Time) {
	snap := g.book.Snapshot()
	byCell := map[string][]uuid.UUID{}
	for _, id := range g.loads.active(now.Add(-recently), now) {
		if c := snap.ClusterByID(id); c != nil && c.Limits.MaxRetainedBytes != nil {
			byCell[c.Cell] = append(byCell[c.Cell], id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.UsageInterval)
	defer cancel()
	var asking errgroup.Group
	for cell, served := range byCell {
		asking.Go(func() error {
			ids, since := g.gate.UsageDuty(ctx, cell, served, g.cfg.UsageInterval)
			if err := g.measureCell(ctx, snap, cell, ids, since); err != nil {
				g.log.Warn("usage is not known", "cell", cell, "err", err)
				g.gate.UsageFailed(ctx, cell)
			}
			return nil // the last measure stays in force
		})
	}
	// No member fails.
	_ = asking.Wait()
}

// measureCell asks a cell what some clusters retain, and tells the ledger.
func (g *Gateway) measureCell(ctx context.Context, snap *plans.Snapshot, cell string, ids []uuid.UUID, since time.Time) error {
	clusters := make(map[uuid.UUID]*plans.Cluster, len(ids))
	tenants := make([]uuid.UUID, 0, len(ids))
	for _, id := range ids {
		if c := snap.ClusterByID(id); c != nil && c.Cell == cell {
			clusters[c.BrokerTenant] = c
			tenants = append(tenants, c.BrokerTenant)
		}
	}
	if len(tenants) == 0 {
		return nil
	}
	found, err := g.cells.usage(ctx, cell, tenants)
	if err != nil {
		return err
	}
	for _, u := range found {
		if c := clusters[u.Tenant]; c != nil {
			g.gate.Measured(c, quota.Usage{RetainedBytes: u.RetainedBytes, ComputedAt: u.ComputedAt, Since: since})
		}
	}
	return nil
}
