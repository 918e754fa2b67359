-- queen.push_probe finds the frames of the segments at p_ordinals that the sidecar holds already, each with its lowest
-- original offset. The caller holds the partitions' row locks, so that nothing is added while it reads.
--
-- The planner cannot know how many hashes there are on either side, and only one plan is good for all: stream the
-- sidecar past a hash table of what is offered. Hence the settings, and the OFFSET 0 that keeps subqueries apart. Left
-- to itself it sorts the whole window on disk, or compares each with each: minutes for an hour at 1,000 messages a
-- second (3.6 million hashes), which take 2.5 s like this on two shared cores. Callers keep p_verified high all the same.
CREATE OR REPLACE FUNCTION queen.push_probe(
    p_partitions bigint[], p_counts integer[], p_verified bigint[], p_windows bigint[], p_hashes bytea[],
    p_ordinals integer[], p_now timestamptz
) RETURNS TABLE (ordinal integer, frame integer, at_offset bigint, created_at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_mergejoin = off SET enable_memoize = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH segment AS (
        SELECT i.ordinal::integer AS ordinal, i.id, i.count, p_hashes[i.ordinal] AS hashes,
            greatest(i.verified, p.txns_start - 1) AS above,
            greatest(p_now, p.last_created_at) - i.time_window * interval '1 microsecond' AS since
        FROM unnest(p_partitions, p_counts, p_verified, p_windows) WITH ORDINALITY AS i (id, count, verified, time_window, ordinal)
        JOIN queen.log_partitions p ON p.id = i.id
        WHERE i.ordinal = ANY (p_ordinals)
    ), offered AS MATERIALIZED (
        SELECT s.ordinal, f.frame, substring(s.hashes FROM 16 * f.frame + 1 FOR 16) AS hash
        FROM segment s CROSS JOIN generate_series(0, s.count - 1) AS f (frame)
    )
    SELECT DISTINCT ON (o.ordinal, o.frame) o.ordinal, o.frame, n.at_offset, n.created_at
    FROM (
        SELECT s.ordinal, r.base_offset + k.frame AS at_offset, r.created_at,
            substring(r.hashes FROM 16 * k.frame + 1 FOR 16) AS hash
        FROM segment s
        CROSS JOIN LATERAL (
            SELECT t.base_offset, t.end_offset, t.created_at,
                t.hashes || ''::bytea AS hashes -- fetches a large value once, not once per slice
            FROM queen.log_txns t
            WHERE t.partition_id = s.id AND t.end_offset > s.above AND t.created_at >= s.since
              -- From the row that covers the bound, else the first: ranges are disjoint and ascend.
              AND t.base_offset >= coalesce((
                  SELECT c.base_offset FROM queen.log_txns c
                  WHERE c.partition_id = s.id AND c.base_offset <= s.above ORDER BY c.base_offset DESC LIMIT 1), 0)
            OFFSET 0
        ) r
        CROSS JOIN LATERAL generate_series(0, (r.end_offset - r.base_offset)::integer) AS k (frame)
        OFFSET 0
    ) n
    JOIN offered o ON o.ordinal = n.ordinal AND o.hash = n.hash
    ORDER BY o.ordinal, o.frame, n.at_offset;
END
$$;

-- queen.push_bundle stores many segments, at most one per partition, in one statement and one commit.
--
-- It returns, by the ordinal of the segment from 1:
--   status 0  stored: at_offset is the first offset, created_at the stamp
--   status 1  duplicate: one row per frame seen before, in frame order; frame counts from 0, at_offset and created_at
--             are the original's
--   status 2  busy: another session holds the partition row
--   status 3  missing: the partition does not exist
--   status 4  plaintext: the partition's queue is encrypted and p_sealed does not say that every frame is
-- last_offset is the partition's, as seen under its lock and after this push. Only status 0 wrote anything.
--
-- Locks: the partition rows, ascending by id, so that two bundles cannot deadlock (an UPDATE joined to an array would
-- lock in the order of its plan). Busy ones are skipped unless p_wait asks to wait, bounded by lock_timeout. The lock
-- is FOR NO KEY UPDATE, the one an UPDATE takes: it excludes other pushes, retention and deletion, but not the KEY SHARE
-- of a cursor being seeded.
--
-- The clock is read after the locks and clamped to the partition's newest stamp, which keeps created_at monotone with
-- offsets across sessions and across a failover to a slower clock. Each statement of a routine has a snapshot of its
-- own, so the probe sees what the lock's previous holder committed.
--
-- The probe covers what the caller's cache does not vouch for: sidecar rows above p_verified, inside the window.
-- Windows are microseconds, 0 is no probe. A transaction id occurs once in a segment: the caller sees to that.
--
-- p_sealed says of each segment that it holds no plaintext; NULL says it of none. The flag it is held against is on the
-- locked row, so no broker's memory of the queue's options can let plaintext in.
--
-- The partition row moves no indexed column unless the partition was empty, so its update stays HOT however many partitions
-- there are. What the change feed needs to know goes into log_writes, one row for all whose last_write_at moved.
--
-- Indexes: log_partitions_pkey, twice. Plans must be generic: for array parameters the planner would prefer to plan
-- anew on every call, which costs three times the execution. Set-based, it costs half the CPU of a loop over segments
-- from 16 partitions on, and as much as the loop for one.
CREATE OR REPLACE FUNCTION queen.push_bundle(
    p_wait bool, p_partitions bigint[], p_counts integer[], p_raw_bytes bigint[], p_verified bigint[],
    p_windows bigint[], p_tenants uuid[], p_blobs bytea[], p_hashes bytea[], p_sealed boolean[] DEFAULT NULL
) RETURNS TABLE (ordinal integer, status smallint, frame integer, at_offset bigint, last_offset bigint, created_at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_locked bigint[];
    v_probe  integer[]; -- ordinals with rows nobody vouches for
    v_plain  integer[]; -- ordinals that would store plaintext where none may be
    v_dirty  integer[]; -- ordinals with a duplicate, once per duplicate; its frame, original offset and stamp follow
    v_frames integer[];
    v_firsts bigint[];
    v_stamps timestamptz[];
    v_now    timestamptz;
BEGIN
    IF p_wait THEN
        PERFORM 1 FROM queen.log_partitions p WHERE p.id = ANY (p_partitions) ORDER BY p.id FOR NO KEY UPDATE;
    END IF;

    SELECT array_agg(l.id), array_agg(l.ordinal) FILTER (WHERE l.unvouched AND NOT l.plain), array_agg(l.ordinal) FILTER (WHERE l.plain)
    INTO v_locked, v_probe, v_plain
    FROM (
        SELECT p.id, i.ordinal, i.time_window > 0 AND p.last_offset > i.verified AS unvouched,
            p.encrypted AND i.sealed IS NOT TRUE AS plain
        FROM unnest(p_partitions, p_verified, p_windows, p_sealed) WITH ORDINALITY AS i (id, verified, time_window, sealed, ordinal)
        JOIN queen.log_partitions p ON p.id = i.id
        ORDER BY p.id
        FOR NO KEY UPDATE OF p SKIP LOCKED
    ) l;
    v_now := clock_timestamp();

    IF cardinality(v_locked) IS DISTINCT FROM cardinality(p_partitions) THEN
        RETURN QUERY
        SELECT i.ordinal::integer, (CASE WHEN p.id IS NULL THEN 3 ELSE 2 END)::smallint, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz
        FROM unnest(p_partitions) WITH ORDINALITY AS i (id, ordinal)
        LEFT JOIN queen.log_partitions p ON p.id = i.id
        WHERE i.id <> ALL (coalesce(v_locked, '{}'));
        IF v_locked IS NULL THEN
            RETURN;
        END IF;
    END IF;

    IF v_probe IS NOT NULL THEN
        SELECT array_agg(d.ordinal), array_agg(d.frame), array_agg(d.at_offset), array_agg(d.created_at)
        INTO v_dirty, v_frames, v_firsts, v_stamps
        FROM queen.push_probe(p_partitions, p_counts, p_verified, p_windows, p_hashes, v_probe, v_now) d;

        IF v_dirty IS NOT NULL THEN
            RETURN QUERY
            SELECT d.ordinal, 1::smallint, d.frame, d.at_offset, p.last_offset, d.created_at
            FROM unnest(v_dirty, v_frames, v_firsts, v_stamps) AS d (ordinal, frame, at_offset, created_at)
            JOIN queen.log_partitions p ON p.id = p_partitions[d.ordinal]
            ORDER BY d.ordinal, d.frame;
        END IF;
    END IF;

    IF v_plain IS NOT NULL THEN
        RETURN QUERY
        SELECT i.ordinal, 4::smallint, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz FROM unnest(v_plain) AS i (ordinal);
        v_dirty := v_dirty || v_plain;
    END IF;

    RETURN QUERY
    WITH stored AS (
        UPDATE queen.log_partitions p
        SET last_offset     = p.last_offset + i.count,
            last_created_at = greatest(v_now, p.last_created_at),
            last_write_at   = CASE WHEN p.last_write_at > v_now - interval '1 second' THEN p.last_write_at ELSE v_now END,
            oldest_live_at  = coalesce(p.oldest_live_at, greatest(v_now, p.last_created_at)),
            oldest_txn_at   = coalesce(p.oldest_txn_at, greatest(v_now, p.last_created_at)),
            retained_bytes  = p.retained_bytes + i.raw_bytes,
            segments        = p.segments + 1,
            sealed          = p.sealed OR i.sealed IS TRUE
        FROM unnest(p_partitions, p_counts, p_raw_bytes, p_sealed) WITH ORDINALITY AS i (id, count, raw_bytes, sealed, ordinal)
        WHERE p.id = i.id AND i.id = ANY (v_locked) AND (v_dirty IS NULL OR i.ordinal <> ALL (v_dirty))
        RETURNING i.ordinal::integer AS ordinal, p.id, p.last_offset - i.count + 1 AS base_offset, p.last_offset, p.last_created_at,
            p.last_write_at, i.raw_bytes
    ), written AS (
        INSERT INTO queen.log_writes (written_at, partitions)
        SELECT v_now, array_agg(s.id) FROM stored s WHERE s.last_write_at = v_now HAVING count(*) > 0
    ), segment AS (
        INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, raw_bytes, blob)
        SELECT s.id, s.base_offset, s.last_offset, s.last_created_at, s.raw_bytes, p_blobs[s.ordinal] FROM stored s
    ), sidecar AS (
        INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
        SELECT s.id, s.base_offset, s.last_offset, s.last_created_at, p_hashes[s.ordinal] FROM stored s
    ), ledger AS (
        INSERT INTO queen.retained_ledger (tenant_id, bytes)
        SELECT p_tenants[s.ordinal], sum(s.raw_bytes) FROM stored s GROUP BY 1
    )
    SELECT s.ordinal, 0::smallint, NULL::integer, s.base_offset, s.last_offset, s.last_created_at FROM stored s;
END
$$;

-- Until now a routine that wrote no log may have been here, and calls of it may still be under way.
INSERT INTO queen.log_writes (written_at, partitions)
SELECT clock_timestamp() + interval '1 minute', '{}' WHERE EXISTS (SELECT FROM queen.log_partitions);
