-- claim_bundle leases (or, under auto ack, commits) the next messages of many pops in one statement and one commit.
-- Partitions whose log may hold encrypted messages are leased under auto ack too: what cannot be decrypted must not be
-- passed over, so the broker settles the lease itself once it has opened them.
--
-- Wishes: one array element per pop; p_bytes bounds the payload of what it takes. Candidates: p_wish[i] is the 1-based
-- pop that wants partition p_candidate[i], in order of preference, under the lease time, the delay and the window of
-- the partition's queue; p_window_full[i] messages end the window before its time, 0 never. p_queue[i] is that queue, 0
-- whichever it is: a partition of another one is missing. A (partition, group) may appear only once in a call.
--
-- A conflating pop leases everything that is visible behind the cursor and is given the newest message of it alone,
-- which counts as one; skipped says how many positions that leaves out.
--
-- It decides on what the snapshot shows and only then locks, and only the rows it takes: a lock writes, and a candidate
-- that is not needed must not look busy to another broker. SKIP LOCKED never waits, so claims join no lock cycle. A row
-- that moved between the snapshot and the lock fails the re-check of `locked` and is left alone; the caller asks again.
--
-- Rows: first one per candidate with what the snapshot says, then one per delivered segment of what was taken; a
-- candidate of the second kind is taken whatever its first row says. states: 1 nothing, 2 leased, 3 not looked at,
-- 4 no such partition, 5 no cursor, 6 chosen.
--
-- Plans: every lookup is by key whatever the statistics say, so the plan is generic, and the ways by which a cached
-- plan of an empty table could read a grown one whole are closed.
DROP FUNCTION IF EXISTS queen.claim_bundle(text[], uuid[], bigint[], bigint[], bigint[], boolean[], boolean[], integer[], bigint[],
    bigint[], bigint[], bigint[], boolean); -- without p_window_full
CREATE OR REPLACE FUNCTION queen.claim_bundle(
    p_group text[], p_worker uuid[], p_budget bigint[], p_bytes bigint[], p_partitions bigint[], p_auto boolean[],
    p_conflate boolean[],
    p_wish integer[], p_candidate bigint[], p_lease_ms bigint[], p_delay_ms bigint[], p_window_ms bigint[],
    p_window_full bigint[], p_relaxed boolean, p_queue bigint[])
