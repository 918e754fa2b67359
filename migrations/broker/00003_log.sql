-- The log: segments, the hash sidecar and the ledger of retained bytes.
-- Why: a segment is one immutable row of many messages; its sidecar row holds one 16-byte hash per message, since acks
-- and deduplication find messages by transaction id and SQL never looks inside a segment.
-- Locks: none on a new database, milliseconds. Back out: drop the tables together with 00002's.
--
-- No foreign keys here: a referential trigger per insert would be paid by every push for a deletion that is rare.
-- Instead a partition is deleted in one routine only, queen.delete_partitions, under its row lock; it lists the id in
-- dropped_partitions in the same transaction, and what is left of the log is swept in bounded steps afterwards. Ids
-- are never used again, so rows of a dropped partition can meet nobody.
-- +goose Up
CREATE TABLE queen.log_segments (
    partition_id bigint      NOT NULL,
    base_offset  bigint      NOT NULL,
    end_offset   bigint      NOT NULL, -- inclusive
    created_at   timestamptz NOT NULL, -- of all its messages; never before the previous segment's
    raw_bytes    bigint      NOT NULL, -- payload bytes as sent: what the tenant is charged for
    blob         bytea       NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
) WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_insert_scale_factor = 0.3,
    autovacuum_vacuum_cost_limit = 4000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.1,
    toast.autovacuum_vacuum_insert_scale_factor = 0.3,
    toast.autovacuum_vacuum_cost_limit = 4000,
    toast.autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE queen.log_txns (
    partition_id bigint      NOT NULL,
    base_offset  bigint      NOT NULL,
    end_offset   bigint      NOT NULL,
    created_at   timestamptz NOT NULL,
    hashes       bytea       NOT NULL, -- 16 bytes per message, in offset order
    PRIMARY KEY (partition_id, base_offset)
) WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_insert_scale_factor = 0.3,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.1,
    toast.autovacuum_vacuum_insert_scale_factor = 0.3,
    toast.autovacuum_vacuum_cost_delay = 0
);

-- Segments come compressed and hashes are random: PostgreSQL must not spend a second try on either.
ALTER TABLE queen.log_segments ALTER COLUMN blob SET STORAGE EXTERNAL;
ALTER TABLE queen.log_txns ALTER COLUMN hashes SET STORAGE EXTERNAL;

-- Changes of retained bytes that are not folded into queen.tenants yet. Written in the transaction that stores or
-- deletes the bytes, so the sum is exact after any crash; append-only and without an index, so a push takes no lock
-- that another push of the tenant could want.
CREATE TABLE queen.retained_ledger (
    tenant_id uuid   NOT NULL,
    bytes     bigint NOT NULL -- negative for what retention and deletion free
) WITH (
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

-- Partitions whose row is gone and whose segments and sidecar rows are still to be swept.
CREATE TABLE queen.dropped_partitions (
    partition_id bigint      PRIMARY KEY,
    dropped_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
