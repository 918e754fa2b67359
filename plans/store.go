package plans

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// catalogue is the control database as rows, as far as a gateway reads it.
type catalogue struct {
	tenants   map[uuid.UUID]tenantRow
	cells     map[string]*Cell
	plans     map[string]*Plan
	clusters  map[uuid.UUID]clusterRow
	operators map[uuid.UUID]bool
	roles     map[uuid.UUID]map[uuid.UUID][]Role // user, cluster
	keys      map[uuid.UUID]keyRow
	revoked   map[string]time.Time
	issuers   map[uuid.UUID]*Issuer // active ones
	cutoffs   map[uuid.UUID]Cutoff

	raw rawRows // what was found, as it came; nil unless that is kept
}

type tenantRow struct {
	slug   string
	status Status
	zone   Zone
}

type clusterRow struct {
	slug         string
	tenant       uuid.UUID
	brokerTenant uuid.UUID
	cell         string
	spread       int
	plan         string
	status       Status
	overrides    Overrides
	policies     policies
	modes        map[string]Mode
}

type keyRow struct {
	key     Key // without its cluster
	cluster uuid.UUID
}

// changes says what to read again, by kind of the change log.
type changes struct {
	all                                   bool
	tenants, clusters, users, roles, keys []uuid.UUID
	issuers, cutoffs                      []uuid.UUID
	cells, plans, sessions                []string
}

// note adds a row of the change log. An id that is none means that this program is older than the row: all is read.
func (c *changes) note(kind, id string) {
	var ids *[]uuid.UUID
	switch kind {
	case "cell":
		c.cells = append(c.cells, id)
		return
	case "plan":
		c.plans = append(c.plans, id)
		return
	case "session":
		c.sessions = append(c.sessions, id)
		return
	case "tenant":
		ids = &c.tenants
	case "cluster":
		ids = &c.clusters
	case "user":
		ids = &c.users
	case "role":
		ids = &c.roles
	case "key":
		ids = &c.keys
	case "issuer":
		ids = &c.issuers
	case "cutoff":
		ids = &c.cutoffs
	default:
		c.all = true
		return
	}
	u, err := uuid.Parse(id)
	if err != nil {
		c.all = true
		return
	}
	*ids = append(*ids, u)
}

// The statements that read the catalogue. Each is run whole, or with " WHERE <key> = ANY ($1)" for what changed; the
// keys are primary keys, except that of roles, which leads the primary key. No locks: they run in one read-only
// snapshot.
const (
	sqlTenants = `SELECT id, slug, status, time_zone FROM queengate.tenants`
	sqlCells   = `SELECT slug, base_url, status FROM queengate.cells`
	sqlPlans   = `SELECT code, name, cell_class, active, max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst,
	max_delivery_per_sec, delivery_burst, max_queues, max_partitions_per_queue, max_parked_pops, max_payload_bytes, max_batch_items, max_body_bytes,
	max_retained_bytes, max_retention_seconds, monthly_msgs_quota, unbounded_retention, monthly_basis, features, modes
	FROM queengate.plans`
	sqlClusters = `SELECT id, slug, tenant_id, broker_tenant_uuid, cell, spread, plan_code, status, overrides,
	unbounded_retention, monthly_basis, modes
	FROM queengate.clusters`
	sqlOperators = `SELECT id FROM (SELECT id FROM queengate.users WHERE is_operator) AS operators`
	sqlRoles     = `SELECT user_id, cluster_id, role FROM queengate.cluster_roles`
	sqlKeys      = `SELECT id, cluster_id, hash, public_id, name, scopes, not_before, expires_at, allowed_cidrs,
	max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst, coalesce(limited_as, id)
	FROM (SELECT * FROM queengate.api_keys WHERE revoked_at IS NULL) AS live`
	sqlRevoked = `SELECT jti, expires_at FROM queengate.revoked_tokens`
	sqlIssuers = `SELECT id, tenant_id, name, issuer, coalesce(jwks_url, ''), audience, algorithms, rules
	FROM (SELECT * FROM queengate.issuers WHERE active) AS active`
	sqlCutoffs = `SELECT id, tenant_id, issuer_id, cluster_id, coalesce(subject, ''), not_before FROM queengate.token_cutoffs`
)

// sqlChanges reads the change log from the row that was seen last, that row included, at most limit rows.
const sqlChanges = `SELECT seq, at, kind, id FROM queengate.inval_log WHERE seq >= $1 ORDER BY seq LIMIT $2`

