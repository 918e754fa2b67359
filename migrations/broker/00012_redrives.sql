-- Paths to the dead letters for browsing, and the bulk redrives.
-- Why: letters are listed newest first per tenant and per queue, and addressed by message; a redrive is long work that
-- must survive the broker that began it, so it is a row with a lease. Locks: the indexes lock log_dlq against writes
-- while they are built, seconds per million letters. Back out: drop the indexes and the table; letters stay as they are.
--
-- Lock order: a redrive's row, then the partition that letters move to, then the letters. Whoever takes more than one
-- letter skips those that are locked, since a deletion of partitions takes them in no order.
-- +goose Up
CREATE INDEX log_dlq_tenant ON queen.log_dlq (tenant_id, failed_at DESC, id DESC);
CREATE INDEX log_dlq_queue ON queen.log_dlq (tenant_id, queue, failed_at DESC, id DESC);
CREATE INDEX log_dlq_offset ON queen.log_dlq (partition_id, offset_);
-- A transaction id may be longer than an index entry.
CREATE INDEX log_dlq_transaction ON queen.log_dlq (partition_id, hashtextextended(transaction_id, 0));

CREATE TABLE queen.redrives (
    id              uuid        PRIMARY KEY,
    tenant_id       uuid        NOT NULL,
    queue           text        COLLATE "C" NOT NULL,
    consumer_group  text        COLLATE "C",          -- NULL: letters of every group
    partition_name  text        COLLATE "C",          -- NULL: of every partition
    error_part      text,                             -- letters whose error contains it; NULL: all
    failed_from     timestamptz,                      -- NULL: from the first
    failed_before   timestamptz NOT NULL,             -- at most the time of the request: what fails again stays dead
    transaction_ids text[],                           -- NULL: all
    to_queue        text        COLLATE "C",          -- both or none; NULL: back to where each came from
    to_partition    text        COLLATE "C",
    rate            integer     NOT NULL CHECK (rate > 0), -- messages per second
    producer        text        NOT NULL,             -- who asked; '' unknown
    state           text        NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled', 'failed')),
    matched         bigint      NOT NULL,             -- letters when the redrive began
    moved           bigint      NOT NULL DEFAULT 0,
    duplicate       bigint      NOT NULL DEFAULT 0,   -- were in the log already; the letter is gone all the same
    failed          bigint      NOT NULL DEFAULT 0,   -- could not be moved; the letter stays
    after_failed_at timestamptz,                      -- letters up to (after_failed_at, after_id) are settled
    after_id        uuid,
    holder          text,                             -- broker that runs it; NULL: nobody
    lease_until     timestamptz,
    fence           bigint      NOT NULL DEFAULT 0,   -- grows with every claim: a late holder moves nothing
    error           text,                             -- why it failed
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at     timestamptz,
    CHECK ((to_queue IS NULL) = (to_partition IS NULL)),
    CHECK ((state = 'running') = (finished_at IS NULL))
) WITH (fillfactor = 50, vacuum_truncate = off);

CREATE INDEX redrives_running ON queen.redrives (created_at) WHERE state = 'running';
CREATE INDEX redrives_tenant ON queen.redrives (tenant_id, created_at);
