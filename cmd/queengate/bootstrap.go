package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/queengate/queengate/internal/bootstrap"
	"github.com/queengate/queengate/plans"
)

// parseKey reads what a key is to be called, and what it may do.
func parseKey(text string) (bootstrap.KeySpec, error) {
	name, list, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return bootstrap.KeySpec{}, fmt.Errorf("%q: want NAME=SCOPE,…", text)
	}
	spec := bootstrap.KeySpec{Name: name}
	for scope := range strings.SplitSeq(list, ",") {
		s := plans.ParseScopes([]string{scope})
		if s == 0 {
			return bootstrap.KeySpec{}, fmt.Errorf("%q: there is no scope %q", text, scope)
		}
		spec.Scopes |= s
	}
	return spec, nil
}

// runBootstrap makes a tenant that can work and prints the keys it minted, as JSON: they are shown once.
func runBootstrap(ctx context.Context, in *invocation) error {
	var r bootstrap.Request
	var passwordFile string
	c, err := in.load(func(fs *flag.FlagSet) {
		fs.StringVar(&r.Tenant, "tenant", "", "`slug` of the tenant (required)")
		fs.StringVar(&r.TenantName, "tenant-name", "", "`name` of the tenant; without one, its slug")
		fs.StringVar(&r.Cluster, "cluster", "", "`slug` of the cluster: the first label of its host name (required)")
		fs.StringVar(&r.Plan, "plan", "free", "`code` of the plan of a new cluster")
		fs.StringVar(&r.Cell, "cell", "", "`slug` of the cell (required)")
		fs.StringVar(&r.BaseURL, "base-url", "", "`URL` of the cell's broker, http://host:port, several with commas, dns+http://host:port for all addresses of a name; required for a new cell")
		fs.StringVar(&r.Email, "email", "", "`address` of the first administrator")
		fs.Func("key", "`NAME=SCOPE,…` of a key, instead of the usual five; may be given again. Scopes: produce, consume, read, read:payload, admin", func(text string) error {
			spec, err := parseKey(text)
			r.Keys = append(r.Keys, spec)
			return err
		})
		fs.StringVar(&passwordFile, "password-file", "", "`file` with the administrator's password")
	})
	if err != nil {
		return err
	}
	if passwordFile != "" {
		text, err := os.ReadFile(passwordFile)
		if err != nil {
			return usageError{err}
		}
		hash, err := bcrypt.GenerateFromPassword([]byte(strings.TrimRight(string(text), "\r\n")), bcrypt.DefaultCost)
		if err != nil {
			return usageError{err}
		}
		r.PasswordHash = string(hash)
	}
	pool, err := openPool(ctx, "postgres.control_dsn", c.control().conn(), 2, "queengate-bootstrap")
	if err != nil {
		return err
	}
	defer pool.Close()
	result, err := bootstrap.Bootstrap(ctx, pool, r)
	if err != nil {
		return err
	}
	type key struct {
		Name   string   `json:"name"`
		ID     string   `json:"id"`
		Scopes []string `json:"scopes"`
		Key    string   `json:"key"`
	}
	keys := []key{}
	for _, k := range result.Keys {
		keys = append(keys, key{k.Name, k.PublicID, k.Scopes.Names(), k.Plaintext.Reveal()})
	}
	enc := json.NewEncoder(in.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{
		"tenant_id": result.TenantID, "cluster_id": result.ClusterID, "broker_tenant": result.BrokerTenant,
		"created": result.Created, "keys": keys,
	})
}
