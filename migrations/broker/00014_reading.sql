-- What conflation, discovery and reads by offset need.
-- Why: whether a group conflates is decided by its first registration and marked on each lease; a group that reads all
-- queues of a namespace or task is registered for the scope, so that queues which appear later are read from that time
-- on; discovery finds the queues of a scope by key.
-- Locks: ACCESS EXCLUSIVE on three tables for milliseconds (the defaults are constants), SHARE on queues for the index:
-- as long as it takes to read it. Back out: drop the table, the index and the columns; groups then conflate no more.
-- +goose Up
ALTER TABLE queen.group_registrations ADD COLUMN conflation boolean NOT NULL DEFAULT false;

-- What is out is one message that stands for its whole span. Written by every claim, meaningless without a lease.
ALTER TABLE queen.log_consumers ADD COLUMN lease_conflated boolean NOT NULL DEFAULT false;

-- An empty namespace or task was not given and matches any. The first registration wins.
CREATE TABLE queen.scope_registrations (
    tenant_id      uuid        NOT NULL,
    namespace      text        COLLATE "C" NOT NULL,
    task           text        COLLATE "C" NOT NULL,
    consumer_group text        COLLATE "C" NOT NULL,
    mode           text        NOT NULL CHECK (mode IN ('all', 'new', 'timestamp')),
    seed_from      timestamptz NOT NULL,
    conflation     boolean     NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, namespace, task, consumer_group),
    CHECK (namespace <> '' OR task <> '')
);

CREATE INDEX queues_scope ON queen.queues (tenant_id, namespace, task);

-- These get other parameters or columns; their new text is among the routines.
DROP FUNCTION IF EXISTS queen.claim_bundle(text[], uuid[], bigint[], bigint[], bigint[], bigint[], bigint[], boolean[], integer[], bigint[], boolean);
DROP FUNCTION IF EXISTS queen.claim_ready(text[], uuid[], bigint[], bigint[], bigint[], boolean);
DROP FUNCTION IF EXISTS queen.register_group(uuid, text, text, text, timestamptz, bigint);
DROP FUNCTION IF EXISTS queen.ack_completed(uuid[], uuid[], text[], uuid[], bigint[], bigint[]);
DROP FUNCTION IF EXISTS queen.ack_bundle(
    uuid[], uuid[], text[], boolean[], uuid[], bigint[], bigint[], bigint[], bigint[], integer[], integer[], integer[],
    bytea[], integer[], bigint, integer[], bigint[], uuid[], uuid[], text[], bytea[], text[], timestamptz[]);
