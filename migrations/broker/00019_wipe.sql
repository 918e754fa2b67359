-- What the removal of a whole tenant and the purge of old trace events need.
-- Why: the log of a dropped partition is swept later, and only a column can still say whose it was; trace events are
-- purged by their age.
-- Locks: ACCESS EXCLUSIVE on dropped_partitions for milliseconds, SHARE on message_traces while a BRIN index is built: as
-- long as it takes to read it. Back out: drop the index and the column, and apply yesterday's routines again.
-- +goose Up

-- NULL: dropped before this column; such rows are gone with the next turn of the task `partitions`.
ALTER TABLE queen.dropped_partitions ADD COLUMN tenant_id uuid;

-- Events come in the order of time, so a few bytes do.
CREATE INDEX message_traces_created ON queen.message_traces USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

-- It gets another parameter; its new text is among the routines.
DROP FUNCTION IF EXISTS queen.sweep_dropped(integer);
