-- queen.bump_config makes every broker and gateway look again at what it knows of queues, at the latest when its next
-- poll of the change feed sees another sum. Call it last in the transaction that changed something: it takes one row
-- lock of sixteen, held until the commit.
CREATE OR REPLACE FUNCTION queen.bump_config() RETURNS void
LANGUAGE sql AS $$
    UPDATE queen.config_version SET version = version + 1 WHERE shard = pg_backend_pid() % 16;
$$;

-- writes_keep is how long a row of log_writes stays. The widest look back of a broker is ten minutes.
CREATE OR REPLACE FUNCTION queen.writes_keep() RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
    SELECT interval '15 minutes'
$$;

-- logged_since says whether log_writes tells of all that was written at p_since or later: it reaches back so far, with a
-- minute to spare for a purge that comes in between, and has no gap since. With p_rows it must also be the cheaper way:
-- looking up what it names, against reading p_rows partitions one after the other, which costs an eighth for each.
-- No lock. Indexes: log_writes_gaps, log_writes_written_at.
CREATE OR REPLACE FUNCTION queen.logged_since(p_since timestamptz, p_rows bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_most bigint := p_rows / 8 + 64; -- of few, either is cheap
BEGIN
    RETURN p_since >= clock_timestamp() - queen.writes_keep() + interval '1 minute'
       AND NOT EXISTS (SELECT FROM queen.log_writes w WHERE w.written_at >= p_since AND w.partitions = '{}')
       AND (p_rows IS NULL OR (
            -- A row names one partition at least, so more rows than v_most need no counting.
            SELECT coalesce(sum(l.named), 0) <= v_most FROM (
                SELECT cardinality(w.partitions) AS named FROM queen.log_writes w WHERE w.written_at >= p_since LIMIT v_most + 1) l));
END
$$;

-- written_since returns the partitions that were written at p_since or later, each once. It costs the lesser of two: what
-- was written since, as far as log_writes tells of it, or one look at every partition.
--
-- STABLE is a promise to the feed: it reads by the snapshot of the statement that calls it.
-- No lock. Indexes: log_writes_written_at and log_partitions_pkey, or none.
CREATE OR REPLACE FUNCTION queen.written_since(p_since timestamptz) RETURNS TABLE (id bigint, queue_id bigint, last_offset bigint)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off -- where there is an index
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_rows bigint;
BEGIN
    -- An estimate, kept by vacuum; below 0 before the first.
    SELECT nullif(c.reltuples, -1)::bigint INTO v_rows FROM pg_class c WHERE c.oid = 'queen.log_partitions'::regclass;
    IF queen.logged_since(p_since, v_rows) THEN
        RETURN QUERY
        SELECT p.id, p.queue_id, p.last_offset
          FROM (SELECT DISTINCT i.id FROM queen.log_writes w CROSS JOIN LATERAL unnest(w.partitions) AS i (id) WHERE w.written_at >= p_since) w
         CROSS JOIN LATERAL (SELECT p.id, p.queue_id, p.last_offset FROM queen.log_partitions p WHERE p.id = w.id LIMIT 1) p;
    ELSE
        RETURN QUERY
        SELECT p.id, p.queue_id, p.last_offset FROM queen.log_partitions p WHERE p.last_write_at >= p_since;
    END IF;
END
$$;
