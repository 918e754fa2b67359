package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// world is a control database with a cell, two tenants with a cluster each, a user of each, and a key on the first.
type world struct {
	t                  *testing.T
	pool               *pgxpool.Pool
	acme, rival        uuid.UUID
	acmeMain, rivalOne uuid.UUID
	key                uuid.UUID
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, pool: pgtest.New(t, migrations.Gateway)}
	w.exec("SELECT queengate.create_cell('eu1', 'http://127.0.0.1:6632')")
	w.acme = scan[uuid.UUID](w, "SELECT queengate.create_tenant('acme', 'Acme')")
	w.rival = scan[uuid.UUID](w, "SELECT queengate.create_tenant('rival')")
	w.acmeMain = scan[uuid.UUID](w, "SELECT queengate.create_cluster($1, 'acme-main', 'free', 'eu1')", w.acme)
	w.rivalOne = scan[uuid.UUID](w, "SELECT queengate.create_cluster($1, 'rival-one', 'dev', 'eu1')", w.rival)
	w.exec("SELECT queengate.create_user($1, 'Ann@Acme.example')", w.acme)
	w.exec("SELECT queengate.create_user($1, 'rob@rival.example', $2)", w.rival, "$2a$12$0123456789012345678901")
	w.key = scan[uuid.UUID](w, "SELECT queengate.issue_api_key($1, 'first', $2, 'AAAAAAA1', '{produce,read,read}')", w.acmeMain, hash(1))
	return w
}

