-- The life cycle of tenants and clusters, and the removal of what the cells hold of a deleted one.
-- Why: a tenant can be paused, or left with nothing but its export; a deletion is work of minutes, done by one gateway at
-- a time, and must be seen and gone on with after a crash.
-- Locks: ACCESS EXCLUSIVE on tenants and clusters while both are read once, milliseconds. Back out: move clusters out of
-- the new states, restore both constraints, drop the tables and apply yesterday's routines again. Gateways of yesterday
-- take a state that they do not know for suspended.
-- +goose Up

-- grace and push_blocked are two words for one state: the one is said of who pays, the other of what happens.
ALTER TABLE queengate.tenants
    DROP CONSTRAINT tenants_status_check,
    ADD CONSTRAINT tenants_status_check CHECK (status IN
        ('active', 'grace', 'push_blocked', 'export_only', 'paused', 'suspended', 'deleting'));
ALTER TABLE queengate.clusters
    DROP CONSTRAINT clusters_status_check,
    ADD CONSTRAINT clusters_status_check CHECK (status IN
        ('active', 'grace', 'push_blocked', 'export_only', 'paused', 'suspended', 'deleting'));

-- Work that one process of a fleet does at a time. The fence rises with every change of the holder: who lost a lease
-- without knowing is told by what it writes.
CREATE TABLE queengate.leases (
    task   text PRIMARY KEY CHECK (task ~ '^[a-z][a-z_]{0,62}$'),
    holder text NOT NULL CHECK (length(holder) BETWEEN 1 AND 255),
    fence  bigint NOT NULL DEFAULT 1,
    until  timestamptz NOT NULL
);

-- How far the removal of a cluster's data has come. The row goes with the cluster; what was removed stands in the audit.
CREATE TABLE queengate.wipes (
    cluster_id   uuid PRIMARY KEY REFERENCES queengate.clusters ON DELETE CASCADE,
    began_at     timestamptz NOT NULL DEFAULT now(),
    rows_removed bigint NOT NULL DEFAULT 0,
    bytes_found  bigint, -- raw payload bytes, as measured before the first step
    bytes_left   bigint,
    queues_left  bigint,
    stands_at    text,   -- what is being removed
    emptied_at   timestamptz, -- its cell said that nothing is left
    confirmed_at timestamptz, -- and said so again after brokers had written what they still had
    failure      text,   -- of the last attempt; NULL: it went well
    updated_at   timestamptz NOT NULL DEFAULT now()
);
REVOKE ALL ON ALL TABLES IN SCHEMA queengate FROM PUBLIC;
