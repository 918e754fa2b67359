-- A group is registered at once, however many partitions the queue has; its cursors follow.
-- Why: the first pop of a group made a cursor for every partition in one statement: seconds with 200,000, longer than a
-- statement may take on a busy machine, and that pop was answered 503. docs/design/leases.md, "Where a group starts".
-- Locks: ACCESS EXCLUSIVE on two tables for milliseconds (nothing is rewritten), SHARE on the registrations for the index:
-- as long as it takes to read them. Back out: when no registration has seeded_to, apply yesterday's routines, then drop
-- the columns and the row of the task.
--
-- Brokers of the release before register as they did, all cursors in one commit; those that they find missing they make at
-- the first claim, as before.
-- +goose Up

-- The greatest id that a partition had when the group registered: those with a greater one were created later, whatever the
-- clocks of two servers say. NULL for registrations from before this column: there created_at decides.
ALTER TABLE queen.group_registrations ADD COLUMN last_partition bigint;
ALTER TABLE queen.scope_registrations ADD COLUMN last_partition bigint;

-- The registration still owes cursors, of the partitions behind this name; '' before the first. NULL: it owes none.
ALTER TABLE queen.group_registrations ADD COLUMN seeded_to text COLLATE "C";

CREATE INDEX group_registrations_unseeded ON queen.group_registrations (tenant_id, queue, consumer_group) WHERE seeded_to IS NOT NULL;

INSERT INTO queen.maintenance_leases (task, period) VALUES ('cursors', '5 seconds');