func hash(n byte) []byte { return append(make([]byte, 31), n) }

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](w *world, sql string, args ...any) T {
	w.t.Helper()
	var v T
	if err := w.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// someRules are rules of an issuer that may be stored.
const someRules = `[{"claim": "repository", "value": "acme/orders", "roles": ["producer"]}]`

// TestEveryWriterIsAuditedAndAnnounced calls each function once as a named user and wants exactly one operations row
// of that user, and the rows in the change log that its followers need.
func TestEveryWriterIsAuditedAndAnnounced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	steps := []struct {
		sql     string
		args    []any
		action  string
		changes []string // kinds, in order
	}{
		{"SELECT queengate.create_tenant('third')", nil, "tenant_created", []string{"tenant"}},
		{"SELECT queengate.set_tenant_status($1, 'grace')", []any{w.acme}, "tenant_status_changed", []string{"tenant"}},
		{"SELECT queengate.create_cell('eu2', 'https://cell.example:6632', 'dedicated', 'eu')", nil, "cell_created", []string{"cell"}},
		{"SELECT queengate.set_cell('eu2', p_status => 'draining')", nil, "cell_changed", []string{"cell"}},
		{"SELECT queengate.create_plan('tiny', 'Tiny', '{\"max_queues\": 1}')", nil, "plan_created", []string{"plan"}},
		{"SELECT queengate.set_plan('tiny', '{\"max_queues\": 2}')", nil, "plan_changed", []string{"plan"}},
		{"SELECT queengate.create_cluster($1, 'acme-two', 'tiny', 'eu1')", []any{w.acme}, "cluster_created", []string{"cluster"}},
		{"SELECT queengate.assign_plan($1, 'pro')", []any{w.acmeMain}, "plan_assigned", []string{"cluster"}},
		{"SELECT queengate.set_limit_override($1, '{\"max_queues\": 5, \"msgs_burst\": null}')", []any{w.acmeMain}, "limit_override_set", []string{"cluster"}},
		{"SELECT queengate.set_limit_modes($1, '{\"req\": \"shadow\"}')", []any{w.acmeMain}, "limit_modes_set", []string{"cluster"}},
		{"SELECT queengate.set_cluster_spread($1, 8)", []any{w.acmeMain}, "cluster_spread_set", []string{"cluster"}},
		{"SELECT queengate.set_plan_policies('tiny', 'refuse', 'push+delivery')", nil, "plan_policies_set", []string{"plan"}},
		{"SELECT queengate.set_cluster_policies($1, 'ceiling')", []any{w.acmeMain}, "cluster_policies_set", []string{"cluster"}},
		{"SELECT queengate.set_tenant_time_zone($1, 'Europe/Berlin')", []any{w.acme}, "tenant_time_zone_set", []string{"tenant"}},
		{"SELECT queengate.set_cluster_status($1, 'paused')", []any{w.acmeMain}, "cluster_status_changed", []string{"cluster"}},
		{"SELECT queengate.create_user($1, 'new@acme.example')", []any{w.acme}, "user_created", []string{"user"}},
		{"SELECT queengate.link_identity((SELECT id FROM queengate.users WHERE email = 'new@acme.example'), 'github', '77')", nil, "identity_linked", nil},
		{"SELECT queengate.set_operator('new@acme.example', true)", nil, "operator_set", []string{"user"}},
		{"SELECT queengate.grant_cluster_role($1, 'ann@acme.example', 'producer')", []any{w.acmeMain}, "cluster_role_granted", []string{"role"}},
		{"SELECT queengate.revoke_cluster_role($1, 'ann@acme.example', 'producer')", []any{w.acmeMain}, "cluster_role_revoked", []string{"role", "cutoff"}},
		{"SELECT queengate.issue_api_key($1, 'k', $2, NULL, '{admin}')", []any{w.acmeMain, hash(2)}, "api_key_issued", []string{"key"}},
		{"SELECT queengate.set_api_key_limits($1, $2, '{\"max_req_per_sec\": 5}')", []any{w.acmeMain, w.key}, "api_key_limited", []string{"key"}},
		{"SELECT queengate.revoke_api_key($1, $2)", []any{w.acmeMain, w.key}, "api_key_revoked", []string{"key"}},
		{"SELECT queengate.revoke_session('token-1', now() + interval '1 hour')", nil, "session_revoked", []string{"session"}},
		{"SELECT queengate.set_issuer($1, 'ci', 'https://ci.example', 'queengate', $2)", []any{w.acme, someRules}, "issuer_set", []string{"issuer"}},
		{"SELECT queengate.set_issuer($1, 'ci', 'https://ci.example', 'queues', $2)", []any{w.acme, someRules}, "issuer_set", []string{"issuer"}},
		{"SELECT queengate.set_issuer_active($1, 'ci', false)", []any{w.acme}, "issuer_active_set", []string{"issuer"}},
		{"SELECT queengate.revoke_issuer_tokens($1, 'ci', 'job-7')", []any{w.acme}, "issuer_tokens_revoked", []string{"cutoff"}},
		{"SELECT queengate.revoke_issuer_tokens($1, 'ci')", []any{w.acme}, "issuer_tokens_revoked", []string{"cutoff"}},
		{"SELECT queengate.revoke_issuer_token($1, 'ci', 'token-1', now())", []any{w.acme}, "issuer_token_revoked", []string{"session"}},
		{"SELECT queengate.revoke_user_tokens('Ann@acme.example')", nil, "user_tokens_revoked", []string{"cutoff"}},
		{"SELECT queengate.revoke_tenant_tokens($1)", []any{w.acme}, "tenant_tokens_revoked", []string{"cutoff"}},
		{"SELECT queengate.delete_issuer($1, 'ci')", []any{w.acme}, "issuer_deleted", []string{"issuer", "cutoff", "cutoff"}},
		{"SELECT queengate.delete_tenant((SELECT id FROM queengate.tenants WHERE slug = 'third'), true)", nil, "tenant_deleted", []string{"tenant"}},
	}
	ctx := t.Context()
	for _, s := range steps {
		opsBefore := scan[int64](w, "SELECT count(*) FROM queengate.operations")
		seqBefore := scan[int64](w, "SELECT max(seq) FROM queengate.inval_log")
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT queengate.act_as('user', 'u-1')"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, s.sql, s.args...)
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", s.sql, err)
			continue
		}
		if got := scan[int64](w, "SELECT count(*) FROM queengate.operations"); got != opsBefore+1 {
			t.Errorf("%s: %d operations rows, want 1", s.sql, got-opsBefore)
		}
		got := scan[string](w, "SELECT action || ' by ' || actor || ' ' || actor_id FROM queengate.operations ORDER BY at DESC LIMIT 1")
		if want := s.action + " by user u-1"; got != want {
			t.Errorf("%s: audit %q, want %q", s.sql, got, want)
		}
		kinds := scan[[]string](w, "SELECT array_agg(kind ORDER BY seq) FROM queengate.inval_log WHERE seq > $1", seqBefore)
		if diff := cmp.Diff(s.changes, kinds); diff != "" {
			t.Errorf("%s: change log (-want +got):\n%s", s.sql, diff)
		}
	}
	if got := scan[int64](w, "SELECT count(*) FROM queengate.operations WHERE actor = 'user' AND meta::text LIKE '%@%'"); got != 0 {
		t.Errorf("%d audit rows hold an address", got)
	}
}