RETURNS TABLE (
    candidate bigint, state integer, uid uuid, name text, after bigint, through bigint, attempt integer,
    until timestamptz, visible_at timestamptz, last_offset bigint,
    base_offset bigint, end_offset bigint, created_at timestamptz, blob bytea, skipped bigint)
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
    WITH seen AS (
        -- What the snapshot shows of each candidate. want is the first offset that can exist behind the cursor.
        SELECT c.pos, c.wish, c.id, p_group[c.wish] AS grp, p_budget[c.wish] AS budget,
               p_conflate[c.wish] AS conflate, p.uid, p.name, p.last_offset, p.retained_bytes, p.sealed, k.committed, k.lease_expires_at,
               greatest(k.committed + 1, p.log_start) AS want,
               CASE WHEN p_window_ms[c.pos] > 0
                     AND (p_window_full[c.pos] <= 0
                          OR p.last_offset - greatest(k.committed, p.log_start - 1) < p_window_full[c.pos])
                    THEN p_window_ms[c.pos] * interval '1 ms' END AS gather,
               CASE WHEN p_delay_ms[c.pos] > 0 THEN p_delay_ms[c.pos] * interval '1 ms' END AS delay,
               CASE WHEN p.uid IS NULL THEN 4
                    WHEN k.committed IS NULL THEN 5
                    WHEN k.lease_expires_at > v_now THEN 2
                    WHEN p.last_offset <= k.committed THEN 1
                    ELSE 6 END AS state
          FROM unnest(p_wish, p_candidate) WITH ORDINALITY AS c(wish, id, pos)
          LEFT JOIN LATERAL (
                SELECT p.uid, p.name, p.last_offset, p.log_start, p.retained_bytes, p.sealed
                  FROM queen.log_partitions p
                 WHERE p.id = c.id AND p.queue_id = coalesce(nullif(p_queue[c.pos], 0), p.queue_id) LIMIT 1) p ON true
          LEFT JOIN LATERAL (
                SELECT k.committed, k.lease_expires_at
                  FROM queen.log_consumers k
                 WHERE k.partition_id = c.id AND k.consumer_group = p_group[c.wish] LIMIT 1) k ON true
    ), headed AS (
        -- The segment to begin with: the greatest base at or below want if it reaches want, else the next one, which
        -- steps over what retention removed. The test of its reach stays outside the LIMIT: inside, a miss would walk
        -- the dead head of the partition.
        SELECT s.*, coalesce(h.base_offset, f.base_offset) AS head,
               CASE WHEN h.base_offset IS NULL THEN f.base_offset ELSE s.want END AS start,
               coalesce(h.end_offset, f.end_offset) AS head_end,
               coalesce(h.created_at, f.created_at) AS head_at
          FROM seen s
          LEFT JOIN LATERAL (
                SELECT * FROM (
                    SELECT g.base_offset, g.end_offset, g.created_at FROM queen.log_segments g
                     WHERE s.state = 6 AND g.partition_id = s.id AND g.base_offset <= s.want
                     ORDER BY g.base_offset DESC LIMIT 1) g
                 WHERE g.end_offset >= s.want) h ON true
          LEFT JOIN LATERAL (
                SELECT g.base_offset, g.end_offset, g.created_at FROM queen.log_segments g
                 WHERE s.state = 6 AND h.base_offset IS NULL AND g.partition_id = s.id AND g.base_offset > s.want
                 ORDER BY g.base_offset LIMIT 1) f ON true
    ), gated AS (
        -- sure is the number of messages this candidate is certain to yield: exact without a delay, else its first
        -- segment; one when it conflates. The running sum over earlier candidates says how much of the budget can be left.
        --
        -- A window gathers for so long from the oldest message that waits: counted from the newest one, a partition that
        -- is written without pause would never deliver. One in which enough has gathered has none.
        SELECT h.*, h.state = 6 AND h.head IS NULL AS hollow,
               h.state = 6 AND h.head IS NOT NULL AND (h.delay IS NULL OR h.head_at + h.delay <= v_now)
                   AND (h.gather IS NULL OR h.head_at + h.gather <= v_now) AS open,
               h.head_at + greatest(h.delay, h.gather) AS ripe_at
          FROM headed h
    ), ranked AS (
        SELECT g.*,
               coalesce(sum(CASE WHEN NOT g.open THEN NULL WHEN g.conflate THEN 1
                                 ELSE CASE WHEN g.delay IS NULL THEN g.last_offset ELSE g.head_end END - g.start + 1 END)
                   OVER earlier, 0) AS sure_before,
               count(*) FILTER (WHERE g.open) OVER earlier AS open_before
          FROM gated g
        WINDOW earlier AS (PARTITION BY g.wish ORDER BY g.pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), ranged AS (
        -- How far a chosen candidate reaches. With a delay only the segments say; they are read up to the budget.
        SELECT r.*, CASE WHEN r.delay IS NULL THEN r.last_offset
                         WHEN NOT r.conflate THEN d.ripe_end
                         WHEN r.open AND r.sure_before < r.budget
                             THEN queen.offset_before(r.id, v_now - r.delay + interval '1 microsecond') END AS tail
          FROM ranked r
          LEFT JOIN LATERAL (
                SELECT max(g.end_offset) AS ripe_end FROM queen.log_segments g
                 WHERE r.delay IS NOT NULL AND NOT r.conflate AND r.open AND r.sure_before < r.budget
                   AND g.partition_id = r.id AND g.base_offset >= r.head
                   AND g.base_offset < r.start + r.budget - r.sure_before
                   AND g.created_at + r.delay <= v_now) d ON true
    ), cut AS (
        SELECT c.*, CASE WHEN c.conflate THEN c.tail ELSE least(c.tail, c.start + c.budget - c.taken_before - 1)::bigint END AS through,
               c.open AND c.taken_before < c.budget
                   AND (p_partitions[c.wish] <= 0 OR c.open_before < p_partitions[c.wish]) AS chosen
          FROM (SELECT r.*, coalesce(sum(CASE WHEN NOT r.open THEN NULL WHEN r.conflate THEN 1 ELSE r.tail - r.start + 1 END)
                                   OVER earlier, 0) AS taken_before
                  FROM ranged r
                WINDOW earlier AS (PARTITION BY r.wish ORDER BY r.pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) c
    ), scaled AS (
        -- Segments are weighed only where all that the chosen partitions retain could be too much. first is where
        -- delivery begins, and its segment.
        SELECT c.*, c.chosen AND sum(c.retained_bytes) FILTER (WHERE c.chosen) OVER (PARTITION BY c.wish) > p_bytes[c.wish] AS heavy,
               CASE WHEN c.conflate THEN c.through ELSE c.start END AS first,
               CASE WHEN c.conflate AND c.chosen THEN (
                    SELECT g.base_offset FROM queen.log_segments g
                     WHERE g.partition_id = c.id AND g.base_offset <= c.through
                     ORDER BY g.base_offset DESC LIMIT 1)
                    ELSE c.head END AS first_base
          FROM cut c
    ), weighed AS (
        -- A part of a segment weighs its share of it.
        SELECT s.*, b.bytes
          FROM scaled s
          LEFT JOIN LATERAL (
                SELECT sum(g.raw_bytes * (least(g.end_offset, s.through) - greatest(g.base_offset, s.first) + 1)
                           / (g.end_offset - g.base_offset + 1)) AS bytes
                  FROM queen.log_segments g
                 WHERE s.heavy AND g.partition_id = s.id AND g.base_offset >= s.first_base AND g.base_offset <= s.through) b ON true
    ), roomed AS (
        SELECT w.*, p_bytes[w.wish] - coalesce(sum(w.bytes) OVER earlier, 0) AS room,
               w.heavy AND coalesce(sum(w.bytes) OVER earlier, 0) = 0 AS foremost
          FROM weighed w
        WINDOW earlier AS (PARTITION BY w.wish ORDER BY w.pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), fitted AS MATERIALIZED (
        -- What is too heavy ends with the last message that fits; the very first message of a pop always does.
        SELECT r.pos, r.wish, r.id, r.grp, r.conflate, r.uid, r.name, r.last_offset, r.committed, r.lease_expires_at, r.state,
               r.hollow, r.open, r.ripe_at, r.start, r.first, r.first_base, p_auto[r.wish] AND NOT r.sealed AS auto,
               CASE WHEN r.bytes > r.room AND NOT r.conflate THEN f.reach ELSE r.through END AS through,
               r.chosen AND (NOT r.heavy OR r.bytes <= r.room OR r.foremost OR (f.reach IS NOT NULL AND NOT r.conflate)) AS chosen
          FROM roomed r
          LEFT JOIN LATERAL (
                SELECT max(g.low + g.n - 1)::bigint AS reach
                  FROM (SELECT g.low,
                               CASE WHEN g.bytes <= g.room THEN g.high - g.low + 1
                                    ELSE greatest(floor(g.room * (g.high - g.low + 1) / greatest(g.bytes, 1)),
                                                  CASE WHEN r.foremost AND g.low = r.first THEN 1 ELSE 0 END) END AS n
                          FROM (SELECT g.low, g.high, g.bytes, r.room - coalesce(sum(g.bytes) OVER (
                                           ORDER BY g.low ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS room
                                  FROM (SELECT greatest(g.base_offset, r.first) AS low, least(g.end_offset, r.through) AS high,
                                               g.raw_bytes * (least(g.end_offset, r.through) - greatest(g.base_offset, r.first) + 1)
                                               / (g.end_offset - g.base_offset + 1) AS bytes
                                          FROM queen.log_segments g
                                         WHERE r.heavy AND r.bytes > r.room AND (r.room > 0 OR r.foremost)
                                           AND g.partition_id = r.id AND g.base_offset >= r.first_base AND g.base_offset <= r.through) g
                               ) g
                       ) g
                 WHERE g.n > 0) f ON true
    ), locked AS MATERIALIZED (
        SELECT c.pos, c.wish, c.id, c.grp, c.conflate, c.auto, c.uid, c.name, c.hollow, c.last_offset, c.start,
               CASE WHEN c.conflate THEN c.through ELSE c.start END AS first, c.first_base,
               c.through, k.attempt_offset, k.attempt_count
          FROM fitted c
          JOIN queen.log_consumers k ON k.partition_id = c.id AND k.consumer_group = c.grp
         WHERE (c.chosen OR c.hollow)
           AND k.committed = c.committed AND (k.lease_expires_at IS NULL OR k.lease_expires_at <= v_now)
         ORDER BY k.partition_id, k.consumer_group
           FOR NO KEY UPDATE OF k SKIP LOCKED
    ), moved AS (
        -- A hollow partition, emptied by retention, is sealed: its cursor goes to the end, else it would look pending
        -- for ever.
        UPDATE queen.log_consumers k
           SET committed = CASE WHEN l.hollow THEN l.last_offset WHEN l.auto THEN l.through ELSE k.committed END,
               batch_end = CASE WHEN l.hollow OR l.auto THEN NULL ELSE l.through END,
               worker_id = CASE WHEN l.hollow OR l.auto THEN NULL ELSE p_worker[l.wish] END,
               lease_expires_at = CASE WHEN l.hollow OR l.auto THEN NULL
                                       ELSE v_now + p_lease_ms[l.pos] * interval '1 ms' END,
               lease_acquired_at = CASE WHEN l.hollow OR l.auto THEN NULL ELSE v_now END,
               lease_conflated = l.conflate AND NOT l.hollow,
               batch_retry_count = CASE WHEN l.hollow OR l.auto THEN 0 ELSE k.batch_retry_count END,
               attempt_offset = CASE WHEN l.hollow OR l.auto THEN NULL ELSE l.start END,
               attempt_count = CASE WHEN l.hollow OR l.auto THEN 0
                                    WHEN k.attempt_offset = l.start THEN k.attempt_count + 1 ELSE 1 END,
               total_consumed = k.total_consumed
                              + CASE WHEN NOT l.hollow AND l.auto THEN l.through - k.committed ELSE 0 END
          FROM locked l
         WHERE k.partition_id = l.id AND k.consumer_group = l.grp
        RETURNING l.*, greatest(k.attempt_count, 1) AS attempt, k.lease_expires_at
    )
    SELECT c.pos, CASE WHEN c.chosen THEN 6
                       WHEN c.state <> 6 THEN c.state
                       WHEN c.open THEN 3
                       ELSE 1 END,
           c.uid, NULL::text, c.committed, NULL::bigint, NULL::integer,
           CASE WHEN c.state = 2 THEN c.lease_expires_at WHEN c.chosen THEN v_now + interval '250 ms' END,
           CASE WHEN c.state = 6 AND NOT c.open AND NOT c.hollow THEN c.ripe_at END,
           c.last_offset, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::bytea, NULL::bigint
      FROM fitted c
    UNION ALL
    SELECT m.pos, 0, m.uid, m.name, m.first - 1, m.through, m.attempt, m.lease_expires_at, NULL::timestamptz, m.last_offset,
           g.base_offset, g.end_offset, g.created_at, g.blob, m.first - m.start
      FROM moved m
      CROSS JOIN LATERAL (
            SELECT g.base_offset, g.end_offset, g.created_at, g.blob FROM queen.log_segments g
             WHERE g.partition_id = m.id AND g.base_offset >= m.first_base AND g.base_offset <= m.through
             ORDER BY g.base_offset) g
     WHERE NOT m.hollow;
END $$;

-- As the brokers of the release before call it: without p_queue.
CREATE OR REPLACE FUNCTION queen.claim_bundle(
    p_group text[], p_worker uuid[], p_budget bigint[], p_bytes bigint[], p_partitions bigint[], p_auto boolean[],
    p_conflate boolean[],
    p_wish integer[], p_candidate bigint[], p_lease_ms bigint[], p_delay_ms bigint[], p_window_ms bigint[],
    p_window_full bigint[], p_relaxed boolean)
RETURNS TABLE (
    candidate bigint, state integer, uid uuid, name text, after bigint, through bigint, attempt integer,
    until timestamptz, visible_at timestamptz, last_offset bigint,
    base_offset bigint, end_offset bigint, created_at timestamptz, blob bytea, skipped bigint)
LANGUAGE sql
AS $$
    SELECT * FROM queen.claim_bundle(p_group, p_worker, p_budget, p_bytes, p_partitions, p_auto, p_conflate, p_wish,
        p_candidate, p_lease_ms, p_delay_ms, p_window_ms, p_window_full, p_relaxed, NULL)
$$;
