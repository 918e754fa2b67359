-- The tenants that were removed for good.
-- Why: a message of one may still come, from the spool of a broker that was down all the while, and must not make the
-- tenant anew. Locks: none, the table is new. Back out: apply yesterday's routines again, then drop the table.
-- +goose Up

-- The column is not named tenant_id: what bears that name belongs to a tenant and goes with it. Ids are never used again,
-- so a row says nothing but that; it stays, for a spool may be as old as it likes.
CREATE TABLE queen.closed_tenants (
    tenant    uuid        PRIMARY KEY,
    closed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