func TestWritersRefuse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nobody := uuid.New()
	const (
		unknown  = "P0002"
		taken    = "23505"
		invalid  = "22023"
		check    = "23514"
		state    = "55000"
		foreign  = "42501"
		notNull  = "23502"
		badInput = "22P02"
	)
	w.exec("SELECT queengate.create_cell('old', 'http://h:1')")
	w.exec("SELECT queengate.set_cell('old', p_status => 'draining')")
	w.exec("SELECT queengate.create_plan('gone', 'Gone')")
	w.exec("SELECT queengate.set_plan('gone', p_active => false)")
	dying := scan[uuid.UUID](w, "SELECT queengate.create_tenant('dying')")
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", dying)
	ending := scan[uuid.UUID](w, "SELECT queengate.create_tenant('ending')")
	endingOne := scan[uuid.UUID](w, "SELECT queengate.create_cluster($1, 'ending-one', 'free', 'eu1')", ending)
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", ending)
	cases := map[string]struct {
		state string
		sql   string
		args  []any
	}{
		"a tenant slug is unique":                     {taken, "SELECT queengate.create_tenant('acme')", nil},
		"a slug has no upper case":                    {check, "SELECT queengate.create_tenant('Acme2')", nil},
		"a slug has no leading dash":                  {check, "SELECT queengate.create_tenant('-a')", nil},
		"a slug has at most 63 characters":            {check, "SELECT queengate.create_tenant(repeat('a', 64))", nil},
		"a slug is one line":                          {check, "SELECT queengate.create_tenant(E'a\\n')", nil},
		"a slug is required":                          {notNull, "SELECT queengate.create_tenant(NULL)", nil},
		"a tenant status is of the set":               {check, "SELECT queengate.set_tenant_status($1, 'asleep')", []any{w.acme}},
		"a deleting tenant stays so":                  {state, "SELECT queengate.set_tenant_status($1, 'active')", []any{dying}},
		"an unknown tenant has no status":             {unknown, "SELECT queengate.set_tenant_status($1, 'active')", []any{nobody}},
		"an unknown tenant gets no cluster":           {unknown, "SELECT queengate.create_cluster($1, 'x', 'free', 'eu1')", []any{nobody}},
		"a deleting tenant gets no cluster":           {state, "SELECT queengate.create_cluster($1, 'x', 'free', 'eu1')", []any{dying}},
		"a cluster slug is unique over all tenants":   {taken, "SELECT queengate.create_cluster($1, 'rival-one', 'free', 'eu1')", []any{w.acme}},
		"a cluster needs a plan that exists":          {unknown, "SELECT queengate.create_cluster($1, 'x', 'nope', 'eu1')", []any{w.acme}},
		"a retired plan is not given":                 {state, "SELECT queengate.create_cluster($1, 'x', 'gone', 'eu1')", []any{w.acme}},
		"a retired plan is not assigned":              {state, "SELECT queengate.assign_plan($1, 'gone')", []any{w.acmeMain}},
		"a cluster needs a cell that exists":          {unknown, "SELECT queengate.create_cluster($1, 'x', 'free', 'nope')", []any{w.acme}},
		"a draining cell takes no cluster":            {state, "SELECT queengate.create_cluster($1, 'x', 'free', 'old')", []any{w.acme}},
		"an unknown plan is not assigned":             {unknown, "SELECT queengate.assign_plan($1, 'nope')", []any{w.acmeMain}},
		"an unknown cluster gets no plan":             {unknown, "SELECT queengate.assign_plan($1, 'free')", []any{nobody}},
		"an override names a limit":                   {invalid, "SELECT queengate.set_limit_override($1, '{\"max_quues\": 1}')", []any{w.acmeMain}},
		"an override is a number or null":             {invalid, "SELECT queengate.set_limit_override($1, '{\"max_queues\": \"1\"}')", []any{w.acmeMain}},
		"an override is not negative":                 {invalid, "SELECT queengate.set_limit_override($1, '{\"max_queues\": -1}')", []any{w.acmeMain}},
		"a count is whole":                            {invalid, "SELECT queengate.set_limit_override($1, '{\"max_queues\": 1.5}')", []any{w.acmeMain}},
		"a count is bounded":                          {invalid, "SELECT queengate.set_limit_override($1, '{\"max_queues\": 1e16}')", []any{w.acmeMain}},
		"overrides are an object":                     {invalid, "SELECT queengate.set_limit_override($1, '[1]')", []any{w.acmeMain}},
		"a feature cannot be overridden":              {invalid, "SELECT queengate.set_limit_override($1, '{\"features\": null}')", []any{w.acmeMain}},
		"a mode names a limit":                        {invalid, "SELECT queengate.set_limit_modes($1, '{\"request\": \"off\"}')", []any{w.acmeMain}},
		"a mode is of the set":                        {invalid, "SELECT queengate.set_limit_modes($1, '{\"req\": \"on\"}')", []any{w.acmeMain}},
		"a cluster status is of the set":              {check, "SELECT queengate.set_cluster_status($1, 'asleep')", []any{w.acmeMain}},
		"a plan code is unique":                       {taken, "SELECT queengate.create_plan('free', 'x')", nil},
		"a plan code begins with a letter":            {check, "SELECT queengate.create_plan('1x', 'x')", nil},
		"a plan limit is known":                       {invalid, "SELECT queengate.create_plan('x', 'x', '{\"slug\": 1}')", nil},
		"a feature is a boolean":                      {check, "SELECT queengate.create_plan('x', 'x', '{}', '{\"kv\": 1}')", nil},
		"a legal batch fits the burst":                {invalid, "SELECT queengate.set_plan('free', '{\"max_batch_items\": 101}')", nil},
		"a legal batch fits the default burst":        {invalid, "SELECT queengate.set_plan('free', '{\"msgs_burst\": null}')", nil},
		"a burst holds one request":                   {invalid, "SELECT queengate.set_plan('free', '{\"req_burst\": 0.5}')", nil},
		"a burst holds one delivery":                  {invalid, "SELECT queengate.set_plan('free', '{\"max_delivery_per_sec\": 1, \"delivery_burst\": 0.5}')", nil},
		"a payload fits the body":                     {invalid, "SELECT queengate.set_plan('free', '{\"max_body_bytes\": 1000}')", nil},
		"an unknown plan is not changed":              {unknown, "SELECT queengate.set_plan('nope')", nil},
		"a cell address has no path":                  {check, "SELECT queengate.create_cell('c', 'http://h:1/x')", nil},
		"a cell address is http":                      {check, "SELECT queengate.set_cell('eu1', 'ftp://h')", nil},
		"each address of a cell has no path":          {check, "SELECT queengate.set_cell('eu1', 'http://h:1,http://h:2/x')", nil},
		"a name for addresses is http":                {check, "SELECT queengate.set_cell('eu1', 'dns+ftp://h')", nil},
		"a spread is at least one":                    {check, "SELECT queengate.set_cluster_spread($1, 0)", []any{w.acmeMain}},
		"a spread is at most 256":                     {check, "SELECT queengate.set_cluster_spread($1, 257)", []any{w.acmeMain}},
		"a spread is a number":                        {"23502", "SELECT queengate.set_cluster_spread($1, NULL)", []any{w.acmeMain}},
		"a cell status is of the set":                 {check, "SELECT queengate.set_cell('eu1', p_status => 'up')", nil},
		"an unknown cell is not changed":              {unknown, "SELECT queengate.set_cell('nope')", nil},
		"an address is unique without regard to case": {taken, "SELECT queengate.create_user($1, 'ANN@acme.example')", []any{w.rival}},
		"an address has one at sign":                  {check, "SELECT queengate.create_user($1, 'a@b@c')", []any{w.acme}},
		"a role is of the set":                        {check, "SELECT queengate.grant_cluster_role($1, 'ann@acme.example', 'owner')", []any{w.acmeMain}},
		"a role is granted within the tenant":         {foreign, "SELECT queengate.grant_cluster_role($1, 'rob@rival.example', 'viewer')", []any{w.acmeMain}},
		"a role across tenants cannot be stored":      {"23503", "INSERT INTO queengate.cluster_roles SELECT $1, id, $2, 'viewer' FROM queengate.users WHERE email = 'rob@rival.example'", []any{w.acme, w.acmeMain}},
		"only a held role is revoked":                 {unknown, "SELECT queengate.revoke_cluster_role($1, 'ann@acme.example')", []any{w.acmeMain}},
		"an unknown user is no operator":              {unknown, "SELECT queengate.set_operator('no@one.example', true)", nil},
		"a key has a scope":                           {invalid, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA9', '{}')", []any{w.acmeMain, hash(9)}},
		"a scope is of the set":                       {invalid, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA9', '{read,root}')", []any{w.acmeMain, hash(9)}},
		"a scope is not null":                         {invalid, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA9', '{read,NULL}')", []any{w.acmeMain, hash(9)}},
		"a hash is unique":                            {taken, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA9', '{read}')", []any{w.acmeMain, hash(1)}},
		"a public id is unique":                       {taken, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA1', '{read}')", []any{w.acmeMain, hash(9)}},
		"a hash has 32 bytes":                         {check, "SELECT queengate.issue_api_key($1, 'k', '\\x00', 'AAAAAAA9', '{read}')", []any{w.acmeMain}},
		"a key is not born expired":                   {invalid, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA9', '{read}', p_expires_at => now())", []any{w.acmeMain, hash(9)}},
		"a key's addresses are networks":              {badInput, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA9', '{read}', p_allowed_cidrs => '{10.0.0.1/8}')", []any{w.acmeMain, hash(9)}},
		"no addresses at all is no list":              {check, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA9', '{read}', p_allowed_cidrs => '{}')", []any{w.acmeMain, hash(9)}},
		"a key is revoked through its own cluster":    {unknown, "SELECT queengate.revoke_api_key($1, $2)", []any{w.rivalOne, w.key}},
		"a key is rotated through its own cluster":    {unknown, "SELECT queengate.rotate_api_key($1, $2, $3, 'AAAAAAA9')", []any{w.rivalOne, w.key, hash(9)}},
		"a key is limited through its own cluster":    {unknown, "SELECT queengate.set_api_key_limits($1, $2, '{}')", []any{w.rivalOne, w.key}},
		"a key's limit is a rate":                     {invalid, "SELECT queengate.set_api_key_limits($1, $2, '{\"max_queues\": 1}')", []any{w.acmeMain, w.key}},
		"a key's limit is known":                      {invalid, "SELECT queengate.set_api_key_limits($1, $2, '{\"max_req\": 1}')", []any{w.acmeMain, w.key}},
		"a key's limit is not negative":               {invalid, "SELECT queengate.set_api_key_limits($1, $2, '{\"max_req_per_sec\": -1}')", []any{w.acmeMain, w.key}},
		"a key's limits are an object":                {invalid, "SELECT queengate.set_api_key_limits($1, $2, NULL)", []any{w.acmeMain, w.key}},
		"a key's burst holds one request":             {invalid, "SELECT queengate.set_api_key_limits($1, $2, '{\"max_req_per_sec\": 1, \"req_burst\": 0.5}')", []any{w.acmeMain, w.key}},
		"a key's burst holds one message":             {invalid, "SELECT queengate.set_api_key_limits($1, $2, '{\"max_msgs_per_sec\": 1, \"msgs_burst\": 0.5}')", []any{w.acmeMain, w.key}},
		"nor does plain SQL get around that":          {check, "UPDATE queengate.api_keys SET max_req_per_sec = 1, req_burst = 0.5 WHERE id = $1", []any{w.key}},
		"an overlap is not negative":                  {invalid, "SELECT queengate.rotate_api_key($1, $2, $3, 'AAAAAAA9', '-1 s')", []any{w.acmeMain, w.key, hash(9)}},
		"a tenant whose data is there is not deleted": {state, "SELECT queengate.delete_tenant($1)", []any{ending}},
		"a cluster is not deleted without a lease":    {state, "SELECT queengate.delete_cluster(77, $1)", []any{endingOne}},
		"a wipe is not begun without a lease":         {state, "SELECT queengate.begin_wipe(77, $1, 0)", []any{endingOne}},
		"a tenant in use is not deleted":              {state, "SELECT queengate.delete_tenant($1)", []any{w.acme}},
		"a policy of a plan is of the set":            {check, "SELECT queengate.set_plan_policies('free', 'clamp')", nil},
		"a basis of a plan is of the set":             {check, "SELECT queengate.set_plan_policies('free', NULL, 'pushes')", nil},
		"an unknown plan has no policies":             {unknown, "SELECT queengate.set_plan_policies('nope', 'allow')", nil},
		"a policy of a cluster is of the set":         {check, "SELECT queengate.set_cluster_policies($1, 'never')", []any{w.acmeMain}},
		"an unknown cluster has no policies":          {unknown, "SELECT queengate.set_cluster_policies($1, 'allow')", []any{nobody}},
		"a time zone is one of the world's":           {invalid, "SELECT queengate.set_tenant_time_zone($1, 'Europe/Atlantis')", []any{w.acme}},
		"a time zone is no abbreviation of an offset": {invalid, "SELECT queengate.set_tenant_time_zone($1, 'UTC+3')", []any{w.acme}},
		"a time zone is not a file of the machine":    {check, "SELECT queengate.set_tenant_time_zone($1, 'posix/Europe/Berlin')", []any{w.acme}},
		"an unknown tenant has no time zone":          {unknown, "SELECT queengate.set_tenant_time_zone($1, 'UTC')", []any{nobody}},
		"a month begins on its first day":             {check, "INSERT INTO queengate.usage_months VALUES ($1, '2025-05-02', 'g', 1)", []any{w.acmeMain}},
		"a plan in use is not deleted":                {"23503", "DELETE FROM queengate.plans WHERE code = 'free'", nil},
		"bootstrap takes no foreign cluster":          {foreign, "SELECT queengate.bootstrap_tenant('acme', 'Acme', 'rival-one', 'free', 'eu1')", nil},
		"bootstrap takes no foreign address":          {foreign, "SELECT queengate.bootstrap_tenant('acme', 'Acme', 'acme-main', 'free', 'eu1', 'rob@rival.example')", nil},
		"an actor is of the set":                      {check, "SELECT queengate.record_operation(NULL, NULL, 'ghost', NULL, 'x', NULL)", nil},
		"an audit row is not changed":                 {state, "UPDATE queengate.operations SET action = 'nothing'", nil},
		"an audit row is not deleted":                 {state, "DELETE FROM queengate.operations", nil},
		"the audit is not truncated":                  {state, "TRUNCATE queengate.operations", nil},
		"the log is pruned of the past only":          {invalid, "SELECT queengate.prune_inval_log('-1 s')", nil},
	}
	opsBefore := scan[int64](w, "SELECT count(*) FROM queengate.operations")
	for rule, c := range cases {
		_, err := w.pool.Exec(t.Context(), c.sql, c.args...)
		if got := pg.State(err); got != c.state {
			t.Errorf("%s: %s: SQLSTATE %q (%v), want %s", rule, c.sql, got, err, c.state)
		}
	}
	if got := scan[int64](w, "SELECT count(*) FROM queengate.operations"); got != opsBefore {
		t.Errorf("refusals left %d operations rows", got-opsBefore)
	}
}

func TestThePublicCanDoNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open := scan[[]string](w, `SELECT coalesce(array_agg(p.oid::regprocedure::text), '{}') FROM pg_proc p
		WHERE pronamespace = 'queengate'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')`)
	if len(open) > 0 {
		t.Errorf("PUBLIC may execute %v", open)
	}
	if scan[bool](w, "SELECT has_schema_privilege('public', 'queengate', 'USAGE')") {
		t.Error("PUBLIC may use the schema")
	}
	// A function with its owner's rights must not look names up where its caller says.
	loose := scan[[]string](w, `SELECT coalesce(array_agg(oid::regprocedure::text), '{}') FROM pg_proc
		WHERE pronamespace = 'queengate'::regnamespace AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)`)
	if len(loose) > 0 {
		t.Errorf("functions without a fixed search_path: %v", loose)
	}
}

func TestCatalogueIsConsistent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := scan[[]string](w, "SELECT array_agg(code::text ORDER BY max_req_per_sec) FROM queengate.plans"); !cmp.Equal(got, []string{"free", "dev", "pro", "dedicated-s"}) {
		t.Errorf("plans %v", got)
	}
	for rule, where := range map[string]string{
		"an unbatched client gets through": "max_req_per_sec >= 3 * max_msgs_per_sec",
		"a legal batch fits the burst":     "max_batch_items <= msgs_burst",
		"partitions are no price":          "max_partitions_per_queue >= 1000",
		"bursts are twice the rate":        "req_burst >= 2 * max_req_per_sec AND msgs_burst >= 2 * max_msgs_per_sec",
	} {
		if bad := scan[[]string](w, "SELECT coalesce(array_agg(code::text), '{}') FROM queengate.plans WHERE ("+where+") IS NOT TRUE"); len(bad) > 0 {
			t.Errorf("%s: not so in %v", rule, bad)
		}
	}
}

// TestChangesCommitInTheOrderOfTheirNumbers: a second writer, be it plain SQL, gets its number only when the first has
// committed, so that who has seen a number has seen all lower ones.
func TestChangesCommitInTheOrderOfTheirNumbers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	first, err := w.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(context.WithoutCancel(ctx)) // closed already unless the test failed
	if _, err := first.Exec(ctx, "SELECT queengate.set_plan('free', '{\"max_queues\": 7}')"); err != nil {
		t.Fatal(err)
	}
	low := scanTx[int64](t, first, "SELECT max(seq) FROM queengate.inval_log")

	done := make(chan error, 1)
	go func() {
		_, err := w.pool.Exec(ctx, "UPDATE queengate.plans SET max_queues = 8 WHERE code = 'dev'")
		done <- err
	}()
	waiting := "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
	for deadline := time.Now().Add(30 * time.Second); !scan[bool](w, waiting); {
		select {
		case err := <-done:
			t.Fatalf("the second writer did not wait: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the second writer is not seen waiting")
		}
	}
	if got := scan[int64](w, "SELECT max(seq) FROM queengate.inval_log"); got >= low {
		t.Errorf("number %d is visible before %d has committed", got, low)
	}
	if err := first.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	high := scan[int64](w, "SELECT max(seq) FROM queengate.inval_log WHERE kind = 'plan' AND id = 'dev'")
	if high <= low {
		t.Errorf("the later commit has number %d, the earlier one %d", high, low)
	}
}

func scanTx[T any](t *testing.T, tx pgx.Tx, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := tx.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestRotationOverlaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := scan[uuid.UUID](w, "SELECT queengate.issue_api_key($1, 'ci', $2, 'BBBBBBB1', '{consume}', p_expires_at => now() + interval '30 days', p_allowed_cidrs => '{10.0.0.0/8}')", w.acmeMain, hash(2))
	w.exec("SELECT queengate.set_api_key_limits($1, $2, '{\"max_req_per_sec\": 5, \"req_burst\": 9, \"max_msgs_per_sec\": 7}')", w.acmeMain, old)
	before := scan[int64](w, "SELECT count(*) FROM queengate.operations")
	twin := scan[uuid.UUID](w, "SELECT queengate.rotate_api_key($1, $2, $3, 'BBBBBBB2', '1 hour')", w.acmeMain, old, hash(3))
	if got := scan[int64](w, "SELECT count(*) FROM queengate.operations") - before; got != 2 {
		t.Errorf("%d operations rows, want api_key_issued and api_key_rotated", got)
	}
	if !scan[bool](w, `SELECT t.rotated_from = o.id AND t.name = o.name AND t.scopes = o.scopes AND t.allowed_cidrs = o.allowed_cidrs
		AND t.max_req_per_sec = 5 AND t.req_burst = 9 AND t.max_msgs_per_sec = 7 AND t.msgs_burst IS NULL
		AND t.expires_at BETWEEN now() + interval '29 days' AND now() + interval '31 days'
		AND o.expires_at BETWEEN now() + interval '59 min' AND now() + interval '61 min'
		FROM queengate.api_keys t, queengate.api_keys o WHERE t.id = $1 AND o.id = $2`, twin, old) {
		t.Error("the twin is not the old key's likeness, or the old one does not end after the overlap")
	}
	next := scan[uuid.UUID](w, "SELECT queengate.rotate_api_key($1, $2, $3, 'BBBBBBB4', '1 hour')", w.acmeMain, twin, hash(5))
	w.exec("SELECT queengate.set_api_key_limits($1, $2, '{\"max_req_per_sec\": 6}')", w.acmeMain, twin)
	if got := scan[int64](w, `SELECT count(*) FROM queengate.api_keys
		WHERE coalesce(limited_as, id) = $1 AND max_req_per_sec = 6 AND id IN ($1, $2, $3)`, old, twin, next); got != 3 {
		t.Errorf("%d of a key and the twins that it was rotated to have one set of limits, want 3", got)
	}
	if scan[bool](w, "SELECT max_req_per_sec IS NOT NULL FROM queengate.api_keys WHERE id = $1", w.key) {
		t.Error("another key has got the limits")
	}
	scan[uuid.UUID](w, "SELECT queengate.rotate_api_key($1, $2, $3, 'BBBBBBB3', '10 days')", w.acmeMain, old, hash(4))
	if !scan[bool](w, "SELECT expires_at < now() + interval '2 hours' FROM queengate.api_keys WHERE id = $1", old) {
		t.Error("a second rotation prolonged the old key")
	}
	w.exec("SELECT queengate.revoke_api_key($1, $2)", w.acmeMain, old)
	_, err := w.pool.Exec(t.Context(), "SELECT queengate.revoke_api_key($1, $2)", w.acmeMain, old)
	if pg.State(err) != "55000" {
		t.Errorf("revoking twice: %v, want 55000", err)
	}
}

// An absent name keeps its value, null lifts the limit, and the audit holds what was and what is.
func TestLimitsOfAKeyAreMerged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set := func(limits string) {
		t.Helper()
		w.exec("SELECT queengate.set_api_key_limits($1, $2, $3)", w.acmeMain, w.key, limits)
	}
	set(`{"max_req_per_sec": 5, "req_burst": 9}`)
	set(`{"max_msgs_per_sec": 0, "req_burst": null}`)
	if got := scan[string](w, `SELECT jsonb_build_array(max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst)::text
		FROM queengate.api_keys WHERE id = $1`, w.key); got != "[5, null, 0, null]" {
		t.Errorf("limits %s", got)
	}
	want := `{"to": {"max_req_per_sec": 5, "max_msgs_per_sec": 0}, "from": {"req_burst": 9, "max_req_per_sec": 5}, "public_id": "AAAAAAA1"}`
	if got := scan[string](w, "SELECT meta::text FROM queengate.operations ORDER BY at DESC LIMIT 1"); got != want {
		t.Errorf("audit %s, want %s", got, want)
	}
}

// Whatever number a plan has, a patch and an override may name.
func TestEveryLimitOfAPlanMayBeSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := scan[[]string](w, `SELECT array_agg(column_name::text ORDER BY ordinal_position) FROM information_schema.columns
		WHERE table_schema = 'queengate' AND table_name = 'plans' AND domain_name IN ('rate', 'amount')`)
	if len(names) < 15 {
		t.Fatalf("only %v", names)
	}
	for _, name := range names {
		for _, value := range []string{"null", "1000000"} {
			limits := fmt.Sprintf(`{%q: %s}`, name, value)
			w.exec("SELECT queengate.create_plan($1, 'x', $2)", fmt.Sprintf("p-%s-%s", strings.ReplaceAll(name, "_", "-"), value), limits)
			w.exec("SELECT queengate.set_limit_override($1, $2)", w.acmeMain, limits)
		}
	}
}

func TestKeysWithoutAPublicIDGetOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := scan[uuid.UUID](w, "SELECT queengate.issue_api_key($1, 'old', sha256('x'), NULL, '{read}')", w.acmeMain)
	if got := scan[string](w, "SELECT public_id FROM queengate.api_keys WHERE id = $1", id); len(got) != 8 {
		t.Errorf("public id %q", got)
	}
}

func TestUseOfKeysIsRecordedQuietly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seq := scan[int64](w, "SELECT max(seq) FROM queengate.inval_log")
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	w.exec("SELECT queengate.touch_api_keys($1, $2)", []uuid.UUID{w.key}, at)
	w.exec("SELECT queengate.touch_api_keys($1, $2)", []uuid.UUID{w.key}, at.Add(-time.Hour)) // a late batch
	if got := scan[time.Time](w, "SELECT last_used_at FROM queengate.api_keys WHERE id = $1", w.key); !got.Equal(at) {
		t.Errorf("last used %v, want %v", got, at)
	}
	if got := scan[int64](w, "SELECT max(seq) FROM queengate.inval_log"); got != seq {
		t.Error("use of a key was announced as a change")
	}
}

