package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/bootstrap"
	"github.com/queengate/queengate/internal/datadir"
)

// credentials is DIR/credentials.json: where the system of `up` is and how to get in. Its keys are read by tests,
// examples and scripts; add to them, never rename one.
type credentials struct {
	GatewayURL      string `json:"gateway_url"`
	GatewayHTTPSURL string `json:"gateway_https_url"`
	CAFile          string `json:"ca_file"`
	OpsURL          string `json:"ops_url"`
	BrokerURL       string `json:"broker_url"`
	PostgresDSN     string `json:"postgres_dsn"`
	Cluster         string `json:"cluster"`
	ClusterHost     string `json:"cluster_host"`
	APIKey          string `json:"api_key"`
	ReadKey         string `json:"read_key"`
	ProduceKey      string `json:"produce_key"`
	ConsumeKey      string `json:"consume_key"`
	AdminKey        string `json:"admin_key"`
}

const credentialsFile = "credentials.json"

// key returns the field of the key with that name in bootstrap.DefaultKeys.
func (c *credentials) key(name string) *string {
	switch name {
	case "full":
		return &c.APIKey
	case "read":
		return &c.ReadKey
	case "produce":
		return &c.ProduceKey
	case "consume":
		return &c.ConsumeKey
	case "admin":
		return &c.AdminKey
	}
	panic("no field for the key " + name)
}

// readCredentials returns what an earlier start wrote, or nothing.
func readCredentials(dir *datadir.Dir) (*credentials, error) {
	var c credentials
	text, err := os.ReadFile(dir.Path(credentialsFile))
	if errors.Is(err, os.ErrNotExist) {
		return &c, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir.Path(credentialsFile), err)
	}
	return &c, nil
}

func (c *credentials) write(dir *datadir.Dir) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return dir.WriteFile(credentialsFile, append(text, '\n'))
}

// ensureDemo makes the demo tenant at the brokers of baseURL and completes c with its keys. Keys of an earlier start are
// kept while they are live. One whose text is lost, because a crash came between its making and its writing, is revoked
// and made anew: the database holds only hashes.
func ensureDemo(ctx context.Context, pool *pgxpool.Pool, c *credentials, cell, baseURL string) error {
	request := bootstrap.Request{Tenant: "demo", TenantName: "Demo", Cluster: demoCluster, Plan: "dedicated-s", Cell: cell, BaseURL: baseURL}
	for range 2 {
		result, err := bootstrap.Bootstrap(ctx, pool, request)
		if err != nil {
			return err
		}
		for _, k := range result.Keys {
			*c.key(k.Name) = k.Plaintext.Reveal()
		}
		lost, err := lostKeys(ctx, pool, c, result.ClusterID)
		if err != nil || len(lost) == 0 {
			return err
		}
		for _, id := range lost {
			if _, err := pool.Exec(ctx, "SELECT queengate.revoke_api_key($1, $2)", result.ClusterID, id); err != nil {
				return fmt.Errorf("revoke a key whose text is lost: %w", err)
			}
		}
	}
	return errors.New("the demo tenant's keys cannot be made")
}

// lostKeys returns the live keys that carry the name of one of ours but another text.
func lostKeys(ctx context.Context, pool *pgxpool.Pool, c *credentials, cluster uuid.UUID) ([]uuid.UUID, error) {
	var lost []uuid.UUID
	for _, spec := range bootstrap.DefaultKeys() {
		hash := sha256.Sum256([]byte(*c.key(spec.Name)))
		var ids []uuid.UUID
		// All live keys of the name, unless one of them is ours.
		err := pool.QueryRow(ctx, `SELECT coalesce(array_agg(id) FILTER (WHERE NOT ours), '{}') FROM (
			SELECT id, bool_or(hash = $3) OVER () AS ours FROM queengate.api_keys
			WHERE cluster_id = $1 AND name = $2 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())) k`,
			cluster, spec.Name, hash[:]).Scan(&ids)
		if err != nil {
			return nil, fmt.Errorf("keys of the demo tenant: %w", err)
		}
		lost = append(lost, ids...)
	}
	return lost, nil
}
