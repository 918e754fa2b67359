-- Queues, their partitions and the tenants that own them.
-- Why: a queue row is identity and configuration at once; a partition row is the offset allocator and the lock that
-- orders every write of its partition; a tenant row is the lock that makes its counts exact.
-- Locks: none on a new database, milliseconds. Back out: drop the tables, they are empty before the first provision.
--
-- Lock order of everything that takes more than one of these: tenant row, queue row, partition rows ascending by id,
-- consumer rows ascending by (partition, group), config_version last. Queue rows are written, and partitions created and
-- deleted, only under their tenant's row lock.
-- +goose Up
CREATE TABLE queen.tenants (
    tenant_id      uuid        PRIMARY KEY,
    queue_count    bigint      NOT NULL DEFAULT 0,
    -- What was folded out of retained_ledger; the tenant's retained bytes are this plus its ledger rows.
    retained_bytes bigint      NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

CREATE TABLE queen.queues (
    id                              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid                             uuid        NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    tenant_id                       uuid        NOT NULL REFERENCES queen.tenants,
    name                            text        COLLATE "C" NOT NULL,
    namespace                       text        COLLATE "C" NOT NULL DEFAULT '',
    task                            text        COLLATE "C" NOT NULL DEFAULT '',
    lease_time                      integer     NOT NULL DEFAULT 300,  -- seconds; a queue born of a push has 60
    retry_limit                     integer     NOT NULL DEFAULT 3,
    retry_delay                     integer     NOT NULL DEFAULT 1000, -- milliseconds
    priority                        integer     NOT NULL DEFAULT 0,
    max_size                        integer     NOT NULL DEFAULT 0,
    ttl                             integer     NOT NULL DEFAULT 3600, -- seconds
    dead_letter_queue               boolean     NOT NULL DEFAULT true,
    dlq_after_max_retries           boolean     NOT NULL DEFAULT true,
    delayed_processing              integer     NOT NULL DEFAULT 0,    -- seconds
    window_buffer                   integer     NOT NULL DEFAULT 0,    -- seconds
    retention_enabled               boolean     NOT NULL DEFAULT false,
    retention_seconds               integer     NOT NULL DEFAULT 0,
    completed_retention_seconds     integer     NOT NULL DEFAULT 0,
    max_wait_time_seconds           integer     NOT NULL DEFAULT 0,
    min_pop_wait_time               integer     NOT NULL DEFAULT 0,    -- milliseconds
    encryption_enabled              boolean     NOT NULL DEFAULT false,
    dedup_window_seconds            integer     NOT NULL DEFAULT 3600, -- 0: no probe
    retention_sink_hold             text        NOT NULL DEFAULT '',
    retention_sink_hold_max_seconds integer     NOT NULL DEFAULT 604800,
    -- Partitions that count against the plan: every one but Default. Exact under the tenant's row lock.
    partition_count                 bigint      NOT NULL DEFAULT 0,
    created_at                      timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant_id, name)
);

CREATE TABLE queen.log_partitions (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid             uuid        NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    queue_id        bigint      NOT NULL,            -- no foreign key: its trigger would run in every push
    name            text        COLLATE "C" NOT NULL,
    last_offset     bigint      NOT NULL DEFAULT -1,
    log_start       bigint      NOT NULL DEFAULT 0,  -- base of the first live segment, last_offset + 1 without one
    txns_start      bigint      NOT NULL DEFAULT 0,  -- the same for the sidecar
    oldest_live_at  timestamptz,                     -- created_at of the first live segment; NULL: none
    oldest_txn_at   timestamptz,                     -- created_at of the first sidecar row; NULL: none
    last_write_at   timestamptz,                     -- moves at most once a second: it is indexed, and a push stays HOT
    last_created_at timestamptz,                     -- the newest segment's stamp: no later one is earlier. Never index it
    retained_bytes  bigint      NOT NULL DEFAULT 0,  -- sum of raw_bytes over the live segments
    segments        bigint      NOT NULL DEFAULT 0,  -- number of live segments
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (queue_id, name)
) WITH (
    -- Few rows, each rewritten by every push: room for HOT, vacuum by count, and no truncation, whose exclusive lock
    -- would stop every push and pop for seconds.
    fillfactor = 70,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

-- The change feed reads the partitions written in the last seconds, whatever their queue.
CREATE INDEX log_partitions_last_write_at ON queen.log_partitions (last_write_at);

-- The configuration version is the sum over these rows. A sequence would be seen before its change commits, and one
-- row would make creations of all tenants queue up behind each other's commit.
CREATE TABLE queen.config_version (
    shard   integer PRIMARY KEY,
    version bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 10, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

INSERT INTO queen.config_version (shard) SELECT generate_series(0, 15);
