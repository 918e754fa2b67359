-- Retention: what is to be deleted, what was, and who does it. docs/design/retention.md.
-- Why: the row of a partition is the lock that its pushes wait for, so a step of retention only moves the watermarks on
-- it, in a statement without I/O, and lists what lies below them here; the rows are deleted afterwards without any lock.
-- Locks: SHARE on log_partitions while three partial indexes are built, about a second per million partitions.
-- Back out: stop the janitors (queen.maintenance_leases.enabled = false), wait until log_trims is empty, drop the tables
-- and the indexes.
-- +goose Up

-- Ranges of the log below the watermarks of their partition: nobody reads them any more. Append-only, so that whoever
-- lists a range waits for nobody who deletes one.
CREATE TABLE queen.log_trims (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id   bigint NOT NULL,
    segments_from  bigint NOT NULL, -- segments with segments_from <= base_offset < segments_below
    segments_below bigint NOT NULL,
    txns_from      bigint NOT NULL, -- and sidecar rows likewise
    txns_below     bigint NOT NULL,
    log_rows       bigint NOT NULL  -- how many rows that is
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- What one step may do with one partition: queen.trim_plan.
CREATE TYPE queen.trim_step AS (
    partition_id bigint, log_from bigint, log_below bigint, txns_from bigint, txns_below bigint,
    segments bigint, txns bigint, raw_bytes bigint,
    by_age bigint, by_completion bigint, by_wait bigint, -- messages by the rule that lets them go
    bytes_by_age bigint, bytes_by_completion bigint, bytes_by_wait bigint
);

-- What retention did. A row is written in the transaction that moves the watermark; rows older than a day are folded
-- into one per hour, queue and kind. Names instead of keys: history outlives queues.
CREATE TABLE queen.retention_history (
    tenant_id    uuid        NOT NULL,
    queue        text        COLLATE "C" NOT NULL,
    partition_id bigint,               -- NULL: folded
    kind         text        NOT NULL CHECK (kind IN ('retention', 'completed_retention', 'eviction', 'partition_deleted')),
    messages     bigint      NOT NULL,
    raw_bytes    bigint      NOT NULL,
    events       bigint      NOT NULL DEFAULT 1,
    at           timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX retention_history_tenant ON queen.retention_history (tenant_id, at);
CREATE INDEX retention_history_fresh ON queen.retention_history (at) WHERE partition_id IS NOT NULL;

-- The work lists. Pushes change neither column of a partition that is not empty, so they stay HOT.
CREATE INDEX log_partitions_live_due ON queen.log_partitions (queue_id, oldest_live_at, id) WHERE oldest_live_at IS NOT NULL;
CREATE INDEX log_partitions_txn_due ON queen.log_partitions (queue_id, oldest_txn_at, id) WHERE oldest_txn_at IS NOT NULL;
CREATE INDEX log_partitions_idle ON queen.log_partitions (greatest(created_at, last_write_at)) WHERE oldest_live_at IS NULL;
-- Queues whose segments ever come to be due by a rule.
CREATE INDEX queues_retained ON queen.queues (id) WHERE retention_enabled OR max_wait_time_seconds > 0;

ALTER TABLE queen.maintenance_leases ADD COLUMN last_run_stats jsonb;

INSERT INTO queen.maintenance_leases (task, period) VALUES
    ('retention', '5 seconds'), ('sidecar', '1 minute'), ('partitions', '1 minute'), ('history', '1 hour');