func TestRevocationIsRepeatableAndSwept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := scan[int64](w, "SELECT count(*) FROM queengate.operations")
	for range 2 {
		w.exec("SELECT queengate.revoke_session('gone', now() - interval '61 minutes')")
		w.exec("SELECT queengate.revoke_session('fresh', now() - interval '1 minute')")
	}
	if got := scan[int64](w, "SELECT count(*) FROM queengate.operations") - before; got != 2 {
		t.Errorf("%d operations rows for two tokens revoked twice, want 2", got)
	}
	if got := scan[int64](w, "SELECT queengate.sweep_revoked_tokens()"); got != 1 {
		t.Errorf("swept %d, want the one that no leeway can revive", got)
	}
}

func TestDeletedTenantLeavesItsAuditAndNoAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("SELECT queengate.bootstrap_tenant('acme', 'Acme', 'acme-two', 'free', 'eu1', 'boss@acme.example')")
	w.exec("SELECT queengate.set_issuer($1, 'ci', 'https://ci.example', 'queengate', '[{\"claim\": \"email\", \"value\": \"ann@acme.example\", \"roles\": [\"admin\"]}]')", w.acme)
	w.exec("SELECT queengate.revoke_issuer_tokens($1, 'ci', 'ann@acme.example')", w.acme)
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", w.acme)
	for _, c := range scan[[]uuid.UUID](w, "SELECT array_agg(id) FROM queengate.clusters WHERE tenant_id = $1", w.acme) {
		w.wiped(c)
	}
	raw := scan[[]byte](w, "SELECT queengate.delete_tenant($1)", w.acme)
	var got struct {
		Deleted     bool
		Keys, Users int
		Clusters    []struct {
			Slug   string
			Broker uuid.UUID `json:"broker_tenant_uuid"`
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if !got.Deleted || got.Keys != 1 || got.Users != 2 || len(got.Clusters) != 2 || got.Clusters[0].Broker == uuid.Nil {
		t.Errorf("delete_tenant: %s", raw)
	}
	for _, table := range []string{"tenants WHERE id", "clusters WHERE tenant_id", "users WHERE tenant_id", "cluster_roles WHERE tenant_id", "issuers WHERE tenant_id", "token_cutoffs WHERE tenant_id"} {
		if n := scan[int64](w, fmt.Sprintf("SELECT count(*) FROM queengate.%s = $1", table), w.acme); n != 0 {
			t.Errorf("%s: %d rows left", table, n)
		}
	}
	if n := scan[int64](w, "SELECT count(*) FROM queengate.operations WHERE tenant_id = $1", w.acme); n < 5 {
		t.Errorf("%d audit rows left of the tenant", n)
	}
	if n := scan[int64](w, "SELECT count(*) FROM queengate.outbox WHERE payload::text LIKE '%@%'"); n != 0 {
		t.Error("the outbox still holds an address")
	}
	if n := scan[int64](w, "SELECT count(*) FROM queengate.operations WHERE meta::text || target LIKE '%@%'"); n != 0 {
		t.Error("the audit still holds an address")
	}
	if n := scan[int64](w, "SELECT count(*) FROM queengate.clusters"); n != 1 {
		t.Errorf("%d clusters left, want the other tenant's", n)
	}
	if again := scan[string](w, "SELECT queengate.delete_tenant($1)", w.acme); again != `{"deleted": false}` {
		t.Errorf("deleting again: %s", again)
	}
}

func TestPruningKeepsTheNewestChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	newest := scan[int64](w, "SELECT max(seq) FROM queengate.inval_log")
	if n := scan[int64](w, "SELECT queengate.prune_inval_log('10 years')"); n != 0 {
		t.Errorf("pruned %d fresh rows", n)
	}
	w.exec("SELECT queengate.prune_inval_log('0')")
	if got := scan[[]int64](w, "SELECT array_agg(seq) FROM queengate.inval_log"); !cmp.Equal(got, []int64{newest}) {
		t.Errorf("left %v, want [%d]", got, newest)
	}
}
