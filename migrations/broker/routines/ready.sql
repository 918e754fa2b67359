-- The common claim and the common acknowledgement, as short statements of their own: most of what the general routines
-- cost is starting a plan of thirty nodes. Both touch only what they are sure of and leave the rest without a row; the
-- caller then asks the general routine, which alone decides what is wrong.

-- claim_ready leases the next messages of many (partition, group) pairs, each for a pop that wants one partition and
-- whose queue defers nothing. A pair is taken if its cursor is free, messages wait behind it and retention has removed
-- none of them, nor are they too much: at most p_budget[i] messages from the cursor, of p_bytes[i] in whole segments.
-- p_queue[i] is the queue that the partition is of, 0 whichever it is. A pair may appear only once in a call.
--
-- Locks and indexes are those of claim_bundle: rows in key order, SKIP LOCKED, by primary keys.
CREATE OR REPLACE FUNCTION queen.claim_ready(
    p_group text[], p_worker uuid[], p_lease_ms bigint[], p_budget bigint[], p_bytes bigint[], p_candidate bigint[],
    p_relaxed boolean, p_queue bigint[])
RETURNS TABLE (
    candidate bigint, uid uuid, name text, after bigint, through bigint, attempt integer, until timestamptz,
    last_offset bigint, base_offset bigint, end_offset bigint, created_at timestamptz, blob bytea)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF p_relaxed THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT c.pos, k.partition_id, k.consumer_group, k.committed, p.uid, p.name, p.last_offset
          FROM unnest(p_candidate) WITH ORDINALITY AS c(id, pos)
          JOIN queen.log_partitions p ON p.id = c.id AND p.queue_id = coalesce(nullif(p_queue[c.pos], 0), p.queue_id)
          JOIN queen.log_consumers k ON k.partition_id = c.id AND k.consumer_group = p_group[c.pos]
         WHERE p.last_offset > k.committed AND p.log_start <= k.committed + 1
           AND (k.lease_expires_at IS NULL OR k.lease_expires_at <= v_now)
           AND (p.retained_bytes <= p_bytes[c.pos] OR p_bytes[c.pos] >= (
                SELECT sum(g.raw_bytes) FROM queen.log_segments g
                 WHERE g.partition_id = c.id AND g.base_offset <= least(p.last_offset, k.committed + p_budget[c.pos])
                   AND g.base_offset >= coalesce((
                        SELECT h.base_offset FROM queen.log_segments h
                         WHERE h.partition_id = c.id AND h.base_offset <= k.committed + 1
                         ORDER BY h.base_offset DESC LIMIT 1), k.committed + 1)))
         ORDER BY k.partition_id, k.consumer_group
           FOR NO KEY UPDATE OF k SKIP LOCKED
    ), moved AS (
        UPDATE queen.log_consumers k
           SET batch_end = least(l.last_offset, k.committed + p_budget[l.pos]),
               worker_id = p_worker[l.pos],
               lease_expires_at = v_now + p_lease_ms[l.pos] * interval '1 ms',
               lease_acquired_at = v_now,
               lease_conflated = false,
               attempt_offset = k.committed + 1,
               attempt_count = CASE WHEN k.attempt_offset = k.committed + 1 THEN k.attempt_count + 1 ELSE 1 END
          FROM locked l
         WHERE k.partition_id = l.partition_id AND k.consumer_group = l.consumer_group
        RETURNING l.pos, l.partition_id, l.uid, l.name, l.last_offset, k.committed, k.batch_end, k.attempt_count, k.lease_expires_at
    )
    SELECT m.pos, m.uid, m.name, m.committed, m.batch_end, m.attempt_count, m.lease_expires_at, m.last_offset,
           g.base_offset, g.end_offset, g.created_at, g.blob
      FROM moved m
      CROSS JOIN LATERAL (
            -- From the segment that holds the first message, if one begins before it, to the end of the batch.
            SELECT g.base_offset, g.end_offset, g.created_at, g.blob FROM queen.log_segments g
             WHERE g.partition_id = m.partition_id AND g.base_offset <= m.batch_end
               AND g.base_offset >= coalesce((
                    SELECT h.base_offset FROM queen.log_segments h
                     WHERE h.partition_id = m.partition_id AND h.base_offset <= m.committed + 1
                     ORDER BY h.base_offset DESC LIMIT 1), m.committed + 1)
             ORDER BY g.base_offset) g;
