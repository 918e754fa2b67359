-- Cursors and leases, the registrations of groups, and the dead letters.
-- Why: the whole consumption state of a (partition, group) is one narrow row; a claim and an ack each rewrite it once.
-- Locks: none on a new database, milliseconds. Back out: drop the tables; groups then start over by their next pop.
--
-- Lock order: consumer rows come after partition rows, ascending by (partition_id, consumer_group). Claims take them
-- with SKIP LOCKED and so never wait; acks and extensions wait, in that order.
-- +goose Up
CREATE TABLE queen.log_consumers (
    -- The key is checked when a cursor is seeded only, never by a claim or an ack.
    partition_id      bigint      NOT NULL REFERENCES queen.log_partitions ON DELETE CASCADE,
    consumer_group    text        COLLATE "C" NOT NULL,
    committed         bigint      NOT NULL DEFAULT -1, -- last offset done
    batch_end         bigint,                          -- (committed, batch_end] is out; NULL: nothing is
    worker_id         uuid,                            -- holder of the lease, on the wire the lease id
    lease_expires_at  timestamptz,
    lease_acquired_at timestamptz,
    batch_retry_count integer     NOT NULL DEFAULT 0,  -- failed calls charged since the last complete batch or dead letter
    attempt_offset    bigint,                          -- where the batch that attempt_count counts began
    attempt_count     integer     NOT NULL DEFAULT 0,
    total_consumed    bigint      NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition_id, consumer_group),
    CHECK (batch_end > committed),
    CHECK ((batch_end IS NULL) = (worker_id IS NULL) AND (batch_end IS NULL) = (lease_expires_at IS NULL))
) WITH (
    -- No index but the key: every column but the key changes with every claim or ack, and a row must stay HOT.
    fillfactor = 50,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

-- Keyed by the name of the queue: a group may subscribe before the queue exists. The first registration wins.
CREATE TABLE queen.group_registrations (
    tenant_id      uuid        NOT NULL,
    queue          text        COLLATE "C" NOT NULL,
    consumer_group text        COLLATE "C" NOT NULL,
    mode           text        NOT NULL CHECK (mode IN ('all', 'new', 'timestamp')),
    seed_from      timestamptz NOT NULL, -- timestamp: the time asked for; else the time of registration
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, queue, consumer_group)
);

-- A dead letter is a snapshot: it outlives its segment, so it refers to nothing. Retention never touches it.
CREATE TABLE queen.log_dlq (
    id             uuid        PRIMARY KEY,
    tenant_id      uuid        NOT NULL,
    queue          text        COLLATE "C" NOT NULL,
    partition_id   bigint      NOT NULL,
    partition_name text        COLLATE "C" NOT NULL,
    consumer_group text        COLLATE "C" NOT NULL,
    offset_        bigint      NOT NULL,
    message_id     uuid,                  -- NULL with the payload: retention had removed the segment
    transaction_id text        COLLATE "C",
    payload        bytea,                 -- the JSON text exactly as pushed
    error          text        NOT NULL,
    retry_count    integer     NOT NULL,  -- failed calls charged before this one
    created_at     timestamptz,           -- of the message
    failed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX log_dlq_partition ON queen.log_dlq (partition_id, failed_at DESC);
