// Package bootstrap brings an installation from nothing to a tenant that can work: a cell, a tenant, its cluster, its
// first administrator and its API keys. `queengate bootstrap` and `queengate up` are thin coats over it.
//
// It writes only through the functions of schema queengate and can be run as often as one likes: what exists is left as
// it is, and a key is minted only when the cluster has no live one of its name. Plaintexts exist in the Result of the
// run that minted them and nowhere else.
package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
)

// Request says what there shall be.
type Request struct {
	Tenant       string // slug
	TenantName   string // "" means the slug
	Cluster      string // slug: the first label of its host name
	Plan         string // code, for a cluster that is made; "" means free
	Cell         string // slug; the cell is made when it is missing
	BaseURL      string // of the cell's brokers, [dns+]http://host:port, several with commas; "" keeps those of a cell that exists
	Email        string // of the first administrator; "" makes none
	PasswordHash string // bcrypt; "" leaves an account that cannot log in yet
	Env          string // environment in the keys' text; "" means live
	Keys         []KeySpec
}

// KeySpec names a key and what it may do.
type KeySpec struct {
	Name   string
	Scopes plans.Scope
}

// DefaultKeys are one key per scope and one with all of them.
func DefaultKeys() []KeySpec {
	return []KeySpec{
		{"admin", plans.ScopeAdmin},
		{"read", plans.ScopeRead},
		{"produce", plans.ScopeProduce},
		{"consume", plans.ScopeConsume},
		{"full", plans.ScopeProduce | plans.ScopeConsume | plans.ScopeAdmin | plans.ScopeRead},
	}
}

// Key is a key that this run minted.
type Key struct {
	ID        uuid.UUID
	Name      string
	PublicID  string
	Scopes    plans.Scope
	Plaintext conf.Secret // shown to its owner now or never
}

// Result is what there is now.
type Result struct {
	TenantID     uuid.UUID
	ClusterID    uuid.UUID
	BrokerTenant uuid.UUID // the cluster's namespace at the brokers
	UserID       uuid.UUID // nil UUID without an address
	Created      bool      // tenant, cluster or user were made by this run
	CanLogin     bool      // the administrator has a password or an identity
	Keys         []Key     // minted by this run, in the order asked for
}

const (
	defaultPlan = "free"
	defaultEnv  = "live"
)

func (r *Request) complete() error {
	if r.Plan == "" {
		r.Plan = defaultPlan
	}
	if r.Env == "" {
		r.Env = defaultEnv
	}
	if r.Keys == nil {
		r.Keys = DefaultKeys()
	}
	var errs []error
	for _, field := range []struct{ name, value string }{{"tenant", r.Tenant}, {"cluster", r.Cluster}, {"cell", r.Cell}} {
		if field.value == "" {
			errs = append(errs, fmt.Errorf("%s is missing", field.name))
		}
	}
	if r.BaseURL != "" {
		for one := range strings.SplitSeq(r.BaseURL, ",") {
			if u, err := url.Parse(strings.TrimPrefix(one, "dns+")); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" {
				errs = append(errs, fmt.Errorf("base url %q: want http://host:port", one))
			}
		}
	}
	if !auth.ValidEnv(r.Env) {
		errs = append(errs, fmt.Errorf("environment %q: want 1 to 16 of [a-z0-9]", r.Env))
	}
	return errors.Join(errs...)
}

