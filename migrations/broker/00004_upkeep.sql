-- The schedule of background upkeep over all brokers of a cell, and the operator's switches.
-- Why: one broker at a time runs a task; the lease, its expiry and the next due time are on the database's clock.
-- Locks: none, milliseconds. Back out: drop the tables; brokers then run no upkeep and see every switch at rest.
-- +goose Up
CREATE TABLE queen.maintenance_leases (
    task          text        PRIMARY KEY,
    period        interval    NOT NULL,
    next_due_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until   timestamptz,                -- NULL: nobody runs it
    holder        text,
    fence         bigint      NOT NULL DEFAULT 0, -- grows with every claim: a late holder can do no harm
    enabled       boolean     NOT NULL DEFAULT true,
    last_run_at   timestamptz,
    last_run_ms   bigint,
    last_error    text,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, vacuum_truncate = off);

CREATE TABLE queen.system_state (
    key        text        PRIMARY KEY,
    value      jsonb       NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
