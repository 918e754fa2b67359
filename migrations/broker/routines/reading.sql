-- Reads by offset: no cursor, no lease, no lock.

-- fetch_ranges says for each entry whether its queue exists, where its partition begins and ends, and which segments to
-- deliver from p_offset on: one row per segment, or a single one without. It stops behind the segment in which
-- p_bytes of payload or p_records messages are complete, and altogether when p_total bytes are; a part of a segment
-- weighs its share. Reading goes segment by segment, so that it costs what is delivered and not what is retained.
--
-- Indexes: queues (tenant_id, name), log_partitions (queue_id, name), log_segments_pkey.
CREATE OR REPLACE FUNCTION queen.fetch_ranges(
    p_tenant uuid, p_queue text[], p_partition text[], p_offset bigint[], p_bytes bigint[], p_records bigint, p_total bigint)
RETURNS TABLE (
    entry integer, known boolean, partition_id bigint, log_start bigint, last_offset bigint,
    base_offset bigint, end_offset bigint, created_at timestamptz, share bigint)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    part  record;
    seg   record;
    bytes bigint;
    first bigint;
    total bigint := 0;
BEGIN
    FOR i IN 1 .. cardinality(p_queue) LOOP
        entry := i;
        known := false;
        partition_id := NULL;
        log_start := 0;
        last_offset := -1;
        base_offset := NULL;
        SELECT q.id AS queue_id, p.id, p.log_start, p.last_offset INTO part
          FROM queen.queues q LEFT JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = p_partition[i] COLLATE "C"
         WHERE q.tenant_id = p_tenant AND q.name = p_queue[i] COLLATE "C";
        IF part.queue_id IS NOT NULL THEN
            known := true;
            IF part.id IS NOT NULL THEN
                partition_id := part.id;
                log_start := part.log_start;
                last_offset := part.last_offset;
            END IF;
        END IF;
        bytes := 0;
        IF partition_id IS NOT NULL AND p_offset[i] >= log_start AND p_offset[i] <= last_offset AND total < p_total THEN
            FOR seg IN
                SELECT g.base_offset, g.end_offset, g.created_at, g.raw_bytes FROM queen.log_segments g
                 WHERE g.partition_id = part.id AND g.end_offset >= p_offset[i]
                   AND g.base_offset >= coalesce((
                        SELECT h.base_offset FROM queen.log_segments h
                         WHERE h.partition_id = part.id AND h.base_offset <= p_offset[i]
                         ORDER BY h.base_offset DESC LIMIT 1), p_offset[i])
                   AND g.base_offset < p_offset[i] + p_records
                 ORDER BY g.base_offset
            LOOP
                first := greatest(seg.base_offset, p_offset[i]);
                base_offset := seg.base_offset;
                end_offset := seg.end_offset;
                created_at := seg.created_at;
                share := seg.raw_bytes * (seg.end_offset - first + 1) / (seg.end_offset - seg.base_offset + 1);
                RETURN NEXT;
                bytes := bytes + share;
                total := total + share;
                EXIT WHEN bytes >= p_bytes[i] OR total >= p_total;
            END LOOP;
        END IF;
        IF base_offset IS NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- safe_time returns a time before which everything that has been stored is committed and visible to the next statement:
-- stores are stamped after their transaction has begun, so the oldest transaction that runs bounds what may still
-- come. degraded says that another role's transactions hide when they began, so that the answer is a guess.
--
-- The clock is read before the list of transactions: whatever is stamped later is not before the answer.
CREATE OR REPLACE FUNCTION queen.safe_time(OUT at timestamptz, OUT degraded boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    SELECT min(a.xact_start), coalesce(bool_or(a.xact_start IS NULL AND a.state IS NULL), false) INTO at, degraded
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid();
    at := least(at, v_now);
    IF degraded THEN
        at := least(at, v_now - interval '1 minute');
    END IF;
END $$;

-- changed_partitions returns a page of the partitions of a queue that were written at p_since or later, by name. The
-- stamp of a partition moves at most once a second, so a second before p_since is looked at too.
--
-- It costs the lesser of two: what the cell has written since, as far as log_writes tells of it, or the partitions of the
-- queue. No lock. Indexes: log_writes_written_at and log_partitions_pkey, or log_partitions (queue_id, name).
CREATE OR REPLACE FUNCTION queen.changed_partitions(p_tenant uuid, p_queue text, p_since timestamptz, p_after text, p_limit bigint)
RETURNS TABLE (name text, last_offset bigint, log_start bigint, last_write_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_queue      bigint;
    v_partitions bigint;
    v_from       timestamptz := coalesce(p_since - interval '1 second', '-infinity');
BEGIN
    SELECT q.id, q.partition_count + 1 INTO v_queue, v_partitions
      FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue COLLATE "C";
    IF v_queue IS NULL THEN
        RETURN QUERY SELECT NULL::text, NULL::bigint, NULL::bigint, NULL::timestamptz;
    ELSIF queen.logged_since(v_from, v_partitions) THEN
        RETURN QUERY
        SELECT p.name, p.last_offset, p.log_start, p.last_write_at
          FROM queen.written_since(v_from) w
         CROSS JOIN LATERAL (SELECT * FROM queen.log_partitions p WHERE p.id = w.id LIMIT 1) p
         WHERE w.queue_id = v_queue AND p.name > p_after COLLATE "C" AND p.last_write_at >= v_from
         ORDER BY p.name LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT p.name, p.last_offset, p.log_start, p.last_write_at FROM queen.log_partitions p
         WHERE p.queue_id = v_queue AND p.name > p_after COLLATE "C" AND p.last_write_at >= v_from
         ORDER BY p.name LIMIT p_limit;
    END IF;
END $$;
