package store

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

// The operator's switches and other state that all brokers of a cell share, as keys of State.
const (
	StateMaintenance    = "maintenance_mode"     // pushes go to the spool
	StatePopMaintenance = "pop_maintenance_mode" // pops deliver nothing
)

var (
	stateOf  = statement(`SELECT value FROM queen.system_state WHERE key = $1`)
	setState = statement(`INSERT INTO queen.system_state (key, value) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = clock_timestamp()`)
)

// State reads the value that all brokers share under key into v, as encoding/json does, and reports whether there is
// one.
func (s *Store) State(ctx context.Context, key string, v any) (bool, error) {
	var raw json.RawMessage
	err := s.pool.QueryRow(ctx, stateOf, key).Scan(&raw)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	return err == nil, pg.Error("read state", err)
}

// SetState stores v as JSON under key for all brokers. It is durable when it returns; other brokers see it when they
// next look.
func (s *Store) SetState(ctx context.Context, key string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return pg.Error("write state", err)
	}
	conn, err := s.acquire(ctx, "write state")
	if err != nil {
		return err
	}
	defer conn.Release()
	_, err = conn.Exec(context.WithoutCancel(ctx), setState, key, json.RawMessage(raw))
	return pg.Error("write state", err)
}