const sqlNewest = `SELECT seq, at FROM queengate.inval_log ORDER BY seq DESC LIMIT 1`

// newReading returns an empty catalogue and what fills it with all that ch names.
func newReading(ch *changes) (*catalogue, reading) {
	c := &catalogue{
		tenants: map[uuid.UUID]tenantRow{}, cells: map[string]*Cell{}, plans: map[string]*Plan{},
		clusters: map[uuid.UUID]clusterRow{}, operators: map[uuid.UUID]bool{},
		roles: map[uuid.UUID]map[uuid.UUID][]Role{}, keys: map[uuid.UUID]keyRow{}, revoked: map[string]time.Time{},
		issuers: map[uuid.UUID]*Issuer{}, cutoffs: map[uuid.UUID]Cutoff{},
	}
	var b reading
	queue(&b, ch, sqlTenants, "id", ch.tenants, c.scanTenant)
	queue(&b, ch, sqlCells, "slug", ch.cells, c.scanCell)
	queue(&b, ch, sqlPlans, "code", ch.plans, c.scanPlan)
	queue(&b, ch, sqlClusters, "id", ch.clusters, c.scanCluster)
	queue(&b, ch, sqlOperators, "id", ch.users, c.scanOperator)
	queue(&b, ch, sqlRoles, "user_id", ch.roles, c.scanRole)
	queue(&b, ch, sqlKeys, "id", ch.keys, c.scanKey)
	queue(&b, ch, sqlRevoked, "jti", ch.sessions, c.scanRevoked)
	queue(&b, ch, sqlIssuers, "id", ch.issuers, c.scanIssuer)
	queue(&b, ch, sqlCutoffs, "id", ch.cutoffs, c.scanCutoff)
	return c, b
}

// fetch reads what ch names in one round trip (two for a statement's first use on a connection); keep has the rows kept
// too.
func fetch(ctx context.Context, tx pgx.Tx, ch *changes, keep bool) (*catalogue, error) {
	c, asked := newReading(ch)
	if len(asked) == 0 {
		return c, nil
	}
	if keep {
		c.raw = rawRows{}
	}
	var b pgx.Batch
	for _, q := range asked {
		q.send(&b, c.raw)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("read catalogue: %w", err)
	}
	return c, nil
}

