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

// switchState is how a switch is stored.
type switchState struct {
	Enabled bool `json:"enabled"`
}

var switchesNow = statement(`SELECT coalesce(bool_or(s.key = '` + StateMaintenance + `'), false), coalesce(bool_or(s.key = '` + StatePopMaintenance + `'), false)
FROM queen.system_state s WHERE s.key IN ('` + StateMaintenance + `', '` + StatePopMaintenance + `') AND s.value @> '{"enabled": true}'`)

// Switches reads the operator's switches. The change feed brings them too.
func (s *Store) Switches(ctx context.Context) (now Switches, err error) {
	err = s.pool.QueryRow(ctx, switchesNow).Scan(&now.Push, &now.Pop)
	return now, pg.Error("read switches", err)
}

// SetSwitch sets the switch of that key for all brokers. It is durable when it returns.
func (s *Store) SetSwitch(ctx context.Context, key string, on bool) error {
	return s.SetState(ctx, key, switchState{on})
}

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
	return pg.Error("write state", pg.Confirmed(conn.Conn(), err))
}