END $$;

-- As the brokers of the release before call it: without p_queue.
CREATE OR REPLACE FUNCTION queen.claim_ready(
    p_group text[], p_worker uuid[], p_lease_ms bigint[], p_budget bigint[], p_bytes bigint[], p_candidate bigint[],
    p_relaxed boolean)
RETURNS TABLE (
    candidate bigint, uid uuid, name text, after bigint, through bigint, attempt integer, until timestamptz,
    last_offset bigint, base_offset bigint, end_offset bigint, created_at timestamptz, blob bytea)
LANGUAGE sql
AS $$
    SELECT * FROM queen.claim_ready(p_group, p_worker, p_lease_ms, p_budget, p_bytes, p_candidate, p_relaxed, NULL)
$$;

-- ack_completed moves many cursors to the highest completed message of each, p_done[i], for groups that report nothing
-- but completions, name their lease and know their offsets. A group is decided if the lease is live and holds all it
-- names; the columns are those of ack_bundle. A (partition, group) may appear only once in a call.
--
-- Locks and indexes are those of ack_bundle: rows in key order, waiting.
CREATE OR REPLACE FUNCTION queen.ack_completed(
    p_tenant uuid[], p_partition uuid[], p_group text[], p_lease uuid[], p_low bigint[], p_done bigint[])
RETURNS TABLE (
    ordinal bigint, outcome integer, partition_id bigint, queue_id bigint, queue text,
    before bigint, committed bigint, last_offset bigint, act integer, signal bigint, released boolean, offsets bigint[],
    skipped bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH locked AS MATERIALIZED (
        -- The clock is read again when a row had to be waited for and has changed.
        SELECT g.n, k.partition_id, k.consumer_group, k.committed AS before, p.queue_id, q.name AS queue, p.last_offset,
               k.lease_conflated
          FROM unnest(p_partition) WITH ORDINALITY AS g(uid, n)
          JOIN queen.log_partitions p ON p.uid = g.uid
          JOIN queen.queues q ON q.id = p.queue_id AND q.tenant_id = p_tenant[g.n]
          JOIN queen.log_consumers k ON k.partition_id = p.id AND k.consumer_group = p_group[g.n]
         WHERE k.worker_id = p_lease[g.n] AND k.lease_expires_at > clock_timestamp()
           AND k.committed < p_low[g.n] AND k.batch_end >= p_done[g.n]
         ORDER BY k.partition_id, k.consumer_group
           FOR NO KEY UPDATE OF k
    ), moved AS (
        UPDATE queen.log_consumers k
           SET committed = p_done[l.n],
               batch_end = CASE WHEN k.batch_end > p_done[l.n] THEN k.batch_end END,
               worker_id = CASE WHEN k.batch_end > p_done[l.n] THEN k.worker_id END,
               lease_expires_at = CASE WHEN k.batch_end > p_done[l.n] THEN k.lease_expires_at END,
               lease_acquired_at = CASE WHEN k.batch_end > p_done[l.n] THEN k.lease_acquired_at END,
               batch_retry_count = CASE WHEN k.batch_end > p_done[l.n] THEN k.batch_retry_count ELSE 0 END,
               -- What is left of a batch that stays out begins at its first uncommitted message.
               attempt_offset = CASE WHEN k.batch_end > p_done[l.n] THEN p_done[l.n] + 1 END,
               attempt_count = CASE WHEN k.batch_end > p_done[l.n] THEN k.attempt_count ELSE 0 END,
               total_consumed = k.total_consumed + p_done[l.n] - k.committed
          FROM locked l
         WHERE k.partition_id = l.partition_id AND k.consumer_group = l.consumer_group
        RETURNING l.*, k.committed, k.batch_end
    )
    SELECT m.n, 0, m.partition_id, m.queue_id, m.queue, m.before, m.committed, m.last_offset, 0, NULL::bigint,
           m.batch_end IS NULL, NULL::bigint[], CASE WHEN m.lease_conflated THEN m.committed - m.before - 1 END
      FROM moved m;
END $$;
