-- A log of what was written lately, so that a push moves no indexed column of its partition's row.
-- Why: the change feed found recent writes by an index on log_partitions.last_write_at. A push that is the first of its
-- second moved it and so was no HOT update but a new entry in every index of the row; of 200,000 partitions that is nearly
-- every push. docs/adr/0009-a-log-of-writes.md.
-- Locks: ACCESS EXCLUSIVE on log_partitions until the commit: milliseconds, and as long as it takes to read the table once,
-- about a tenth of a second per million partitions, for the index. Back out: create the two indexes of 00002 and 00010
-- again, apply yesterday's routines, then drop the table, the column and the new index.
--
-- Brokers of the release before read last_write_at themselves, so it moves as before; without its index each of their
-- rounds of the feed reads the table, every second until they are gone.
-- +goose Up

-- A row is what one statement wrote: the partitions whose last_write_at it moved, and to what. Which is once a second and
-- partition at most. Append-only and of no tenant: ids of partitions for a quarter of an hour, until the task `writes`
-- deletes them.
--
-- A row without partitions is a gap: somebody may have written up to then without a row here. Whoever looks further back
-- than that reads last_write_at.
CREATE TABLE queen.log_writes (
    written_at timestamptz NOT NULL,
    partitions bigint[]    NOT NULL
) WITH (
    -- Nobody freezes what is gone in minutes, and a bundle's ids fit into a page: no compression, no second table.
    toast_tuple_target = 8160,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX log_writes_written_at ON queen.log_writes (written_at);
CREATE INDEX log_writes_gaps ON queen.log_writes (written_at) WHERE partitions = '{}';

DROP INDEX queen.log_partitions_last_write_at;

-- The last write as of the trim that emptied the partition; a push to an empty partition moves oldest_live_at, so while
-- that is NULL it is last_write_at. NULL: never trimmed, or emptied before this column.
ALTER TABLE queen.log_partitions ADD COLUMN idle_since timestamptz;

DROP INDEX queen.log_partitions_idle;
CREATE INDEX log_partitions_idle ON queen.log_partitions (greatest(created_at, idle_since)) WHERE oldest_live_at IS NULL;

INSERT INTO queen.maintenance_leases (task, period) VALUES ('writes', '1 minute');