// Bootstrap makes what is missing, all or nothing. Concurrent runs are serial. Errors: what is wrong with the request;
// a *pgconn.PgError with a SQLSTATE of migrations/gateway/routines/10_audit.sql (a slug or address of another tenant is
// 42501); any other is a database fault, safe to repeat.
func Bootstrap(ctx context.Context, pool *pgxpool.Pool, r Request) (Result, error) {
	if err := r.complete(); err != nil {
		return Result{}, fmt.Errorf("bootstrap: %w", err)
	}
	var result Result
	err := pg.Tx(ctx, pool, func(tx pgx.Tx) error {
		result = Result{} // the transaction may be run again
		// From here to the end nobody else changes the control database, so that looking first is safe.
		if _, err := tx.Exec(ctx, "SELECT queengate.lock_changes(), queengate.act_as('system', 'bootstrap')"); err != nil {
			return err
		}
		if err := ensureCell(ctx, tx, r.Cell, r.BaseURL); err != nil {
			return err
		}
		if err := ensureTenant(ctx, tx, &r, &result); err != nil {
			return err
		}
		for _, spec := range r.Keys {
			if err := ensureKey(ctx, tx, r.Env, spec, &result); err != nil {
				return fmt.Errorf("key %s: %w", spec.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return Result{}, fmt.Errorf("bootstrap %s/%s: %w", r.Tenant, r.Cluster, err)
	}
	return result, nil
}

func ensureCell(ctx context.Context, tx pgx.Tx, slug, baseURL string) error {
	var have string
	err := tx.QueryRow(ctx, "SELECT base_url FROM queengate.cells WHERE slug = $1", slug).Scan(&have)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if baseURL == "" {
			return fmt.Errorf("cell %s does not exist, and no base url says how to reach it", slug)
		}
		_, err = tx.Exec(ctx, "SELECT queengate.create_cell($1, $2)", slug, baseURL)
	case err == nil && baseURL != "" && baseURL != have:
		_, err = tx.Exec(ctx, "SELECT queengate.set_cell($1, $2)", slug, baseURL)
	}
	if err != nil {
		return fmt.Errorf("cell %s: %w", slug, err)
	}
	return nil
}

func ensureTenant(ctx context.Context, tx pgx.Tx, r *Request, result *Result) error {
	var raw []byte
	err := tx.QueryRow(ctx, "SELECT queengate.bootstrap_tenant($1, $2, $3, $4, $5, nullif($6, ''), nullif($7, ''))",
		r.Tenant, r.TenantName, r.Cluster, r.Plan, r.Cell, r.Email, r.PasswordHash).Scan(&raw)
	if err != nil {
		return err
	}
	var made struct {
		TenantID  uuid.UUID  `json:"tenant_id"`
		ClusterID uuid.UUID  `json:"cluster_id"`
		UserID    *uuid.UUID `json:"user_id"`
		Created   bool       `json:"created"`
		CanLogin  *bool      `json:"can_login"`
	}
	if err := json.Unmarshal(raw, &made); err != nil {
		return fmt.Errorf("answer of bootstrap_tenant: %w", err)
	}
	result.TenantID, result.ClusterID, result.Created = made.TenantID, made.ClusterID, made.Created
	if made.UserID != nil {
		result.UserID = *made.UserID
	}
	result.CanLogin = made.CanLogin != nil && *made.CanLogin
	return tx.QueryRow(ctx, "SELECT broker_tenant_uuid FROM queengate.clusters WHERE id = $1", result.ClusterID).
		Scan(&result.BrokerTenant)
}

// ensureKey mints the key unless a live one has its name; expiry is judged on the database's clock.
func ensureKey(ctx context.Context, tx pgx.Tx, env string, spec KeySpec, result *Result) error {
	var exists bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM queengate.api_keys
		WHERE cluster_id = $1 AND name = $2 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()))`,
		result.ClusterID, spec.Name).Scan(&exists)
	if err != nil || exists {
		return err
	}
	plaintext, publicID, hash := auth.NewKey(env)
	key := Key{Name: spec.Name, PublicID: publicID, Scopes: spec.Scopes, Plaintext: conf.Secret(plaintext)}
	err = tx.QueryRow(ctx, "SELECT queengate.issue_api_key($1, $2, $3, $4, $5)",
		result.ClusterID, spec.Name, hash[:], publicID, spec.Scopes.Names()).Scan(&key.ID)
	if err != nil {
		return err
	}
	result.Keys = append(result.Keys, key)
	return nil
}