// restore reads the whole catalogue from rows that were kept.
func restore(raw rawRows) (*catalogue, error) {
	c, asked := newReading(&changes{all: true})
	for _, q := range asked {
		if err := q.replay(raw); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *catalogue) scanTenant(rows pgx.Rows) error {
	var id uuid.UUID
	var r tenantRow
	var status, zone string
	if err := rows.Scan(&id, &r.slug, &status, &zone); err != nil {
		return err
	}
	r.status, r.zone = ParseStatus(status), Zone(zone)
	c.tenants[id] = r
	return nil
}

func (c *catalogue) scanCell(rows pgx.Rows) error {
	var cell Cell
	if err := rows.Scan(&cell.Slug, &cell.BaseURL, &cell.Status); err != nil {
		return err
	}
	c.cells[cell.Slug] = &cell
	return nil
}

func (c *catalogue) scanPlan(rows pgx.Rows) error {
	var p Plan
	var features, modes []byte
	var unbounded, basis string
	l := &p.Limits
	err := rows.Scan(&p.Code, &p.Name, &p.CellClass, &p.Active, &l.RequestsPerSecond, &l.RequestsBurst,
		&l.MessagesPerSecond, &l.MessagesBurst, &l.DeliveryPerSecond, &l.DeliveryBurst, &l.MaxQueues, &l.MaxPartitionsPerQueue, &l.MaxParkedPops,
		&l.MaxPayloadBytes, &l.MaxBatchItems, &l.MaxBodyBytes, &l.MaxRetainedBytes, &l.MaxRetentionSeconds,
		&l.MonthlyMessages, &unbounded, &basis, &features, &modes)
	if err != nil {
		return err
	}
	l.Unbounded, l.Basis = ParseUnbounded(unbounded), ParseBasis(basis)
	if err := json.Unmarshal(features, &p.Features); err != nil {
		return fmt.Errorf("plan %s: features: %w", p.Code, err)
	}
	if l.Modes, err = ParseModes(modes); err != nil {
		return fmt.Errorf("plan %s: %w", p.Code, err)
	}
	c.plans[p.Code] = &p
	return nil
}

func (c *catalogue) scanCluster(rows pgx.Rows) error {
	var id uuid.UUID
	var r clusterRow
	var status string
	var overrides, modes []byte
	var unbounded, basis *string
	err := rows.Scan(&id, &r.slug, &r.tenant, &r.brokerTenant, &r.cell, &r.spread, &r.plan, &status, &overrides,
		&unbounded, &basis, &modes)
	if err != nil {
		return err
	}
	r.status, r.policies = ParseStatus(status), parsePolicies(unbounded, basis)
	// Most clusters have neither, and at ten thousand of them the parser would be half the cost of a load.
	if len(overrides) > len("{}") {
		if r.overrides, err = ParseOverrides(overrides); err != nil {
			return fmt.Errorf("cluster %s: %w", r.slug, err)
		}
	}
	if len(modes) > len("{}") {
		if r.modes, err = ParseModes(modes); err != nil {
			return fmt.Errorf("cluster %s: %w", r.slug, err)
		}
	}
	c.clusters[id] = r
	return nil
}

func (c *catalogue) scanOperator(rows pgx.Rows) error {
	var id uuid.UUID
	if err := rows.Scan(&id); err != nil {
		return err
	}
	c.operators[id] = true
	return nil
}

func (c *catalogue) scanRole(rows pgx.Rows) error {
	var user, cluster uuid.UUID
	var name string
	if err := rows.Scan(&user, &cluster, &name); err != nil {
		return err
	}
	if c.roles[user] == nil {
		c.roles[user] = map[uuid.UUID][]Role{}
	}
	if role := ParseRole(name); role != RoleNone {
		c.roles[user][cluster] = append(c.roles[user][cluster], role)
	}
	return nil
}

func (c *catalogue) scanKey(rows pgx.Rows) error {
	var r keyRow
	var hash []byte
	var scopes []string
	var notBefore, expiresAt *time.Time
	var cidrs []netip.Prefix
	k := &r.key
	var requests, requestsBurst, messages, messagesBurst *float64
	err := rows.Scan(&k.ID, &r.cluster, &hash, &k.PublicID, &k.Name, &scopes, &notBefore, &expiresAt, &cidrs,
		&requests, &requestsBurst, &messages, &messagesBurst, &k.LimitedAs)
	if err != nil {
		return err
	}
	if len(hash) != sha256.Size {
		return fmt.Errorf("key %s: hash of %d bytes", k.PublicID, len(hash))
	}
	k.Hash = [sha256.Size]byte(hash)
	k.Scopes = ParseScopes(scopes)
	if notBefore != nil {
		k.NotBefore = *notBefore
	}
	if expiresAt != nil {
		k.ExpiresAt = *expiresAt
	}
	k.CIDRs = cidrs
	k.Limits = newKeyLimits(requests, requestsBurst, messages, messagesBurst)
	c.keys[k.ID] = r
	return nil
}

func (c *catalogue) scanRevoked(rows pgx.Rows) error {
	var jti string
	var expires time.Time
	if err := rows.Scan(&jti, &expires); err != nil {
		return err
	}
	c.revoked[jti] = expires
	return nil
}

func (c *catalogue) scanIssuer(rows pgx.Rows) error {
	var i Issuer
	var rules []byte
	if err := rows.Scan(&i.ID, &i.Tenant, &i.Name, &i.URL, &i.KeysURL, &i.Audience, &i.Algorithms, &rules); err != nil {
		return err
	}
	var err error
	if i.Rules, err = ParseClaimRules(rules); err != nil {
		return fmt.Errorf("issuer %s: %w", i.ID, err)
	}
	c.issuers[i.ID] = &i
	return nil
}

func (c *catalogue) scanCutoff(rows pgx.Rows) error {
	var id, tenant uuid.UUID
	var issuer, cluster *uuid.UUID
	var subject string
	var cut Cutoff
	if err := rows.Scan(&id, &tenant, &issuer, &cluster, &subject, &cut.Before); err != nil {
		return err
	}
	switch {
	case issuer != nil:
		cut.Of, cut.Subject = *issuer, subject
	case subject == "":
		cut.Of = tenant
	default:
		user, err := uuid.Parse(subject)
		if err != nil {
			return fmt.Errorf("cut-off %s: the subject is no user id", id)
		}
		if cut.Of = user; cluster != nil {
			cut.Of, cut.User = *cluster, user
		}
	}
	c.cutoffs[id] = cut
	return nil
}
