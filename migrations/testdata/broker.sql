--
-- PostgreSQL database dump
--



SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: queen; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA queen;


--
-- Name: trim_step; Type: TYPE; Schema: queen; Owner: -
--

CREATE TYPE queen.trim_step AS (
	partition_id bigint,
	log_from bigint,
	log_below bigint,
	txns_from bigint,
	txns_below bigint,
	segments bigint,
	txns bigint,
	raw_bytes bigint,
	by_age bigint,
	by_completion bigint,
	by_wait bigint,
	bytes_by_age bigint,
	bytes_by_completion bigint,
	bytes_by_wait bigint
);


--
-- Name: ack_bundle(uuid[], uuid[], text[], boolean[], uuid[], bigint[], bigint[], bigint[], bigint[], integer[], integer[], integer[], bytea[], integer[], bigint, integer[], bigint[], uuid[], uuid[], text[], bytea[], text[], timestamp with time zone[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.ack_bundle(p_tenant uuid[], p_partition uuid[], p_group text[], p_named boolean[], p_lease uuid[], p_low bigint[], p_high bigint[], p_done bigint[], p_sig bigint[], p_kind integer[], p_first integer[], p_last integer[], p_hash bytea[], p_status integer[], p_width bigint, p_frame integer[], f_offset bigint[], f_id uuid[], f_message uuid[], f_txn text[], f_payload bytea[], f_error text[], f_created timestamp with time zone[]) RETURNS TABLE(ordinal bigint, outcome integer, partition_id bigint, queue_id bigint, queue text, before bigint, committed bigint, last_offset bigint, act integer, signal bigint, released boolean, offsets bigint[], skipped bigint)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz;
    v_offset bigint[];
BEGIN
    -- Acks wait for each other here, in key order; claims skip what is locked.
    PERFORM FROM unnest(p_tenant, p_partition, p_group) AS g(tenant, uid, grp)
       JOIN queen.log_partitions p ON p.uid = g.uid
       JOIN queen.queues q ON q.id = p.queue_id AND q.tenant_id = g.tenant
       JOIN queen.log_consumers k ON k.partition_id = p.id AND k.consumer_group = g.grp
      ORDER BY k.partition_id, k.consumer_group
        FOR NO KEY UPDATE OF k;
    v_now := clock_timestamp();
    IF cardinality(p_hash) > 0 THEN
        v_offset := queen.resolve_hashes(p_tenant, p_partition, p_group, p_first, p_last, p_hash, p_width);
    END IF;
    RETURN QUERY
    WITH asked AS (
        -- The rows cannot change any more: this statement's snapshot is later than the locks.
        SELECT g.*, p.id, p.name AS partition, p.last_offset, p.txns_start, p.queue_id, p.queue, p.retry_limit, p.files,
               k.committed, k.batch_end, k.batch_retry_count, k.live, k.conflated,
               CASE WHEN p.id IS NULL THEN 1
                    WHEN k.committed IS NULL THEN 2
                    WHEN g.named AND (k.live AND k.worker_id = g.lease) IS NOT TRUE THEN 3
                    WHEN g.low IS NOT NULL AND (g.named AND g.low > k.committed AND g.high <= k.batch_end) IS NOT TRUE THEN 4
                    WHEN g.low IS NULL AND coalesce(k.batch_end, p.last_offset)
                                         - greatest(CASE WHEN k.conflated THEN k.batch_end - 1 ELSE k.committed END,
                                                    p.txns_start - 1) > p_width THEN 5
                    ELSE 0 END AS outcome
          FROM unnest(p_tenant, p_partition, p_group, p_named, p_lease, p_low, p_high, p_done, p_sig, p_kind,
                      p_first, p_last, p_frame)
               WITH ORDINALITY AS g(tenant, uid, grp, named, lease, low, high, done, sig, kind, first, last, frame, n)
          LEFT JOIN LATERAL (
                SELECT p.id, p.name, p.last_offset, p.txns_start, p.queue_id, q.name AS queue, q.retry_limit,
                       q.dead_letter_queue OR q.dlq_after_max_retries AS files
                  FROM queen.log_partitions p
                  JOIN queen.queues q ON q.id = p.queue_id
                 WHERE p.uid = g.uid AND q.tenant_id = g.tenant LIMIT 1) p ON true
          LEFT JOIN LATERAL (
                SELECT k.committed, k.batch_end, k.batch_retry_count, k.worker_id, k.lease_expires_at > v_now AS live,
                       k.lease_conflated AND k.batch_end IS NOT NULL AS conflated
                  FROM queen.log_consumers k
                 WHERE k.partition_id = p.id AND k.consumer_group = g.grp LIMIT 1) k ON true
    ), heard AS (
        -- The highest completion and the lowest signal; of signals at one offset the strongest counts.
        SELECT r.*,
               CASE WHEN r.low IS NULL THEN i.done ELSE r.done END AS top,
               CASE WHEN r.low IS NULL THEN i.signal / 4 ELSE r.sig END AS at,
               CASE WHEN r.low IS NULL THEN 3 - i.signal % 4 ELSE r.kind END AS how
          FROM asked r
          LEFT JOIN LATERAL (
                SELECT max(i.at) FILTER (WHERE i.status = 0) AS done,
                       min(i.at * 4 + 3 - i.status) FILTER (WHERE i.status > 0) AS signal
                  FROM unnest(v_offset[r.first:r.last], p_status[r.first:r.last]) AS i(at, status)
                 WHERE r.low IS NULL AND r.outcome = 0 AND i.at >= 0) i ON true
    ), judged AS (
        -- A signal acts only on a batch that is out; the clamp below it holds always.
        SELECT h.*,
               greatest(h.committed, CASE WHEN h.top >= h.at THEN h.at - 1 ELSE h.top END) AS prefix,
               CASE WHEN h.outcome <> 0 OR h.at IS NULL OR h.batch_end IS NULL THEN 0
                    WHEN h.how = 1 THEN 1
                    WHEN h.how = 2 AND h.batch_retry_count < h.retry_limit THEN 2
                    WHEN h.how = 2 AND NOT h.files THEN 4
                    ELSE 3 END AS act
          FROM heard h
    ), decided AS MATERIALIZED (
        SELECT j.*,
               CASE WHEN j.act = 3 AND (j.frame > 0 AND f_offset[j.frame] = j.at) IS NOT TRUE THEN 6 ELSE j.outcome END AS verdict,
               CASE WHEN j.act >= 3 THEN j.at ELSE j.prefix END AS target,
               j.act > 0 OR (j.batch_end IS NOT NULL AND j.prefix >= j.batch_end) AS ends,
               j.act >= 3 OR (j.act = 0 AND j.batch_end IS NOT NULL AND j.prefix >= j.batch_end) AS resets
          FROM judged j
    ), moved AS (
        UPDATE queen.log_consumers k
           SET committed = d.target,
               batch_end = CASE WHEN NOT d.ends THEN k.batch_end END,
               worker_id = CASE WHEN NOT d.ends THEN k.worker_id END,
               lease_expires_at = CASE WHEN NOT d.ends THEN k.lease_expires_at END,
               lease_acquired_at = CASE WHEN NOT d.ends THEN k.lease_acquired_at END,
               batch_retry_count = CASE WHEN d.resets THEN 0 WHEN d.act = 2 THEN k.batch_retry_count + 1
                                        ELSE k.batch_retry_count END,
               -- A release keeps the attempt, so that the next delivery counts as one more. What is left of a batch
               -- that stays out begins at its first uncommitted message.
               attempt_offset = CASE WHEN d.resets THEN NULL
                                     WHEN NOT d.ends AND k.batch_end IS NOT NULL THEN d.target + 1
                                     ELSE k.attempt_offset END,
               attempt_count = CASE WHEN d.resets THEN 0 ELSE k.attempt_count END,
               total_consumed = k.total_consumed + d.target - d.committed
          FROM decided d
         WHERE d.verdict = 0 AND (d.ends OR d.target > d.committed)
           AND k.partition_id = d.id AND k.consumer_group = d.grp
    ), filed AS (
        INSERT INTO queen.log_dlq (id, tenant_id, queue, partition_id, partition_name, consumer_group, offset_,
                                   message_id, transaction_id, payload, error, retry_count, created_at, failed_at)
        SELECT f_id[d.frame], d.tenant, d.queue, d.id, d.partition, d.grp, d.at,
               f_message[d.frame], f_txn[d.frame], f_payload[d.frame], f_error[d.frame], d.batch_retry_count,
               f_created[d.frame], v_now
          FROM decided d
         WHERE d.verdict = 0 AND d.act = 3
    )
    SELECT d.n, d.verdict, d.id, d.queue_id, d.queue, d.committed,
           CASE WHEN d.verdict = 0 THEN d.target ELSE d.committed END,
           d.last_offset, d.act, d.at,
           d.verdict = 0 AND d.ends AND d.live IS TRUE,
           CASE WHEN d.low IS NULL AND d.outcome = 0 THEN v_offset[d.first:d.last] END,
           CASE WHEN d.conflated AND d.verdict = 0 AND d.target > d.committed THEN d.target - d.committed - 1 END
      FROM decided d
     ORDER BY d.n;
END $$;


--
-- Name: ack_completed(uuid[], uuid[], text[], uuid[], bigint[], bigint[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.ack_completed(p_tenant uuid[], p_partition uuid[], p_group text[], p_lease uuid[], p_low bigint[], p_done bigint[]) RETURNS TABLE(ordinal bigint, outcome integer, partition_id bigint, queue_id bigint, queue text, before bigint, committed bigint, last_offset bigint, act integer, signal bigint, released boolean, offsets bigint[], skipped bigint)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
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


--
-- Name: bump_config(); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.bump_config() RETURNS void
    LANGUAGE sql
    AS $$
    UPDATE queen.config_version SET version = version + 1 WHERE shard = pg_backend_pid() % 16;
$$;


--
-- Name: changed_partitions(uuid, text, timestamp with time zone, text, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.changed_partitions(p_tenant uuid, p_queue text, p_since timestamp with time zone, p_after text, p_limit bigint) RETURNS TABLE(name text, last_offset bigint, log_start bigint, last_write_at timestamp with time zone)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_custom_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    v_queue bigint;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue COLLATE "C";
    IF v_queue IS NULL THEN
        RETURN QUERY SELECT NULL::text, NULL::bigint, NULL::bigint, NULL::timestamptz;
    ELSIF p_since IS NULL THEN
        RETURN QUERY
        SELECT p.name, p.last_offset, p.log_start, p.last_write_at FROM queen.log_partitions p
         WHERE p.queue_id = v_queue AND p.name > p_after COLLATE "C" AND p.last_write_at IS NOT NULL
         ORDER BY p.name LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT p.name, p.last_offset, p.log_start, p.last_write_at FROM queen.log_partitions p
         WHERE p.queue_id = v_queue AND p.name > p_after COLLATE "C" AND p.last_write_at >= p_since - interval '1 second'
         ORDER BY p.name LIMIT p_limit;
    END IF;
END $$;


--
-- Name: claim_bundle(text[], uuid[], bigint[], bigint[], bigint[], boolean[], boolean[], integer[], bigint[], bigint[], bigint[], bigint[], bigint[], boolean); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.claim_bundle(p_group text[], p_worker uuid[], p_budget bigint[], p_bytes bigint[], p_partitions bigint[], p_auto boolean[], p_conflate boolean[], p_wish integer[], p_candidate bigint[], p_lease_ms bigint[], p_delay_ms bigint[], p_window_ms bigint[], p_window_full bigint[], p_relaxed boolean) RETURNS TABLE(candidate bigint, state integer, uid uuid, name text, after bigint, through bigint, attempt integer, until timestamp with time zone, visible_at timestamp with time zone, last_offset bigint, base_offset bigint, end_offset bigint, created_at timestamp with time zone, blob bytea, skipped bigint)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
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
                  FROM queen.log_partitions p WHERE p.id = c.id LIMIT 1) p ON true
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


--
-- Name: claim_ready(text[], uuid[], bigint[], bigint[], bigint[], bigint[], boolean); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.claim_ready(p_group text[], p_worker uuid[], p_lease_ms bigint[], p_budget bigint[], p_bytes bigint[], p_candidate bigint[], p_relaxed boolean) RETURNS TABLE(candidate bigint, uid uuid, name text, after bigint, through bigint, attempt integer, until timestamp with time zone, last_offset bigint, base_offset bigint, end_offset bigint, created_at timestamp with time zone, blob bytea)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
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
          JOIN queen.log_partitions p ON p.id = c.id
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


--
-- Name: claim_tasks(text, interval, text[], interval[], interval); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.claim_tasks(p_holder text, p_lease interval, p_tasks text[], p_periods interval[], p_idle interval) RETURNS TABLE(task text, fence bigint, until timestamp with time zone)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_row record;
BEGIN
    -- Nothing here needs to survive a crash: a claim that is lost is made again by somebody.
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR v_row IN
        SELECT l.task, w.period FROM queen.maintenance_leases l
          JOIN unnest(p_tasks, p_periods) AS w (task, period) ON w.task = l.task
         WHERE l.enabled AND (l.lease_until IS NULL OR l.lease_until <= v_now)
           -- A due time beyond the period is an older configuration's, or a clock's that ran ahead.
           AND (l.next_due_at <= v_now OR l.next_due_at > v_now + w.period)
         ORDER BY l.task
           FOR NO KEY UPDATE OF l SKIP LOCKED
    LOOP
        IF queen.task_due(v_row.task, p_idle) THEN
            RETURN QUERY UPDATE queen.maintenance_leases l
               SET fence = l.fence + 1, holder = p_holder, lease_until = v_now + p_lease, period = v_row.period, updated_at = v_now
             WHERE l.task = v_row.task
            RETURNING l.task, l.fence, l.lease_until;
        ELSE
            UPDATE queen.maintenance_leases l
               SET next_due_at = queen.next_turn(l.next_due_at, v_row.period, v_now), period = v_row.period, holder = NULL,
                   lease_until = NULL, last_run_at = v_now, last_run_ms = 0, last_error = NULL, last_run_stats = NULL, updated_at = v_now
             WHERE l.task = v_row.task;
        END IF;
    END LOOP;
END $$;


--
-- Name: clear_queue(uuid, text, text); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.clear_queue(p_tenant uuid, p_queue text, p_partition text, OUT existed boolean, OUT partitions bigint[], OUT messages bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_queue bigint;
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    existed := FOUND;
    -- No push can land between the count and the deletion: the rows are locked as delete_partitions locks them.
    SELECT coalesce(array_agg(l.id), '{}'), coalesce(sum(l.retained), 0) INTO partitions, messages
    FROM (
        SELECT p.id, greatest(p.last_offset - p.log_start + 1, 0) AS retained
        FROM queen.log_partitions p
        WHERE p.queue_id = v_queue AND (p_partition IS NULL OR p.name = p_partition)
        ORDER BY p.id
        FOR UPDATE
    ) l;
    IF cardinality(partitions) = 0 THEN
        RETURN;
    END IF;
    PERFORM queen.mark_move(p_tenant, p_queue, NULL);
    PERFORM queen.delete_partitions(p_tenant, partitions);
END
$$;


--
-- Name: completed_upto(bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.completed_upto(p_partition bigint) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
    SELECT min(g.committed)
      FROM queen.log_partitions p
      JOIN queen.queues q ON q.id = p.queue_id
     CROSS JOIN LATERAL (
            SELECT k.committed FROM queen.log_consumers k WHERE k.partition_id = p.id
            UNION ALL
            SELECT queen.seed_offset(r.mode, r.seed_from, p.id, p.log_start, p.created_at)
              FROM queen.group_registrations r
             WHERE r.tenant_id = q.tenant_id AND r.queue = q.name
               AND NOT EXISTS (SELECT FROM queen.log_consumers k
                                WHERE k.partition_id = p.id AND k.consumer_group = r.consumer_group)
            UNION ALL
            SELECT queen.seed_offset(r.mode, r.seed_from, p.id, p.log_start, p.created_at)
              FROM queen.scope_registrations r
             WHERE r.tenant_id = q.tenant_id AND r.namespace IN ('', q.namespace) AND r.task IN ('', q.task)
               AND NOT EXISTS (SELECT FROM queen.log_consumers k
                                WHERE k.partition_id = p.id AND k.consumer_group = r.consumer_group)
               AND NOT EXISTS (SELECT FROM queen.group_registrations g
                                WHERE g.tenant_id = q.tenant_id AND g.queue = q.name AND g.consumer_group = r.consumer_group)) g
     WHERE p.id = p_partition
$$;


--
-- Name: dead_letter_head(uuid, uuid, text, bigint, uuid, uuid, text, bytea, text, timestamp with time zone); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.dead_letter_head(p_tenant uuid, p_partition uuid, p_group text, p_offset bigint, p_id uuid, p_message uuid, p_txn text, p_payload bytea, p_error text, p_created timestamp with time zone, OUT outcome integer, OUT partition_id bigint, OUT queue text, OUT head bigint, OUT committed bigint, OUT last_offset bigint, OUT until timestamp with time zone) RETURNS record
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    p record;
    k record;
BEGIN
    SELECT p.id, p.name, p.log_start, p.last_offset, q.name AS queue INTO p
      FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
     WHERE p.uid = p_partition AND q.tenant_id = p_tenant;
    IF NOT FOUND THEN
        outcome := 1;
        RETURN;
    END IF;
    partition_id := p.id;
    queue := p.queue;
    last_offset := p.last_offset;

    SELECT k.committed, k.batch_retry_count, k.lease_expires_at INTO k
      FROM queen.log_consumers k WHERE k.partition_id = p.id AND k.consumer_group = p_group FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 2;
        RETURN;
    END IF;
    committed := k.committed;
    head := greatest(k.committed + 1, p.log_start);
    IF p_offset < head THEN
        outcome := 3;
    ELSIF k.lease_expires_at > clock_timestamp() THEN
        outcome := 4;
        until := k.lease_expires_at;
    ELSIF p_offset > head THEN
        outcome := 5;
    ELSE
        outcome := 0;
        committed := p_offset;
        INSERT INTO queen.log_dlq (id, tenant_id, queue, partition_id, partition_name, consumer_group, offset_,
                                   message_id, transaction_id, payload, error, retry_count, created_at)
        VALUES (p_id, p_tenant, p.queue, p.id, p.name, p_group, p_offset, p_message, p_txn, p_payload, p_error,
                k.batch_retry_count, p_created);
        UPDATE queen.log_consumers c
           SET committed = p_offset, batch_end = NULL, worker_id = NULL, lease_expires_at = NULL, lease_acquired_at = NULL,
               batch_retry_count = 0, attempt_offset = NULL, attempt_count = 0, total_consumed = c.total_consumed + 1
         WHERE c.partition_id = p.id AND c.consumer_group = p_group;
    END IF;
END
$$;


--
-- Name: delete_group(uuid, text, text, boolean); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.delete_group(p_tenant uuid, p_group text, p_queue text, p_registrations boolean, OUT cursors bigint, OUT registrations bigint, OUT queues text[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    SELECT array_agg(k.partition_id), array_agg(DISTINCT k.name) INTO v_ids, queues
    FROM (
        SELECT k.partition_id, q.name
        FROM queen.queues q
        JOIN queen.log_partitions p ON p.queue_id = q.id
        JOIN queen.log_consumers k ON k.partition_id = p.id AND k.consumer_group = p_group
        WHERE q.tenant_id = p_tenant AND (p_queue IS NULL OR q.name = p_queue)
        ORDER BY k.partition_id
        FOR UPDATE OF k
    ) k;
    DELETE FROM queen.log_consumers k WHERE k.partition_id = ANY (v_ids) AND k.consumer_group = p_group;
    GET DIAGNOSTICS cursors = ROW_COUNT;

    registrations := 0;
    IF p_registrations THEN
        WITH gone AS (
            DELETE FROM queen.group_registrations r
            WHERE r.tenant_id = p_tenant AND r.consumer_group = p_group AND (p_queue IS NULL OR r.queue = p_queue)
            RETURNING r.queue
        )
        SELECT count(*), queues || array_agg(g.queue) INTO registrations, queues FROM gone g;
        IF p_queue IS NULL THEN
            DELETE FROM queen.scope_registrations s WHERE s.tenant_id = p_tenant AND s.consumer_group = p_group;
        END IF;
    END IF;
    SELECT coalesce(array_agg(DISTINCT u.queue), '{}') INTO queues FROM unnest(queues) AS u (queue);
    PERFORM queen.mark_move(p_tenant, u.queue, p_group) FROM unnest(queues) AS u (queue);
END
$$;


--
-- Name: delete_partitions(uuid, bigint[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.delete_partitions(p_tenant uuid, p_partitions bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_ids   bigint[];
    v_bytes numeric;
BEGIN
    PERFORM queen.lock_tenant(p_tenant);

    SELECT coalesce(array_agg(l.id), '{}'), coalesce(sum(l.retained_bytes), 0) INTO v_ids, v_bytes
    FROM (
        SELECT p.id, p.retained_bytes
        FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
        WHERE p.id = ANY (p_partitions) AND q.tenant_id = p_tenant
        ORDER BY p.id
        FOR UPDATE OF p
    ) l;
    IF cardinality(v_ids) = 0 THEN
        RETURN v_ids;
    END IF;

    PERFORM 1 FROM queen.log_consumers c WHERE c.partition_id = ANY (v_ids) ORDER BY c.partition_id, c.consumer_group FOR UPDATE;
    DELETE FROM queen.log_consumers c WHERE c.partition_id = ANY (v_ids);
    DELETE FROM queen.log_dlq d WHERE d.partition_id = ANY (v_ids);

    UPDATE queen.queues q SET partition_count = q.partition_count - g.gone
    FROM (SELECT p.queue_id, count(*) AS gone FROM queen.log_partitions p WHERE p.id = ANY (v_ids) AND p.name <> 'Default' GROUP BY p.queue_id) g
    WHERE q.id = g.queue_id;

    INSERT INTO queen.dropped_partitions (partition_id) SELECT unnest(v_ids);
    DELETE FROM queen.log_partitions p WHERE p.id = ANY (v_ids);
    IF v_bytes <> 0 THEN
        INSERT INTO queen.retained_ledger (tenant_id, bytes) VALUES (p_tenant, -v_bytes);
    END IF;
    PERFORM queen.bump_config();
    RETURN v_ids;
END
$$;


--
-- Name: delete_queue(uuid, text); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.delete_queue(p_tenant uuid, p_queue text, OUT existed boolean, OUT partitions bigint[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_queue bigint;
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    partitions := '{}';
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    existed := FOUND;
    IF NOT existed THEN
        RETURN;
    END IF;

    DELETE FROM queen.group_registrations r WHERE r.tenant_id = p_tenant AND r.queue = p_queue;
    PERFORM queen.mark_move(p_tenant, p_queue, NULL); -- who waits on the queue registers anew
    partitions := queen.delete_partitions(p_tenant, ARRAY(SELECT p.id FROM queen.log_partitions p WHERE p.queue_id = v_queue));
    DELETE FROM queen.queues q WHERE q.id = v_queue;
    UPDATE queen.tenants t SET queue_count = t.queue_count - 1 WHERE t.tenant_id = p_tenant;
    IF cardinality(partitions) = 0 THEN
        PERFORM queen.bump_config(); -- delete_partitions had nothing to announce
    END IF;
END
$$;


--
-- Name: fetch_ranges(uuid, text[], text[], bigint[], bigint[], bigint, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.fetch_ranges(p_tenant uuid, p_queue text[], p_partition text[], p_offset bigint[], p_bytes bigint[], p_records bigint, p_total bigint) RETURNS TABLE(entry integer, known boolean, partition_id bigint, log_start bigint, last_offset bigint, base_offset bigint, end_offset bigint, created_at timestamp with time zone, share bigint)
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: fold_retention_history(text, text, bigint, interval, interval, integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.fold_retention_history(p_task text, p_holder text, p_fence bigint, p_fold interval, p_keep interval, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_folded bigint;
    v_gone   bigint;
BEGIN
    IF NOT queen.holds_task(p_task, p_holder, p_fence) THEN
        RETURN NULL;
    END IF;
    WITH taken AS (
        DELETE FROM queen.retention_history h WHERE h.ctid = ANY (ARRAY(
            SELECT o.ctid FROM queen.retention_history o
             WHERE o.partition_id IS NOT NULL AND o.at < date_trunc('hour', v_now - p_fold)
             ORDER BY o.at LIMIT p_limit))
        RETURNING h.*
    ), folded AS (
        INSERT INTO queen.retention_history (tenant_id, queue, kind, messages, raw_bytes, events, at)
        SELECT t.tenant_id, t.queue, t.kind, sum(t.messages), sum(t.raw_bytes), sum(t.events), date_trunc('hour', t.at)
          FROM taken t GROUP BY 1, 2, 3, 7
    )
    SELECT count(*) INTO v_folded FROM taken;
    DELETE FROM queen.retention_history h WHERE h.at < v_now - p_keep;
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_folded + v_gone;
END $$;


--
-- Name: fold_usage(); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.fold_usage() RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_tenants uuid[];
    v_moved   bigint;
BEGIN
    SELECT array_agg(l.tenant_id) INTO v_tenants
    FROM (
        SELECT t.tenant_id FROM queen.tenants t
        WHERE t.tenant_id IN (SELECT r.tenant_id FROM queen.retained_ledger r)
        ORDER BY t.tenant_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) l;
    IF v_tenants IS NULL THEN
        RETURN 0;
    END IF;

    WITH moved AS (
        DELETE FROM queen.retained_ledger r WHERE r.tenant_id = ANY (v_tenants) RETURNING r.tenant_id, r.bytes
    ), total AS (
        SELECT m.tenant_id, sum(m.bytes)::bigint AS bytes, count(*) AS moved FROM moved m GROUP BY m.tenant_id
    ), folded AS (
        UPDATE queen.tenants t SET retained_bytes = t.retained_bytes + f.bytes
        FROM total f WHERE t.tenant_id = f.tenant_id
    )
    SELECT coalesce(sum(f.moved), 0)::bigint INTO v_moved FROM total f;
    RETURN v_moved;
END
$$;


--
-- Name: holds_task(text, text, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.holds_task(p_task text, p_holder text, p_fence bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM queen.maintenance_leases l
      WHERE l.task = p_task AND l.holder = p_holder AND l.fence = p_fence AND l.lease_until > clock_timestamp()
        FOR SHARE;
    RETURN FOUND;
END $$;


--
-- Name: idle_partitions(interval, integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.idle_partitions(p_idle interval, p_limit integer) RETURNS TABLE(tenant_id uuid, partition_id bigint)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    v_since timestamptz := clock_timestamp() - p_idle;
BEGIN
    RETURN QUERY
    SELECT q.tenant_id, p.id FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
     WHERE p.oldest_live_at IS NULL AND greatest(p.created_at, p.last_write_at) < v_since
       AND NOT EXISTS (SELECT FROM queen.log_dlq d WHERE d.partition_id = p.id)
       AND NOT EXISTS (SELECT FROM queen.log_consumers k WHERE k.partition_id = p.id
                          AND greatest(k.created_at, k.lease_acquired_at, k.lease_expires_at) >= v_since)
     ORDER BY greatest(p.created_at, p.last_write_at) LIMIT p_limit;
END $$;


--
-- Name: lock_tenant(uuid); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.lock_tenant(p_tenant uuid) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM queen.tenants t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO queen.tenants (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
        PERFORM 1 FROM queen.tenants t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
    END IF;
END
$$;


--
-- Name: mark_move(uuid, text, text); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.mark_move(p_tenant uuid, p_queue text, p_group text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM queen.cursor_moves m WHERE m.id IN (
        SELECT o.id FROM queen.cursor_moves o WHERE o.moved_at < clock_timestamp() - interval '1 hour'
        ORDER BY o.moved_at LIMIT 1000 FOR UPDATE SKIP LOCKED);
    INSERT INTO queen.cursor_moves (tenant_id, queue, consumer_group) VALUES (p_tenant, p_queue, p_group);
END
$$;


--
-- Name: move_letters(uuid, uuid, bigint, bigint, uuid[], bigint, bigint, bigint, bigint, bytea, bytea, boolean); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.move_letters(p_tenant uuid, p_redrive uuid, p_fence bigint, p_lease_ms bigint, p_ids uuid[], p_partition bigint, p_raw_bytes bigint, p_verified bigint, p_window bigint, p_blob bytea, p_hashes bytea, p_sealed boolean DEFAULT false) RETURNS TABLE(outcome integer, frame integer, at_offset bigint, last_offset bigint, created_at timestamp with time zone)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    v_count  integer := cardinality(p_ids);
    v_held   integer;
    v_gone   uuid[]; -- letters that are in the log after this call
    v_moved  integer := 0;
    r        record;
BEGIN
    IF p_redrive IS NOT NULL THEN
        PERFORM 1 FROM queen.redrives d
          WHERE d.id = p_redrive AND d.tenant_id = p_tenant AND d.fence = p_fence AND d.state = 'running' FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RETURN QUERY SELECT 4, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz;
            RETURN;
        END IF;
    END IF;

    PERFORM 1 FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
      WHERE p.id = p_partition AND q.tenant_id = p_tenant FOR NO KEY UPDATE OF p;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 3, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz;
        RETURN;
    END IF;

    IF v_count = 1 THEN
        PERFORM 1 FROM queen.log_dlq d WHERE d.id = p_ids[1] AND d.tenant_id = p_tenant FOR UPDATE;
        GET DIAGNOSTICS v_held = ROW_COUNT;
    ELSE
        SELECT count(*) INTO v_held FROM (
            SELECT 1 FROM queen.log_dlq d WHERE d.id = ANY (p_ids) AND d.tenant_id = p_tenant FOR UPDATE SKIP LOCKED) l;
    END IF;
    IF v_held <> v_count THEN
        RETURN QUERY SELECT 2, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz;
        RETURN;
    END IF;

    FOR r IN
        SELECT b.status, b.frame, b.at_offset, b.last_offset, b.created_at
        FROM queen.push_bundle(true, ARRAY[p_partition], ARRAY[v_count], ARRAY[p_raw_bytes], ARRAY[p_verified],
                               ARRAY[p_window], ARRAY[p_tenant], ARRAY[p_blob], ARRAY[p_hashes], ARRAY[p_sealed]) b
    LOOP
        CASE r.status
            WHEN 0 THEN
                v_gone := p_ids;
                v_moved := v_count;
            WHEN 1 THEN
                v_gone := v_gone || p_ids[r.frame + 1];
            WHEN 4 THEN
                RETURN QUERY SELECT 5, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz;
                RETURN;
            ELSE
                RAISE EXCEPTION 'move_letters: push_bundle answers % for a locked partition', r.status;
        END CASE;
        RETURN QUERY SELECT r.status::integer, r.frame, r.at_offset, r.last_offset, r.created_at;
    END LOOP;

    DELETE FROM queen.log_dlq d WHERE d.id = ANY (v_gone) AND d.tenant_id = p_tenant;
    IF p_redrive IS NOT NULL THEN
        UPDATE queen.redrives d
           SET moved = d.moved + v_moved, duplicate = d.duplicate + cardinality(v_gone) - v_moved,
               lease_until = clock_timestamp() + p_lease_ms * interval '1 ms'
         WHERE d.id = p_redrive;
    END IF;
END
$$;


--
-- Name: next_turn(timestamp with time zone, interval, timestamp with time zone); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.next_turn(p_due timestamp with time zone, p_period interval, p_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN p_due + p_period > p_now AND p_due <= p_now THEN p_due + p_period ELSE p_now + p_period END
$$;


--
-- Name: offset_before(bigint, timestamp with time zone); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.offset_before(p_partition bigint, p_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    low  bigint;
    high bigint; -- the answer lies in [low, high]
    mid  bigint;
    seg  record;
BEGIN
    SELECT log_start, last_offset + 1 INTO low, high FROM queen.log_partitions WHERE id = p_partition;
    WHILE low < high LOOP
        mid := low + (high - low) / 2;
        SELECT base_offset, end_offset, created_at INTO seg FROM queen.log_segments
         WHERE partition_id = p_partition AND base_offset <= mid
         ORDER BY base_offset DESC LIMIT 1;
        IF NOT FOUND OR seg.end_offset < low THEN
            low := mid + 1; -- retention left nothing up to mid
        ELSIF seg.created_at >= p_at THEN
            high := greatest(low, seg.base_offset);
        ELSE
            low := seg.end_offset + 1;
        END IF;
    END LOOP;
    RETURN low - 1;
END $$;


--
-- Name: passed_hash(bigint, bigint, bytea[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.passed_hash(p_partition bigint, p_upto bigint, p_hash bytea[]) RETURNS SETOF bigint
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_upto bigint := p_upto;
    v_low  bigint;
    v_hits bigint[];
    v_all  bigint[] := '{}';
BEGIN
    LOOP
        WITH slice AS MATERIALIZED (
            SELECT t.base_offset, t.end_offset, t.hashes || ''::bytea AS hashes
              FROM queen.log_txns t
             WHERE t.partition_id = p_partition AND t.base_offset <= v_upto
             ORDER BY t.base_offset DESC LIMIT 256
        ), seen AS (
            SELECT DISTINCT w.n
              FROM slice s
             CROSS JOIN LATERAL generate_series(0, least(s.end_offset, p_upto) - s.base_offset) AS x
              JOIN unnest(p_hash) WITH ORDINALITY AS w(hash, n)
                ON w.hash = substring(s.hashes FROM x::integer * 16 + 1 FOR 16)
             WHERE w.n <> ALL (v_all)
        )
        SELECT (SELECT min(base_offset) FROM slice), (SELECT array_agg(n) FROM seen) INTO v_low, v_hits;
        v_all := v_all || v_hits;
        EXIT WHEN v_low IS NULL OR cardinality(v_all) = cardinality(p_hash);
        v_upto := v_low - 1;
    END LOOP;
    RETURN QUERY SELECT unnest(v_all);
END $$;


--
-- Name: pending_since(bigint, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.pending_since(p_partition bigint, p_done bigint) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$
    SELECT coalesce(
        (SELECT h.created_at FROM (
            SELECT g.created_at, g.end_offset FROM queen.log_segments g
            WHERE g.partition_id = p_partition AND g.base_offset <= p_done + 1
            ORDER BY g.base_offset DESC LIMIT 1) h
         WHERE h.end_offset > p_done),
        (SELECT g.created_at FROM queen.log_segments g
         WHERE g.partition_id = p_partition AND g.base_offset > p_done + 1
         ORDER BY g.base_offset LIMIT 1))
$$;


--
-- Name: provision(uuid, text[], text[], bigint, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.provision(p_tenant uuid, p_queues text[], p_partitions text[], p_max_queues bigint, p_max_partitions bigint, OUT refused text, OUT refused_queue text, OUT used bigint, OUT queues_created bigint, OUT partitions_created bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM queen.lock_tenant(p_tenant);

    SELECT count(DISTINCT w.queue) INTO queues_created
    FROM unnest(p_queues) AS w (queue)
    WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = w.queue);

    IF queues_created > 0 AND p_max_queues IS NOT NULL THEN
        SELECT 'queues', t.queue_count INTO refused, used
        FROM queen.tenants t WHERE t.tenant_id = p_tenant AND t.queue_count + queues_created > p_max_queues;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    IF p_max_partitions IS NOT NULL THEN
        SELECT 'partitions', w.queue, coalesce(q.partition_count, 0) INTO refused, refused_queue, used
        FROM (SELECT DISTINCT u.queue, u.name FROM unnest(p_queues, p_partitions) AS u (queue, name) WHERE u.name <> 'Default') w
        LEFT JOIN queen.queues q ON q.tenant_id = p_tenant AND q.name = w.queue
        WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions p WHERE p.queue_id = q.id AND p.name = w.name)
        GROUP BY w.queue, q.partition_count
        HAVING coalesce(q.partition_count, 0) + count(*) > p_max_partitions
        ORDER BY w.queue LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    IF queues_created > 0 THEN
        INSERT INTO queen.queues (tenant_id, name, namespace, task, lease_time)
        SELECT DISTINCT p_tenant, w.queue,
            CASE WHEN strpos(w.queue, '.') > 0 THEN split_part(w.queue, '.', 1) ELSE '' END,
            CASE WHEN strpos(w.queue, '.') > 0 THEN split_part(w.queue, '.', 2) ELSE '' END,
            60
        FROM unnest(p_queues) AS w (queue)
        WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = w.queue);
        UPDATE queen.tenants SET queue_count = queue_count + queues_created WHERE tenant_id = p_tenant;
    END IF;

    WITH born AS (
        -- The flag of encryption cannot change meanwhile: it is set under the tenant's lock too.
        INSERT INTO queen.log_partitions (queue_id, name, encrypted, sealed)
        SELECT q.id, w.name, q.encryption_enabled, q.encryption_enabled
        FROM (SELECT DISTINCT u.queue, u.name FROM unnest(p_queues, p_partitions) AS u (queue, name)) w
        JOIN queen.queues q ON q.tenant_id = p_tenant AND q.name = w.queue
        WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions p WHERE p.queue_id = q.id AND p.name = w.name)
        RETURNING queue_id, name
    ), counted AS (
        UPDATE queen.queues q SET partition_count = q.partition_count + c.born
        FROM (SELECT b.queue_id, count(*) AS born FROM born b WHERE b.name <> 'Default' GROUP BY b.queue_id) c
        WHERE q.id = c.queue_id
    )
    SELECT count(*) INTO partitions_created FROM born;

    IF queues_created + partitions_created > 0 THEN
        PERFORM queen.bump_config();
    END IF;
END
$$;


--
-- Name: purge_history(timestamp with time zone, integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.purge_history(p_before timestamp with time zone, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_removed bigint := 0;
    v_count   bigint;
BEGIN
    DELETE FROM queen.queue_metrics m WHERE m.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.queue_metrics x WHERE x.bucket < p_before LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_removed := v_removed + v_count;
    DELETE FROM queen.broker_metrics m WHERE m.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.broker_metrics x WHERE x.bucket < p_before LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_removed := v_removed + v_count;
    DELETE FROM queen.brokers b WHERE b.seen_at < p_before;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_removed + v_count;
END
$$;


--
-- Name: push_bundle(boolean, bigint[], integer[], bigint[], bigint[], bigint[], uuid[], bytea[], bytea[], boolean[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.push_bundle(p_wait boolean, p_partitions bigint[], p_counts integer[], p_raw_bytes bigint[], p_verified bigint[], p_windows bigint[], p_tenants uuid[], p_blobs bytea[], p_hashes bytea[], p_sealed boolean[] DEFAULT NULL::boolean[]) RETURNS TABLE(ordinal integer, status smallint, frame integer, at_offset bigint, last_offset bigint, created_at timestamp with time zone)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
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
        RETURNING i.ordinal::integer AS ordinal, p.id, p.last_offset - i.count + 1 AS base_offset, p.last_offset, p.last_created_at, i.raw_bytes
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


--
-- Name: push_probe(bigint[], integer[], bigint[], bigint[], bytea[], integer[], timestamp with time zone); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.push_probe(p_partitions bigint[], p_counts integer[], p_verified bigint[], p_windows bigint[], p_hashes bytea[], p_ordinals integer[], p_now timestamp with time zone) RETURNS TABLE(ordinal integer, frame integer, at_offset bigint, created_at timestamp with time zone)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_mergejoin TO 'off'
    SET enable_memoize TO 'off'
    SET jit TO 'off'
    AS $$
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


--
-- Name: reclaim_partitions(text, text, bigint, uuid, bigint[], interval); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.reclaim_partitions(p_task text, p_holder text, p_fence bigint, p_tenant uuid, p_partitions bigint[], p_idle interval) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_since timestamptz := clock_timestamp() - p_idle;
    v_ids   bigint[];
BEGIN
    IF NOT queen.holds_task(p_task, p_holder, p_fence) THEN
        RETURN NULL;
    END IF;
    PERFORM queen.lock_tenant(p_tenant);
    PERFORM 1 FROM queen.log_partitions p WHERE p.id = ANY (p_partitions) ORDER BY p.id FOR UPDATE SKIP LOCKED;
    -- A statement of its own: it sees what the last holders of the rows committed.
    SELECT array_agg(l.id) INTO v_ids FROM (
        SELECT p.id FROM queen.log_partitions p
         WHERE p.id = ANY (p_partitions) AND p.oldest_live_at IS NULL AND greatest(p.created_at, p.last_write_at) < v_since
           AND NOT EXISTS (SELECT FROM queen.log_dlq d WHERE d.partition_id = p.id)
           AND NOT EXISTS (SELECT FROM queen.log_consumers k WHERE k.partition_id = p.id
                              AND greatest(k.created_at, k.lease_acquired_at, k.lease_expires_at) >= v_since)
         ORDER BY p.id FOR UPDATE SKIP LOCKED) l;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO queen.retention_history (tenant_id, queue, partition_id, kind, messages, raw_bytes)
    SELECT p_tenant, q.name, p.id, 'partition_deleted', 0, 0
      FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
     WHERE p.id = ANY (v_ids) AND q.tenant_id = p_tenant;
    RETURN cardinality(queen.delete_partitions(p_tenant, v_ids));
END $$;


--
-- Name: register_group(uuid, text, text, text, timestamp with time zone, boolean, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.register_group(p_tenant uuid, p_group text, p_queue text, p_mode text, p_from timestamp with time zone, p_conflation boolean, p_limit bigint, OUT outcome text, OUT conflating boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_from timestamptz := coalesce(p_from, clock_timestamp());
BEGIN
    outcome := 'known';
    SELECT r.conflation INTO conflating FROM queen.group_registrations r
     WHERE r.tenant_id = p_tenant AND r.queue = p_queue AND r.consumer_group = p_group;
    IF FOUND THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM queen.queues WHERE tenant_id = p_tenant AND name = p_queue)
       AND (SELECT count(*) FROM (
                SELECT FROM queen.group_registrations r
                 WHERE r.tenant_id = p_tenant
                   AND NOT EXISTS (SELECT FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = r.queue)
                 LIMIT p_limit) ahead) >= p_limit THEN
        outcome := 'full';
        RETURN;
    END IF;
    INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from, conflation)
    VALUES (p_tenant, p_queue, p_group, p_mode, v_from, p_conflation)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT r.conflation INTO conflating FROM queen.group_registrations r
         WHERE r.tenant_id = p_tenant AND r.queue = p_queue AND r.consumer_group = p_group;
        RETURN;
    END IF;
    outcome := 'first';
    conflating := p_conflation;
    -- A snapshot of its own, later than v_from: a partition it does not see was committed after the registration time
    -- and is seeded by its first claim.
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group, CASE p_mode
               WHEN 'all' THEN p.log_start - 1
               WHEN 'new' THEN p.last_offset
               ELSE queen.offset_before(p.id, v_from)
           END
      FROM (
        -- A partition that is being deleted is waited for and then left out: the reference would fail.
        SELECT p.id, p.log_start, p.last_offset
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id
         WHERE q.tenant_id = p_tenant AND q.name = p_queue
         ORDER BY p.id
           FOR KEY SHARE OF p) p
     ORDER BY p.id
    ON CONFLICT DO NOTHING;
END $$;


--
-- Name: register_scope(uuid, text, text, text, text, timestamp with time zone, boolean, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.register_scope(p_tenant uuid, p_group text, p_namespace text, p_task text, p_mode text, p_from timestamp with time zone, p_conflation boolean, p_limit bigint, OUT outcome text, OUT conflating boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_mode text;
    v_from timestamptz;
BEGIN
    outcome := 'known';
    SELECT r.mode, r.seed_from, r.conflation INTO v_mode, v_from, conflating FROM queen.scope_registrations r
     WHERE r.tenant_id = p_tenant AND r.namespace = p_namespace AND r.task = p_task AND r.consumer_group = p_group;
    IF NOT FOUND THEN
        IF (SELECT count(*) FROM (SELECT FROM queen.scope_registrations r WHERE r.tenant_id = p_tenant LIMIT p_limit) ahead) >= p_limit THEN
            outcome := 'full';
            RETURN;
        END IF;
        INSERT INTO queen.scope_registrations AS r (tenant_id, namespace, task, consumer_group, mode, seed_from, conflation)
        VALUES (p_tenant, p_namespace, p_task, p_group, p_mode, coalesce(p_from, clock_timestamp()), p_conflation)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            outcome := 'first';
        END IF;
        SELECT r.mode, r.seed_from, r.conflation INTO v_mode, v_from, conflating FROM queen.scope_registrations r
         WHERE r.tenant_id = p_tenant AND r.namespace = p_namespace AND r.task = p_task AND r.consumer_group = p_group;
    END IF;
    WITH joined AS (
        INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from, conflation)
        SELECT p_tenant, q.queue, p_group, v_mode, v_from, conflating
          FROM queen.scope_queues(ARRAY[p_tenant], ARRAY[p_namespace], ARRAY[p_task]) q
         WHERE NOT EXISTS (SELECT FROM queen.group_registrations g
                            WHERE g.tenant_id = p_tenant AND g.queue = q.queue AND g.consumer_group = p_group)
         ORDER BY q.queue COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING queue)
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group, CASE WHEN outcome = 'first' AND v_mode = 'new' THEN p.last_offset
                               ELSE queen.seed_offset(v_mode, v_from, p.id, p.log_start, p.created_at) END
      FROM (
        -- A partition that is being deleted is waited for and then left out: the reference would fail.
        SELECT p.id, p.log_start, p.last_offset, p.created_at
          FROM joined j
          JOIN queen.queues q ON q.tenant_id = p_tenant AND q.name = j.queue
          JOIN queen.log_partitions p ON p.queue_id = q.id
         ORDER BY p.id
           FOR KEY SHARE OF p) p
     ORDER BY p.id
    ON CONFLICT DO NOTHING;
END $$;


--
-- Name: release_task(text, text, bigint, bigint, jsonb, text); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.release_task(p_task text, p_holder text, p_fence bigint, p_took_ms bigint, p_stats jsonb, p_error text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE queen.maintenance_leases l
       SET next_due_at = CASE WHEN p_error IS NULL THEN queen.next_turn(l.next_due_at, l.period, clock_timestamp()) ELSE l.next_due_at END,
           lease_until = NULL, last_run_at = clock_timestamp(), last_run_ms = p_took_ms, last_run_stats = p_stats, last_error = p_error,
           updated_at = clock_timestamp()
     WHERE l.task = p_task AND l.holder = p_holder AND l.fence = p_fence;
    RETURN FOUND;
END $$;


--
-- Name: renew_task(text, text, bigint, interval); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.renew_task(p_task text, p_holder text, p_fence bigint, p_lease interval) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE queen.maintenance_leases l SET lease_until = clock_timestamp() + p_lease, updated_at = clock_timestamp()
     WHERE l.task = p_task AND l.holder = p_holder AND l.fence = p_fence AND l.lease_until > clock_timestamp();
    RETURN FOUND;
END $$;


--
-- Name: resolve_hashes(uuid[], uuid[], text[], integer[], integer[], bytea[], bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.resolve_hashes(p_tenant uuid[], p_partition uuid[], p_group text[], p_first integer[], p_last integer[], p_hash bytea[], p_width bigint) RETURNS bigint[]
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'on'
    SET jit TO 'off'
    AS $$
DECLARE
    v_offset bigint[];
BEGIN
    WITH item AS (
        SELECT i.hash, i.n, g.n AS grp
          FROM unnest(p_first, p_last) WITH ORDINALITY AS g(first, last, n)
         CROSS JOIN LATERAL unnest(p_hash[g.first:g.last]) WITH ORDINALITY AS h(hash, k)
         CROSS JOIN LATERAL (SELECT h.hash, g.first + h.k - 1 AS n) i
         WHERE g.first IS NOT NULL
    ), span AS (
        SELECT g.n, k.id, k.low, k.high
          FROM unnest(p_tenant, p_partition, p_group, p_first) WITH ORDINALITY AS g(tenant, uid, grp, first, n)
         CROSS JOIN LATERAL (
                SELECT p.id, coalesce(k.batch_end, p.last_offset) AS high,
                       greatest(CASE WHEN k.lease_conflated AND k.batch_end IS NOT NULL THEN k.batch_end
                                     ELSE k.committed + 1 END, p.txns_start) AS low
                  FROM queen.log_partitions p
                  JOIN queen.queues q ON q.id = p.queue_id
                  JOIN queen.log_consumers k ON k.partition_id = p.id
                 WHERE p.uid = g.uid AND q.tenant_id = g.tenant AND k.consumer_group = g.grp LIMIT 1) k
         WHERE g.first IS NOT NULL AND k.high - k.low < p_width
    ), found AS (
        SELECT s.n, t.base_offset + x AS at, substring(t.hashes FROM x::integer * 16 + 1 FOR 16) AS hash, s.low, s.high
          FROM span s
         CROSS JOIN LATERAL (
                -- The concatenation reads a long value out of its side table once, not once per message.
                SELECT t.base_offset, t.end_offset, t.hashes || ''::bytea AS hashes
                  FROM queen.log_txns t
                 WHERE t.partition_id = s.id AND t.base_offset <= s.high
                   AND t.base_offset >= coalesce((
                        SELECT h.base_offset FROM queen.log_txns h
                         WHERE h.partition_id = s.id AND h.base_offset <= s.low
                         ORDER BY h.base_offset DESC LIMIT 1), s.low)
                OFFSET 0) t
         CROSS JOIN LATERAL generate_series(greatest(0, s.low - t.base_offset),
                                            least(t.end_offset, s.high) - t.base_offset) AS x
    )
    SELECT array_agg(coalesce(o.at, -1) ORDER BY o.n) INTO v_offset
      FROM (SELECT i.n, min(f.at) AS at
              FROM item i LEFT JOIN found f ON f.n = i.grp AND f.hash = i.hash
             GROUP BY i.n) o;
    RETURN v_offset;
END $$;


--
-- Name: retention_firm(integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.retention_firm(p_limit integer) RETURNS SETOF bigint
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT p.id FROM queen.retention_rules r
     CROSS JOIN LATERAL (
            SELECT p.id FROM queen.log_partitions p
             WHERE p.queue_id = r.queue_id AND p.oldest_live_at < v_now - r.firm
             ORDER BY p.oldest_live_at LIMIT p_limit) p
     WHERE r.retained LIMIT p_limit;
END $$;


--
-- Name: retention_soft(bigint, timestamp with time zone, bigint, integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.retention_soft(p_queue bigint, p_at timestamp with time zone, p_id bigint, p_limit integer, OUT ids bigint[], OUT seen bigint, OUT last_queue bigint, OUT last_at timestamp with time zone, OUT last_id bigint) RETURNS record
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    WITH page AS MATERIALIZED (
        SELECT p.*, r.queue_id, r.sink, v_now - r.keep_all AS all_before, v_now - r.keep_done AS done_before
          FROM queen.retention_rules r
         CROSS JOIN LATERAL (
                SELECT p.id, p.oldest_live_at, p.log_start FROM queen.log_partitions p
                 WHERE p.queue_id = r.queue_id AND p.oldest_live_at < v_now - r.soft
                   AND (p.oldest_live_at, p.id) > (CASE WHEN r.queue_id = p_queue THEN p_at ELSE '-infinity' END, coalesce(p_id, 0))
                 ORDER BY p.oldest_live_at, p.id LIMIT p_limit) p
         WHERE r.retained AND r.queue_id >= coalesce(p_queue, 0)
         ORDER BY r.queue_id, p.oldest_live_at, p.id LIMIT p_limit
    )
    SELECT coalesce(array_agg(g.id) FILTER (WHERE
               (g.oldest_live_at < g.done_before AND g.log_start <= (
                   SELECT min(k.committed) FROM queen.log_consumers k WHERE k.partition_id = g.id))
            OR (g.sink <> '' AND g.oldest_live_at < g.all_before AND g.log_start <= (
                   SELECT k.committed FROM queen.log_consumers k WHERE k.partition_id = g.id AND k.consumer_group = g.sink))), '{}'),
           count(*), (array_agg(g.queue_id ORDER BY g.queue_id DESC, g.oldest_live_at DESC, g.id DESC))[1],
           (array_agg(g.oldest_live_at ORDER BY g.queue_id DESC, g.oldest_live_at DESC, g.id DESC))[1],
           (array_agg(g.id ORDER BY g.queue_id DESC, g.oldest_live_at DESC, g.id DESC))[1]
      INTO ids, seen, last_queue, last_at, last_id
      FROM page g;
END $$;


--
-- Name: safe_time(); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.safe_time(OUT at timestamp with time zone, OUT degraded boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: scope_queues(uuid[], text[], text[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.scope_queues(p_tenant uuid[], p_namespace text[], p_task text[]) RETURNS TABLE(scope bigint, queue_id bigint, queue text)
    LANGUAGE sql STABLE
    AS $$
    SELECT s.n, q.id, q.name
      FROM unnest(p_tenant, p_namespace, p_task) WITH ORDINALITY AS s(tenant, namespace, task, n)
      JOIN queen.queues q ON q.tenant_id = s.tenant
                         AND (s.namespace = '' OR q.namespace = s.namespace COLLATE "C")
                         AND (s.task = '' OR q.task = s.task COLLATE "C")
$$;


--
-- Name: seed_cursors(bigint[], text[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.seed_cursors(p_partition bigint[], p_group text[]) RETURNS bigint
    LANGUAGE sql
    AS $$
    WITH kept AS MATERIALIZED (
        -- A partition that is being deleted is waited for and then left out: the reference would fail.
        SELECT p.id, p.queue_id, p.log_start, p.created_at FROM queen.log_partitions p
         WHERE p.id = ANY (p_partition)
         ORDER BY p.id
           FOR KEY SHARE
    ), made AS (
        INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
        SELECT p.id, w.consumer_group, queen.seed_offset(r.mode, r.seed_from, p.id, p.log_start, p.created_at)
          FROM (SELECT DISTINCT * FROM unnest(p_partition, p_group) AS u(id, consumer_group)) w
          JOIN kept p ON p.id = w.id
          JOIN queen.queues q ON q.id = p.queue_id
          LEFT JOIN queen.group_registrations r
                 ON r.tenant_id = q.tenant_id AND r.queue = q.name AND r.consumer_group = w.consumer_group
         WHERE r.mode IS NOT NULL OR w.consumer_group = '__QUEUE_MODE__'
         ORDER BY p.id, w.consumer_group COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING 1)
    SELECT count(*) FROM made
$$;


--
-- Name: seed_offset(text, timestamp with time zone, bigint, bigint, timestamp with time zone); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.seed_offset(p_mode text, p_from timestamp with time zone, p_partition bigint, p_log_start bigint, p_created_at timestamp with time zone) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE
        WHEN p_mode IS NULL OR p_mode = 'all' THEN p_log_start - 1
        WHEN p_mode = 'new' AND p_created_at >= p_from - interval '5 seconds' THEN p_log_start - 1
        ELSE queen.offset_before(p_partition, p_from)
    END
$$;


--
-- Name: seek_group(uuid, text, text, text, timestamp with time zone); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.seek_group(p_tenant uuid, p_group text, p_queue text, p_partition text, p_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_ids bigint[];
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    SELECT array_agg(p.id ORDER BY p.id) INTO v_ids
    FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
    WHERE q.tenant_id = p_tenant AND q.name = p_queue AND (p_partition IS NULL OR p.name = p_partition);
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;

    INSERT INTO queen.log_consumers (partition_id, consumer_group)
    SELECT w.id, p_group FROM unnest(v_ids) AS w (id) ORDER BY w.id
    ON CONFLICT DO NOTHING;
    PERFORM 1 FROM queen.log_consumers k
    WHERE k.partition_id = ANY (v_ids) AND k.consumer_group = p_group
    ORDER BY k.partition_id FOR NO KEY UPDATE;

    -- The end is read behind the cursors' locks: what was committed before the seek began is behind it.
    UPDATE queen.log_consumers k SET
        committed         = CASE WHEN p_at IS NULL THEN p.last_offset ELSE queen.offset_before(p.id, p_at) END,
        batch_end         = NULL,
        worker_id         = NULL,
        lease_expires_at  = NULL,
        lease_acquired_at = NULL,
        lease_conflated   = false,
        batch_retry_count = 0,
        attempt_offset    = NULL,
        attempt_count     = 0
    FROM queen.log_partitions p
    WHERE p.id = ANY (v_ids) AND k.partition_id = p.id AND k.consumer_group = p_group;
    PERFORM queen.mark_move(p_tenant, p_queue, p_group);
    RETURN cardinality(v_ids);
END
$$;


--
-- Name: set_encryption(bigint, boolean); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.set_encryption(p_queue bigint, p_encrypted boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM queen.log_partitions p
      WHERE p.queue_id = p_queue AND p.encrypted <> p_encrypted ORDER BY p.id FOR NO KEY UPDATE;
    UPDATE queen.log_partitions p SET encrypted = p_encrypted, sealed = p.sealed OR p_encrypted
      WHERE p.queue_id = p_queue AND p.encrypted <> p_encrypted;
END
$$;


--
-- Name: set_subscription(uuid, text, timestamp with time zone); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.set_subscription(p_tenant uuid, p_group text, p_from timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    UPDATE queen.group_registrations r SET mode = 'timestamp', seed_from = p_from
    WHERE r.tenant_id = p_tenant AND r.consumer_group = p_group;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    UPDATE queen.scope_registrations s SET mode = 'timestamp', seed_from = p_from
    WHERE s.tenant_id = p_tenant AND s.consumer_group = p_group;
    RETURN v_count;
END
$$;


--
-- Name: sidecar_due(integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.sidecar_due(p_limit integer) RETURNS SETOF bigint
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT p.id FROM queen.retention_rules r
     CROSS JOIN LATERAL (
            SELECT p.id FROM queen.log_partitions p
             WHERE p.queue_id = r.queue_id AND p.oldest_txn_at < v_now - r.keep_txn
             ORDER BY p.oldest_txn_at LIMIT p_limit) p
     LIMIT p_limit;
END $$;


--
-- Name: sweep_dropped(integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.sweep_dropped(p_limit integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_ids     bigint[];
    v_removed bigint := 0;
    v_count   bigint;
BEGIN
    SELECT array_agg(l.partition_id) INTO v_ids
    FROM (SELECT d.partition_id FROM queen.dropped_partitions d ORDER BY d.partition_id LIMIT p_limit FOR UPDATE SKIP LOCKED) l;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;

    DELETE FROM queen.log_segments s USING (
        SELECT x.partition_id, x.base_offset
        FROM unnest(v_ids) AS d (id)
        CROSS JOIN LATERAL (SELECT y.partition_id, y.base_offset FROM queen.log_segments y WHERE y.partition_id = d.id ORDER BY y.base_offset LIMIT p_limit) x
        LIMIT p_limit
    ) g WHERE s.partition_id = g.partition_id AND s.base_offset = g.base_offset;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_removed := v_removed + v_count;

    DELETE FROM queen.log_txns t USING (
        SELECT x.partition_id, x.base_offset
        FROM unnest(v_ids) AS d (id)
        CROSS JOIN LATERAL (SELECT y.partition_id, y.base_offset FROM queen.log_txns y WHERE y.partition_id = d.id ORDER BY y.base_offset LIMIT p_limit) x
        LIMIT p_limit
    ) g WHERE t.partition_id = g.partition_id AND t.base_offset = g.base_offset;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_removed := v_removed + v_count;

    DELETE FROM queen.dropped_partitions d
    WHERE d.partition_id = ANY (v_ids)
      AND NOT EXISTS (SELECT 1 FROM queen.log_segments s WHERE s.partition_id = d.partition_id)
      AND NOT EXISTS (SELECT 1 FROM queen.log_txns t WHERE t.partition_id = d.partition_id);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_removed + v_count;
END
$$;


--
-- Name: sweep_trimmed(text, text, bigint, bigint); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.sweep_trimmed(p_task text, p_holder text, p_fence bigint, p_limit bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_ids bigint[];
    v_segments bigint;
    v_txns bigint;
BEGIN
    IF NOT queen.holds_task(p_task, p_holder, p_fence) THEN
        RETURN NULL;
    END IF;
    SELECT coalesce(array_agg(r.id), '{}') INTO v_ids FROM (
        SELECT t.id, coalesce(sum(t.log_rows) OVER (ORDER BY t.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
          FROM (SELECT t.id, t.log_rows FROM queen.log_trims t ORDER BY t.id LIMIT p_limit FOR UPDATE SKIP LOCKED) t) r
     WHERE r.before < p_limit;
    DELETE FROM queen.log_segments s USING queen.log_trims t
     WHERE t.id = ANY (v_ids) AND s.partition_id = t.partition_id
       AND s.base_offset >= t.segments_from AND s.base_offset < t.segments_below;
    GET DIAGNOSTICS v_segments = ROW_COUNT;
    DELETE FROM queen.log_txns x USING queen.log_trims t
     WHERE t.id = ANY (v_ids) AND x.partition_id = t.partition_id
       AND x.base_offset >= t.txns_from AND x.base_offset < t.txns_below;
    GET DIAGNOSTICS v_txns = ROW_COUNT;
    DELETE FROM queen.log_trims t WHERE t.id = ANY (v_ids);
    RETURN v_segments + v_txns;
END $$;


--
-- Name: task_due(text, interval); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.task_due(p_task text, p_idle interval) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN CASE p_task
        WHEN 'retention' THEN EXISTS (SELECT FROM queen.log_trims) OR EXISTS (
            SELECT FROM queen.retention_rules r
             WHERE r.retained AND EXISTS (
                SELECT FROM queen.log_partitions p
                 WHERE p.queue_id = r.queue_id AND p.oldest_live_at < v_now - least(r.firm, r.soft)))
        WHEN 'sidecar' THEN EXISTS (
            SELECT FROM queen.retention_rules r
             WHERE EXISTS (SELECT FROM queen.log_partitions p WHERE p.queue_id = r.queue_id AND p.oldest_txn_at < v_now - r.keep_txn))
        WHEN 'partitions' THEN EXISTS (SELECT FROM queen.dropped_partitions)
            OR EXISTS (SELECT FROM queen.idle_partitions(p_idle, 1))
        ELSE true END;
END $$;


--
-- Name: transact(uuid, boolean, uuid[], bigint[], integer[], bigint[], bigint[], bigint[], uuid[], bytea[], bytea[], boolean[], uuid[], uuid[], text[], boolean[], uuid[], bigint[], bigint[], bigint[], bigint[], integer[], integer[], integer[], bytea[], integer[], bigint, integer[], bigint[], uuid[], uuid[], text[], bytea[], text[], timestamp with time zone[], boolean[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.transact(t_tenant uuid, t_fenced boolean, t_leases uuid[], t_partitions bigint[], t_counts integer[], t_raw_bytes bigint[], t_verified bigint[], t_windows bigint[], t_tenants uuid[], t_blobs bytea[], t_hashes bytea[], t_passed boolean[], p_tenant uuid[], p_partition uuid[], p_group text[], p_named boolean[], p_lease uuid[], p_low bigint[], p_high bigint[], p_done bigint[], p_sig bigint[], p_kind integer[], p_first integer[], p_last integer[], p_hash bytea[], p_status integer[], p_width bigint, p_frame integer[], f_offset bigint[], f_id uuid[], f_message uuid[], f_txn text[], f_payload bytea[], f_error text[], f_created timestamp with time zone[], t_sealed boolean[] DEFAULT NULL::boolean[]) RETURNS TABLE(kind integer, segment integer, status smallint, frame integer, at_offset bigint, end_offset bigint, created_at timestamp with time zone, ordinal bigint, outcome integer, partition_id bigint, queue_id bigint, queue text, before bigint, committed bigint, last_offset bigint, act integer, signal bigint, released boolean, offsets bigint[], skipped bigint)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    v_found  integer;
    v_lasts  bigint[];  -- last offsets under the locks, by ordinal
    v_probe  integer[]; -- ordinals with rows nobody vouches for
    v_plain  integer[]; -- ordinals that would store plaintext where none may be
    v_named  boolean[] := p_named;
    v_lease  uuid[] := p_lease;
    v_fences uuid[] := '{}'; -- leases that cover a group
    v_row    record;
BEGIN
    IF cardinality(t_partitions) > 0 THEN
        PERFORM 1 FROM queen.log_partitions p WHERE p.id = ANY (t_partitions) ORDER BY p.id FOR NO KEY UPDATE;

        SELECT count(p.id), array_agg(p.last_offset ORDER BY i.n),
               array_agg(i.n::integer) FILTER (WHERE i.span > 0 AND p.last_offset > i.verified),
               array_agg(i.n::integer) FILTER (WHERE p.encrypted AND i.sealed IS NOT TRUE)
        INTO v_found, v_lasts, v_probe, v_plain
        FROM unnest(t_partitions, t_verified, t_windows, t_sealed) WITH ORDINALITY AS i (id, verified, span, sealed, n)
        LEFT JOIN queen.log_partitions p ON p.id = i.id;

        IF v_found < cardinality(t_partitions) THEN
            FOR v_row IN SELECT i.n FROM unnest(v_lasts) WITH ORDINALITY AS i (last, n) WHERE i.last IS NULL LOOP
                kind := 0; segment := v_row.n; status := 3;
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;

        IF v_plain IS NOT NULL THEN
            FOREACH segment IN ARRAY v_plain LOOP
                kind := 0; status := 4;
                RETURN NEXT;
            END LOOP;
            RETURN;
        END IF;

        IF v_probe IS NOT NULL THEN
            RETURN QUERY
            SELECT 0, d.ordinal, 1::smallint, d.frame, d.at_offset, v_lasts[d.ordinal], d.created_at,
                   NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint,
                   NULL::bigint, NULL::integer, NULL::bigint, NULL::boolean, NULL::bigint[], NULL::bigint
            FROM queen.push_probe(t_partitions, t_counts, t_verified, t_windows, t_hashes, v_probe, clock_timestamp()) d
            ORDER BY d.ordinal, d.frame;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
    END IF;

    BEGIN
        IF cardinality(p_partition) > 0 THEN
            IF t_fenced THEN
                -- The locks that ack_bundle takes, taken before the holders are read.
                PERFORM FROM unnest(p_tenant, p_partition, p_group) AS g (tenant, uid, grp)
                   JOIN queen.log_partitions p ON p.uid = g.uid
                   JOIN queen.queues q ON q.id = p.queue_id AND q.tenant_id = g.tenant
                   JOIN queen.log_consumers k ON k.partition_id = p.id AND k.consumer_group = g.grp
                  ORDER BY k.partition_id, k.consumer_group
                    FOR NO KEY UPDATE OF k;

                SELECT array_agg(true ORDER BY g.n),
                       array_agg(CASE WHEN g.named THEN g.lease ELSE h.worker_id END ORDER BY g.n),
                       coalesce(array_agg(h.worker_id) FILTER (WHERE h.worker_id IS NOT NULL), '{}')
                INTO v_named, v_lease, v_fences
                FROM unnest(p_tenant, p_partition, p_group, p_named, p_lease) WITH ORDINALITY AS g (tenant, uid, grp, named, lease, n)
                LEFT JOIN LATERAL (
                    SELECT k.worker_id
                    FROM queen.log_partitions p
                    JOIN queen.queues q ON q.id = p.queue_id
                    JOIN queen.log_consumers k ON k.partition_id = p.id AND k.consumer_group = g.grp
                    WHERE p.uid = g.uid AND q.tenant_id = g.tenant
                      AND k.worker_id = ANY (t_leases) AND k.lease_expires_at > clock_timestamp() LIMIT 1) h ON true;
            END IF;

            v_found := 0;
            FOR v_row IN
                SELECT a.*, i.missing
                FROM queen.ack_bundle(p_tenant, p_partition, p_group, v_named, v_lease, p_low, p_high, p_done, p_sig, p_kind,
                    p_first, p_last, p_hash, p_status, p_width, p_frame, f_offset, f_id, f_message, f_txn, f_payload,
                    f_error, f_created) a
                CROSS JOIN LATERAL (
                    SELECT coalesce(bool_or(o.at < 0 AND NOT o.passed), false) AS missing
                    FROM unnest(a.offsets, t_passed[p_first[a.ordinal]:p_last[a.ordinal]]) AS o (at, passed)) i
            LOOP
                kind := 1; segment := NULL; status := NULL;
                ordinal := v_row.ordinal; outcome := v_row.outcome; partition_id := v_row.partition_id;
                queue_id := v_row.queue_id; queue := v_row.queue; before := v_row.before; committed := v_row.committed;
                last_offset := v_row.last_offset; act := v_row.act; signal := v_row.signal;
                released := v_row.released; offsets := v_row.offsets; skipped := v_row.skipped;
                RETURN NEXT;
                IF v_row.outcome <> 0 OR v_row.missing THEN
                    v_found := v_found + 1;
                END IF;
            END LOOP;
            IF v_found > 0 THEN
                RAISE EXCEPTION SQLSTATE 'QG001' USING MESSAGE = 'acknowledgements are refused';
            END IF;
        END IF;

        -- SDKs require the leases of their acks, so what is left here is rare: it is looked for among all cursors of
        -- the tenant, as an extension would.
        IF NOT t_leases <@ v_fences THEN
            RETURN QUERY
            SELECT 2, NULL::integer, NULL::smallint, NULL::integer, NULL::bigint, NULL::bigint, NULL::timestamptz,
                   l.n, NULL::integer, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint,
                   NULL::bigint, NULL::integer, NULL::bigint, NULL::boolean, NULL::bigint[], NULL::bigint
            FROM unnest(t_leases) WITH ORDINALITY AS l (lease, n)
            WHERE l.lease <> ALL (v_fences) AND NOT EXISTS (
                SELECT FROM queen.queues q
                CROSS JOIN LATERAL (SELECT p.id FROM queen.log_partitions p WHERE p.queue_id = q.id OFFSET 0) p
                CROSS JOIN LATERAL (
                    SELECT FROM queen.log_consumers k
                    WHERE k.partition_id = p.id AND k.worker_id = l.lease AND k.lease_expires_at > clock_timestamp() OFFSET 0) k
                WHERE q.tenant_id = t_tenant);
            IF FOUND THEN
                RAISE EXCEPTION SQLSTATE 'QG001' USING MESSAGE = 'a required lease is not held';
            END IF;
        END IF;
    EXCEPTION WHEN SQLSTATE 'QG001' THEN
        RETURN;
    END;

    IF cardinality(t_partitions) > 0 THEN
        -- All up to v_lasts has been probed, and the rows are ours.
        FOR v_row IN
            SELECT * FROM queen.push_bundle(false, t_partitions, t_counts, t_raw_bytes, v_lasts, t_windows, t_tenants, t_blobs, t_hashes, t_sealed)
        LOOP
            IF v_row.status <> 0 THEN
                RAISE EXCEPTION 'segment % of a transaction has status % under its own lock', v_row.ordinal, v_row.status;
            END IF;
            kind := 0; segment := v_row.ordinal; status := 0; at_offset := v_row.at_offset; end_offset := v_row.last_offset;
            created_at := v_row.created_at;
            ordinal := NULL;
            RETURN NEXT;
        END LOOP;
    END IF;
    kind := 3;
    RETURN NEXT;
END
$$;


--
-- Name: trim_partitions(text, text, bigint, bigint[], integer, boolean); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.trim_partitions(p_task text, p_holder text, p_fence bigint, p_partitions bigint[], p_batch integer, p_wait boolean, OUT segments bigint, OUT txns bigint, OUT raw_bytes bigint, OUT by_age bigint, OUT by_completion bigint, OUT by_wait bigint, OUT moved bigint[], OUT busy bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_variable
DECLARE
    v_plan queen.trim_step[];
BEGIN
    IF NOT queen.holds_task(p_task, p_holder, p_fence) THEN
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT coalesce(array_agg(t ORDER BY t.partition_id), '{}') INTO v_plan
      FROM queen.trim_plan(p_task, p_partitions, p_batch) t;

    IF p_wait THEN
        PERFORM set_config('lock_timeout', '250ms', true);
        BEGIN
            PERFORM 1 FROM queen.log_partitions p WHERE p.id = ANY (p_partitions) ORDER BY p.id FOR NO KEY UPDATE;
        EXCEPTION WHEN lock_not_available THEN
            NULL; -- busy again
        END;
    END IF;
    SELECT coalesce(array_agg(l.id), '{}') INTO moved FROM (
        SELECT p.id FROM unnest(v_plan) AS t
          JOIN queen.log_partitions p ON p.id = t.partition_id AND p.log_start = t.log_from AND p.txns_start = t.txns_from
         ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED) l;

    WITH plan AS (
        SELECT t.* FROM unnest(v_plan) AS t WHERE t.partition_id = ANY (moved)
    ), done AS (
        UPDATE queen.log_partitions p
           SET log_start = t.log_below, txns_start = t.txns_below,
               retained_bytes = p.retained_bytes - t.raw_bytes, segments = p.segments - t.segments,
               -- What a push added after the plan is seen here: the statement is later than the lock.
               oldest_live_at = CASE WHEN t.segments = 0 THEN p.oldest_live_at ELSE (
                   SELECT s.created_at FROM queen.log_segments s
                    WHERE s.partition_id = p.id AND s.base_offset >= t.log_below ORDER BY s.base_offset LIMIT 1) END,
               oldest_txn_at = CASE WHEN t.txns = 0 THEN p.oldest_txn_at ELSE (
                   SELECT x.created_at FROM queen.log_txns x
                    WHERE x.partition_id = p.id AND x.base_offset >= t.txns_below ORDER BY x.base_offset LIMIT 1) END
          FROM plan t WHERE p.id = t.partition_id
    ), listed AS (
        INSERT INTO queen.log_trims (partition_id, segments_from, segments_below, txns_from, txns_below, log_rows)
        SELECT t.partition_id, t.log_from, t.log_below, t.txns_from, t.txns_below, t.segments + t.txns FROM plan t
    ), owned AS (
        SELECT t.*, q.tenant_id, q.name FROM plan t
          JOIN queen.log_partitions p ON p.id = t.partition_id
          JOIN queen.queues q ON q.id = p.queue_id
    ), freed AS (
        INSERT INTO queen.retained_ledger (tenant_id, bytes)
        SELECT o.tenant_id, -sum(o.raw_bytes) FROM owned o GROUP BY 1 HAVING sum(o.raw_bytes) <> 0
    ), told AS (
        INSERT INTO queen.retention_history (tenant_id, queue, partition_id, kind, messages, raw_bytes)
        SELECT o.tenant_id, o.name, o.partition_id, k.kind, k.messages, k.bytes
          FROM owned o
         CROSS JOIN LATERAL (VALUES
                ('retention', o.by_age, o.bytes_by_age), ('completed_retention', o.by_completion, o.bytes_by_completion),
                ('eviction', o.by_wait, o.bytes_by_wait)) AS k (kind, messages, bytes)
         WHERE k.messages > 0
    )
    SELECT coalesce(sum(t.segments), 0), coalesce(sum(t.txns), 0), coalesce(sum(t.raw_bytes), 0),
           coalesce(sum(t.by_age), 0), coalesce(sum(t.by_completion), 0), coalesce(sum(t.by_wait), 0)
      INTO segments, txns, raw_bytes, by_age, by_completion, by_wait FROM plan t;
    busy := ARRAY(SELECT t.partition_id FROM unnest(v_plan) AS t WHERE t.partition_id <> ALL (moved));
END $$;


--
-- Name: trim_plan(text, bigint[], integer); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.trim_plan(p_task text, p_partitions bigint[], p_batch integer) RETURNS SETOF queen.trim_step
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH wanted AS (
        SELECT p.id, p.log_start, p.txns_start, r.keep_all, r.keep_done, r.keep_wait, r.keep_txn,
               CASE WHEN r.keep_done IS NOT NULL AND p_task = 'retention' THEN queen.completed_upto(p.id) END AS done,
               CASE WHEN r.sink <> '' THEN coalesce((SELECT k.committed FROM queen.log_consumers k
                    WHERE k.partition_id = p.id AND k.consumer_group = r.sink), -1) END AS sunk, r.sink_max
          FROM unnest(p_partitions) AS w (id)
          JOIN queen.log_partitions p ON p.id = w.id
          JOIN queen.retention_rules r ON r.queue_id = p.queue_id
    ), judged AS (
        SELECT w.id, s.*
          FROM wanted w
         CROSS JOIN LATERAL (
                SELECT s.base_offset, s.end_offset, s.end_offset - s.base_offset + 1 AS messages, s.raw_bytes,
                       CASE WHEN (s.created_at < v_now - w.keep_all AND s.held IS NOT TRUE) THEN 1
                            WHEN (s.created_at < v_now - w.keep_done AND s.end_offset <= w.done AND s.held IS NOT TRUE) THEN 2
                            WHEN s.created_at < v_now - w.keep_wait THEN 3 END AS kind
                  FROM (SELECT s.base_offset, s.end_offset, s.created_at, s.raw_bytes,
                               s.end_offset > w.sunk AND s.created_at >= v_now - w.sink_max AS held
                          FROM queen.log_segments s
                         WHERE p_task = 'retention' AND s.partition_id = w.id AND s.base_offset >= w.log_start
                         ORDER BY s.base_offset LIMIT p_batch) s) s
         WHERE s.kind IS NOT NULL
    ), log AS (
        SELECT j.id, max(j.end_offset) + 1 AS below, count(*) AS segments, sum(j.raw_bytes)::bigint AS raw_bytes,
               coalesce(sum(j.messages) FILTER (WHERE j.kind = 1), 0)::bigint AS by_age,
               coalesce(sum(j.messages) FILTER (WHERE j.kind = 2), 0)::bigint AS by_completion,
               coalesce(sum(j.messages) FILTER (WHERE j.kind = 3), 0)::bigint AS by_wait,
               coalesce(sum(j.raw_bytes) FILTER (WHERE j.kind = 1), 0)::bigint AS bytes_by_age,
               coalesce(sum(j.raw_bytes) FILTER (WHERE j.kind = 2), 0)::bigint AS bytes_by_completion,
               coalesce(sum(j.raw_bytes) FILTER (WHERE j.kind = 3), 0)::bigint AS bytes_by_wait
          FROM judged j GROUP BY j.id
    )
    SELECT w.id, w.log_start, coalesce(l.below, w.log_start), w.txns_start, coalesce(t.below, w.txns_start),
           coalesce(l.segments, 0), coalesce(t.n, 0), coalesce(l.raw_bytes, 0),
           coalesce(l.by_age, 0), coalesce(l.by_completion, 0), coalesce(l.by_wait, 0),
           coalesce(l.bytes_by_age, 0), coalesce(l.bytes_by_completion, 0), coalesce(l.bytes_by_wait, 0)
      FROM wanted w
      LEFT JOIN log l ON l.id = w.id
     CROSS JOIN LATERAL (
            SELECT max(t.end_offset) + 1 AS below, count(*) AS n
              FROM (SELECT t.end_offset, t.created_at FROM queen.log_txns t
                     WHERE p_task = 'sidecar' AND t.partition_id = w.id AND t.base_offset >= w.txns_start
                     ORDER BY t.base_offset LIMIT p_batch) t
             WHERE t.created_at < v_now - w.keep_txn) t
     WHERE l.id IS NOT NULL OR t.n > 0;
END $$;


--
-- Name: write_history(uuid, text, integer, timestamp with time zone, timestamp with time zone, uuid[], text[], bigint[], integer[], bigint, bigint, bigint, double precision[]); Type: FUNCTION; Schema: queen; Owner: -
--

CREATE FUNCTION queen.write_history(p_broker uuid, p_hostname text, p_port integer, p_started timestamp with time zone, p_bucket timestamp with time zone, p_tenant uuid[], p_queue text[], p_counts bigint[], p_parked integer[], p_requests bigint, p_messages bigint, p_db_errors bigint, p_process double precision[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    -- p_counts holds the numbers of a queue one after the other.
    c_width CONSTANT integer := 12;
    v_written integer;
    v_new boolean;
    v_sums bigint[];
BEGIN
    INSERT INTO queen.brokers AS b (id, hostname, port, started_at, seen_at)
    VALUES (p_broker, p_hostname, p_port, p_started, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at;

    INSERT INTO queen.broker_metrics VALUES (p_bucket, p_broker, p_requests, p_messages, p_db_errors,
        p_process[1], p_process[2], p_process[3]::bigint, p_process[4]::bigint, p_process[5]::integer, p_process[6]::integer,
        p_process[7]::integer, p_process[8]::integer, p_process[9]::integer, p_process[10], p_process[11])
    ON CONFLICT (bucket, broker_id) DO NOTHING;
    v_new := FOUND;

    WITH written AS (
        INSERT INTO queen.queue_metrics AS m
        SELECT q.tenant, p_bucket, q.queue, p_broker,
               p_counts[o + 1], p_counts[o + 2], p_counts[o + 3], p_counts[o + 4], p_counts[o + 5], p_counts[o + 6],
               p_counts[o + 7], p_counts[o + 8], p_counts[o + 9], p_counts[o + 10], p_counts[o + 11], p_counts[o + 12],
               nullif(q.parked, -1)
          FROM unnest(p_tenant, p_queue, p_parked) WITH ORDINALITY AS q (tenant, queue, parked, n)
         CROSS JOIN LATERAL (SELECT ((q.n - 1) * c_width)::integer AS o) at
        ON CONFLICT (tenant_id, bucket, queue, broker_id) DO NOTHING
        RETURNING m.*
    )
    SELECT count(*), array[coalesce(sum(w.push_requests), 0), coalesce(sum(w.push_messages), 0), coalesce(sum(w.pop_requests), 0),
           coalesce(sum(w.pop_messages), 0), coalesce(sum(w.pop_empty), 0), coalesce(sum(w.ack_requests), 0),
           coalesce(sum(w.ack_success), 0), coalesce(sum(w.ack_failed), 0), coalesce(sum(w.dead_letters), 0),
           coalesce(sum(w.transactions), 0)]::bigint[]
      INTO v_written, v_sums FROM written w;

    UPDATE queen.cell_totals t SET
        push_requests = t.push_requests + v_sums[1], push_messages = t.push_messages + v_sums[2],
        pop_requests = t.pop_requests + v_sums[3], pop_messages = t.pop_messages + v_sums[4],
        pop_empty = t.pop_empty + v_sums[5], ack_requests = t.ack_requests + v_sums[6],
        ack_success = t.ack_success + v_sums[7], ack_failed = t.ack_failed + v_sums[8],
        dead_letters = t.dead_letters + v_sums[9], transactions = t.transactions + v_sums[10],
        db_errors = t.db_errors + CASE WHEN v_new THEN p_db_errors ELSE 0 END;
    RETURN v_written;
END
$$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: queengate_broker_version; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.queengate_broker_version (
    id integer NOT NULL,
    version_id bigint NOT NULL,
    is_applied boolean NOT NULL,
    tstamp timestamp without time zone DEFAULT now() NOT NULL
);


--
-- Name: queengate_broker_version_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.queengate_broker_version ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.queengate_broker_version_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: queengate_routines; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.queengate_routines (
    name text NOT NULL,
    hash text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);


--
-- Name: broker_metrics; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.broker_metrics (
    bucket timestamp with time zone NOT NULL,
    broker_id uuid NOT NULL,
    requests bigint NOT NULL,
    messages bigint NOT NULL,
    db_errors bigint NOT NULL,
    cpu_user_pct double precision NOT NULL,
    cpu_sys_pct double precision NOT NULL,
    rss_bytes bigint NOT NULL,
    heap_bytes bigint NOT NULL,
    goroutines integer NOT NULL,
    parked integer NOT NULL,
    pool_size integer NOT NULL,
    pool_idle integer NOT NULL,
    pool_active integer NOT NULL,
    sched_lag_ms double precision NOT NULL,
    sched_lag_max_ms double precision NOT NULL
);


--
-- Name: brokers; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.brokers (
    id uuid NOT NULL,
    hostname text NOT NULL,
    port integer NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');


--
-- Name: cell_totals; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.cell_totals (
    singleton boolean DEFAULT true NOT NULL,
    push_requests bigint DEFAULT 0 NOT NULL,
    push_messages bigint DEFAULT 0 NOT NULL,
    pop_requests bigint DEFAULT 0 NOT NULL,
    pop_messages bigint DEFAULT 0 NOT NULL,
    pop_empty bigint DEFAULT 0 NOT NULL,
    ack_requests bigint DEFAULT 0 NOT NULL,
    ack_success bigint DEFAULT 0 NOT NULL,
    ack_failed bigint DEFAULT 0 NOT NULL,
    dead_letters bigint DEFAULT 0 NOT NULL,
    transactions bigint DEFAULT 0 NOT NULL,
    db_errors bigint DEFAULT 0 NOT NULL,
    CONSTRAINT cell_totals_singleton_check CHECK (singleton)
)
WITH (fillfactor='50');


--
-- Name: config_version; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.config_version (
    shard integer NOT NULL,
    version bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='10', vacuum_truncate=off, autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200');


--
-- Name: cursor_moves; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.cursor_moves (
    id bigint NOT NULL,
    tenant_id uuid NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    consumer_group text COLLATE pg_catalog."C",
    moved_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (vacuum_truncate=off);


--
-- Name: cursor_moves_id_seq; Type: SEQUENCE; Schema: queen; Owner: -
--

ALTER TABLE queen.cursor_moves ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME queen.cursor_moves_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: dropped_partitions; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.dropped_partitions (
    partition_id bigint NOT NULL,
    dropped_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: group_registrations; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.group_registrations (
    tenant_id uuid NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    consumer_group text NOT NULL COLLATE pg_catalog."C",
    mode text NOT NULL,
    seed_from timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    conflation boolean DEFAULT false NOT NULL,
    CONSTRAINT group_registrations_mode_check CHECK ((mode = ANY (ARRAY['all'::text, 'new'::text, 'timestamp'::text])))
);


--
-- Name: log_consumers; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.log_consumers (
    partition_id bigint NOT NULL,
    consumer_group text NOT NULL COLLATE pg_catalog."C",
    committed bigint DEFAULT '-1'::integer NOT NULL,
    batch_end bigint,
    worker_id uuid,
    lease_expires_at timestamp with time zone,
    lease_acquired_at timestamp with time zone,
    batch_retry_count integer DEFAULT 0 NOT NULL,
    attempt_offset bigint,
    attempt_count integer DEFAULT 0 NOT NULL,
    total_consumed bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lease_conflated boolean DEFAULT false NOT NULL,
    CONSTRAINT log_consumers_check CHECK ((batch_end > committed)),
    CONSTRAINT log_consumers_check1 CHECK ((((batch_end IS NULL) = (worker_id IS NULL)) AND ((batch_end IS NULL) = (lease_expires_at IS NULL))))
)
WITH (fillfactor='50', vacuum_truncate=off, autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');


--
-- Name: log_dlq; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.log_dlq (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    partition_id bigint NOT NULL,
    partition_name text NOT NULL COLLATE pg_catalog."C",
    consumer_group text NOT NULL COLLATE pg_catalog."C",
    offset_ bigint NOT NULL,
    message_id uuid,
    transaction_id text COLLATE pg_catalog."C",
    payload bytea,
    error text NOT NULL,
    retry_count integer NOT NULL,
    created_at timestamp with time zone,
    failed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: log_partitions; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.log_partitions (
    id bigint NOT NULL,
    uid uuid DEFAULT gen_random_uuid() NOT NULL,
    queue_id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    last_offset bigint DEFAULT '-1'::integer NOT NULL,
    log_start bigint DEFAULT 0 NOT NULL,
    txns_start bigint DEFAULT 0 NOT NULL,
    oldest_live_at timestamp with time zone,
    oldest_txn_at timestamp with time zone,
    last_write_at timestamp with time zone,
    last_created_at timestamp with time zone,
    retained_bytes bigint DEFAULT 0 NOT NULL,
    segments bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    encrypted boolean DEFAULT false NOT NULL,
    sealed boolean DEFAULT false NOT NULL
)
WITH (fillfactor='70', vacuum_truncate=off, autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');


--
-- Name: log_partitions_id_seq; Type: SEQUENCE; Schema: queen; Owner: -
--

ALTER TABLE queen.log_partitions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME queen.log_partitions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: log_segments; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.log_segments (
    partition_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    end_offset bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    raw_bytes bigint NOT NULL,
    blob bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.1', autovacuum_vacuum_insert_scale_factor='0.3', autovacuum_vacuum_cost_limit='4000', autovacuum_vacuum_cost_delay='0', toast.autovacuum_vacuum_scale_factor='0.1', toast.autovacuum_vacuum_insert_scale_factor='0.3', toast.autovacuum_vacuum_cost_limit='4000', toast.autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY queen.log_segments ALTER COLUMN blob SET STORAGE EXTERNAL;


--
-- Name: log_trims; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.log_trims (
    id bigint NOT NULL,
    partition_id bigint NOT NULL,
    segments_from bigint NOT NULL,
    segments_below bigint NOT NULL,
    txns_from bigint NOT NULL,
    txns_below bigint NOT NULL,
    log_rows bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);


--
-- Name: log_trims_id_seq; Type: SEQUENCE; Schema: queen; Owner: -
--

ALTER TABLE queen.log_trims ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME queen.log_trims_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: log_txns; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.log_txns (
    partition_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    end_offset bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    hashes bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.1', autovacuum_vacuum_insert_scale_factor='0.3', autovacuum_vacuum_cost_delay='0', toast.autovacuum_vacuum_scale_factor='0.1', toast.autovacuum_vacuum_insert_scale_factor='0.3', toast.autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY queen.log_txns ALTER COLUMN hashes SET STORAGE EXTERNAL;


--
-- Name: maintenance_leases; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.maintenance_leases (
    task text NOT NULL,
    period interval NOT NULL,
    next_due_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lease_until timestamp with time zone,
    holder text,
    fence bigint DEFAULT 0 NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    last_run_at timestamp with time zone,
    last_run_ms bigint,
    last_error text,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_run_stats jsonb
)
WITH (fillfactor='50', vacuum_truncate=off);


--
-- Name: message_trace_names; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.message_trace_names (
    tenant_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    trace_id uuid NOT NULL,
    partition_id uuid NOT NULL,
    transaction_hash bytea NOT NULL
);


--
-- Name: message_traces; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.message_traces (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    partition_id uuid NOT NULL,
    transaction_hash bytea NOT NULL,
    transaction_id text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    partition_name text NOT NULL COLLATE pg_catalog."C",
    consumer_group text NOT NULL COLLATE pg_catalog."C",
    event_type text NOT NULL COLLATE pg_catalog."C",
    worker text NOT NULL,
    data text NOT NULL,
    names text[] NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: queue_metrics; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.queue_metrics (
    tenant_id uuid NOT NULL,
    bucket timestamp with time zone NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    broker_id uuid NOT NULL,
    push_requests bigint NOT NULL,
    push_messages bigint NOT NULL,
    pop_requests bigint NOT NULL,
    pop_messages bigint NOT NULL,
    pop_empty bigint NOT NULL,
    ack_requests bigint NOT NULL,
    ack_success bigint NOT NULL,
    ack_failed bigint NOT NULL,
    dead_letters bigint NOT NULL,
    transactions bigint NOT NULL,
    lag_ms bigint NOT NULL,
    lag_max_ms bigint NOT NULL,
    parked integer
);


--
-- Name: queues; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.queues (
    id bigint NOT NULL,
    uid uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    namespace text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    task text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    lease_time integer DEFAULT 300 NOT NULL,
    retry_limit integer DEFAULT 3 NOT NULL,
    retry_delay integer DEFAULT 1000 NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    max_size integer DEFAULT 0 NOT NULL,
    ttl integer DEFAULT 3600 NOT NULL,
    dead_letter_queue boolean DEFAULT true NOT NULL,
    dlq_after_max_retries boolean DEFAULT true NOT NULL,
    delayed_processing integer DEFAULT 0 NOT NULL,
    window_buffer integer DEFAULT 0 NOT NULL,
    retention_enabled boolean DEFAULT false NOT NULL,
    retention_seconds integer DEFAULT 0 NOT NULL,
    completed_retention_seconds integer DEFAULT 0 NOT NULL,
    max_wait_time_seconds integer DEFAULT 0 NOT NULL,
    min_pop_wait_time integer DEFAULT 0 NOT NULL,
    encryption_enabled boolean DEFAULT false NOT NULL,
    dedup_window_seconds integer DEFAULT 3600 NOT NULL,
    retention_sink_hold text DEFAULT ''::text NOT NULL,
    retention_sink_hold_max_seconds integer DEFAULT 604800 NOT NULL,
    partition_count bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: queues_id_seq; Type: SEQUENCE; Schema: queen; Owner: -
--

ALTER TABLE queen.queues ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME queen.queues_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: redrives; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.redrives (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    consumer_group text COLLATE pg_catalog."C",
    partition_name text COLLATE pg_catalog."C",
    error_part text,
    failed_from timestamp with time zone,
    failed_before timestamp with time zone NOT NULL,
    transaction_ids text[],
    to_queue text COLLATE pg_catalog."C",
    to_partition text COLLATE pg_catalog."C",
    rate integer NOT NULL,
    producer text NOT NULL,
    state text DEFAULT 'running'::text NOT NULL,
    matched bigint NOT NULL,
    moved bigint DEFAULT 0 NOT NULL,
    duplicate bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    after_failed_at timestamp with time zone,
    after_id uuid,
    holder text,
    lease_until timestamp with time zone,
    fence bigint DEFAULT 0 NOT NULL,
    error text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    CONSTRAINT redrives_check CHECK (((to_queue IS NULL) = (to_partition IS NULL))),
    CONSTRAINT redrives_check1 CHECK (((state = 'running'::text) = (finished_at IS NULL))),
    CONSTRAINT redrives_rate_check CHECK ((rate > 0)),
    CONSTRAINT redrives_state_check CHECK ((state = ANY (ARRAY['running'::text, 'done'::text, 'cancelled'::text, 'failed'::text])))
)
WITH (fillfactor='50', vacuum_truncate=off);


--
-- Name: retained_ledger; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.retained_ledger (
    tenant_id uuid NOT NULL,
    bytes bigint NOT NULL
)
WITH (vacuum_truncate=off, autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_scale_factor='0', autovacuum_vacuum_insert_threshold='100000', autovacuum_vacuum_cost_delay='0');


--
-- Name: retention_history; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.retention_history (
    tenant_id uuid NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    partition_id bigint,
    kind text NOT NULL,
    messages bigint NOT NULL,
    raw_bytes bigint NOT NULL,
    events bigint DEFAULT 1 NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT retention_history_kind_check CHECK ((kind = ANY (ARRAY['retention'::text, 'completed_retention'::text, 'eviction'::text, 'partition_deleted'::text])))
);


--
-- Name: retention_rules; Type: VIEW; Schema: queen; Owner: -
--

CREATE VIEW queen.retention_rules AS
 SELECT r.queue_id,
    r.tenant_id,
    r.queue,
    r.sink,
    r.sink_max,
    r.keep_all,
    r.keep_done,
    r.keep_wait,
    r.keep_txn,
    r.retained,
    LEAST(r.keep_wait,
        CASE
            WHEN ((r.sink = ''::text) OR (r.keep_all >= r.sink_max)) THEN r.keep_all
            WHEN (r.keep_all < r.sink_max) THEN r.sink_max
            ELSE NULL::interval
        END) AS firm,
    LEAST(r.keep_done,
        CASE
            WHEN (r.sink <> ''::text) THEN r.keep_all
            ELSE NULL::interval
        END) AS soft
   FROM ( SELECT q.id AS queue_id,
            q.tenant_id,
            q.name AS queue,
            q.retention_sink_hold AS sink,
            ((q.retention_sink_hold_max_seconds)::double precision * '00:00:01'::interval) AS sink_max,
                CASE
                    WHEN (q.retention_enabled AND (q.retention_seconds > 0)) THEN ((q.retention_seconds)::double precision * '00:00:01'::interval)
                    ELSE NULL::interval
                END AS keep_all,
                CASE
                    WHEN (q.retention_enabled AND (q.completed_retention_seconds > 0)) THEN ((q.completed_retention_seconds)::double precision * '00:00:01'::interval)
                    ELSE NULL::interval
                END AS keep_done,
                CASE
                    WHEN (q.max_wait_time_seconds > 0) THEN ((q.max_wait_time_seconds)::double precision * '00:00:01'::interval)
                    ELSE NULL::interval
                END AS keep_wait,
            ((GREATEST(q.dedup_window_seconds, q.completed_retention_seconds, 900))::double precision * '00:00:01'::interval) AS keep_txn,
            (q.retention_enabled OR (q.max_wait_time_seconds > 0)) AS retained
           FROM queen.queues q) r;


--
-- Name: scope_registrations; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.scope_registrations (
    tenant_id uuid NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    task text NOT NULL COLLATE pg_catalog."C",
    consumer_group text NOT NULL COLLATE pg_catalog."C",
    mode text NOT NULL,
    seed_from timestamp with time zone NOT NULL,
    conflation boolean NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT scope_registrations_check CHECK (((namespace <> ''::text) OR (task <> ''::text))),
    CONSTRAINT scope_registrations_mode_check CHECK ((mode = ANY (ARRAY['all'::text, 'new'::text, 'timestamp'::text])))
);


--
-- Name: system_state; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.system_state (
    key text NOT NULL,
    value jsonb NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: tenants; Type: TABLE; Schema: queen; Owner: -
--

CREATE TABLE queen.tenants (
    tenant_id uuid NOT NULL,
    queue_count bigint DEFAULT 0 NOT NULL,
    retained_bytes bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (fillfactor='70');


--
-- Data for Name: queengate_broker_version; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.queengate_broker_version VALUES
	(1, 0, true, '2026-11-30 01:27:10.814123'),
	(2, 1, true, '2026-11-30 01:27:10.84294'),
	(3, 2, true, '2026-11-30 01:27:10.843419'),
	(4, 3, true, '2026-11-30 01:27:10.915473'),
	(5, 4, true, '2026-11-30 01:27:10.947925'),
	(6, 5, true, '2026-11-30 01:27:10.960169'),
	(7, 10, true, '2026-11-30 01:27:10.995909'),
	(8, 11, true, '2026-11-30 01:27:11.076178'),
	(9, 12, true, '2026-11-30 01:27:11.100232'),
	(10, 14, true, '2026-11-30 01:27:11.157708'),
	(11, 15, true, '2026-11-30 01:27:11.243561'),
	(12, 16, true, '2026-11-30 01:27:11.26853');


--
-- Data for Name: queengate_routines; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.queengate_routines VALUES
	('broker/routines/ack.sql', '06c45daf72309493c89c14661205668111a995b3421ec99e256c31c24c9ae1a7', '2026-11-30 01:27:11.294366+00'),
	('broker/routines/claim.sql', '10b003bffd26bde4a862bf10958d25751c1676e714066dc7f55de17abfd8dd90', '2026-11-30 01:27:11.302044+00'),
	('broker/routines/cursors.sql', '52be817b8793ac4ac9258eaf81731cd64f19e08827c4c0e48c0ea12e287d7b66', '2026-11-30 01:27:11.306011+00'),
	('broker/routines/deadletter.sql', '2f1e011872102af0e57f23ac0c61c9eefa4ead421c50d0c111005eaaf0d4a6c3', '2026-11-30 01:27:11.31009+00'),
	('broker/routines/feed.sql', 'a03c6ee4d06841c690bf6a7360359ad277f48b90aad56019890c287e4b7d302c', '2026-11-30 01:27:11.310717+00'),
	('broker/routines/groups.sql', 'bea5b66e1276fc0dcfdb4f03774e82ade01c70bc6a1e2f96e43b3aa0959d1139', '2026-11-30 01:27:11.315919+00'),
	('broker/routines/history.sql', '6088f7b784222048358e1185a9defc332a765e31f4c6fcaf5ef4b5dfe21bd547', '2026-11-30 01:27:11.317407+00'),
	('broker/routines/provision.sql', 'cde839742307ff64dd2aa928db0f8d0da4297c155b9999c685220f6a852ec3fd', '2026-11-30 01:27:11.323918+00'),
	('broker/routines/push.sql', '14e839c9fcdfa60d4721586fd5efd1827fcb3319ac291b6089ede6ee2b937464', '2026-11-30 01:27:11.329126+00'),
	('broker/routines/queues.sql', 'd5d819d5ea408fa5b5bbf91ee2531b12e444a1d13109acb170ccb4d942b4e22b', '2026-11-30 01:27:11.334106+00'),
	('broker/routines/reading.sql', '809ffe937f04d16a9721a461756f853f2fed0075bd8de072d4b6753900c1cb9c', '2026-11-30 01:27:11.336846+00'),
	('broker/routines/ready.sql', '1f42b4bd1a64e77afdd57765f898ef4329407c5b1942ec6b3873d1ea95fe23cb', '2026-11-30 01:27:11.338036+00'),
	('broker/routines/retention.sql', 'b499c85fa115ff8fbb36c7f389a02b75667d11f895456e106137b435f9246819', '2026-11-30 01:27:11.355951+00'),
	('broker/routines/scopes.sql', '90cfc3d430ac1e83ff4734adc506765a4d0e6fc44fc7d85a674be6e6936fee76', '2026-11-30 01:27:11.360999+00'),
	('broker/routines/transaction.sql', '0b7fdc8d8b527981142874c808dcc9e28481fbe59fb3ee875881db27e6df6da5', '2026-11-30 01:27:11.36391+00'),
	('broker/routines/usage.sql', '5159487b4d16d09cc609a433eb6ac09afc5e9c616c71148b8e57617ac89475ae', '2026-11-30 01:27:11.367932+00');


--
-- Data for Name: broker_metrics; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: brokers; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: cell_totals; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.cell_totals VALUES
	(true, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);


--
-- Data for Name: config_version; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.config_version VALUES
	(0, 0),
	(1, 0),
	(2, 0),
	(3, 0),
	(4, 0),
	(5, 0),
	(6, 0),
	(7, 0),
	(8, 0),
	(9, 0),
	(10, 0),
	(11, 0),
	(12, 0),
	(13, 0),
	(14, 0),
	(15, 0);


--
-- Data for Name: cursor_moves; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: dropped_partitions; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: group_registrations; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.group_registrations VALUES
	('296aacc1-c684-44fe-b5fa-820cb167f27c', 'orders', 'billing', 'all', '2026-11-30 02:09:45.403102+00', '2026-11-30 02:09:45.404175+00', false);


--
-- Data for Name: log_consumers; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.log_consumers VALUES
	(1, 'billing', -1, NULL, NULL, NULL, NULL, 0, NULL, 0, 0, '2026-11-30 02:09:45.404921+00', false),
	(2, 'billing', -1, NULL, NULL, NULL, NULL, 0, NULL, 0, 0, '2026-11-30 02:09:45.40505+00', false),
	(1, '__QUEUE_MODE__', 0, NULL, NULL, NULL, NULL, 0, NULL, 0, 1, '2026-11-30 02:09:45.432875+00', false),
	(2, '__QUEUE_MODE__', -1, 0, '01a22a37-202f-75ec-bd7c-6876aec5f4a0', '2026-11-30 02:10:45.525094+00', '2026-11-30 02:09:45.525094+00', 0, 0, 1, 0, '2026-11-30 02:09:45.524729+00', false);


--
-- Data for Name: log_dlq; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.log_dlq VALUES
	('01a22a37-1fd9-7e06-8363-3eab18235cf3', '296aacc1-c684-44fe-b5fa-820cb167f27c', 'orders', 1, 'customer-1', '__QUEUE_MODE__', 0, '01a22a37-1fc4-7000-8000-000139bf9e23', 'a', '\x31', 'unreadable', 0, '2026-11-30 02:09:45.412138+00', '2026-11-30 02:09:45.436834+00');


--
-- Data for Name: log_partitions; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.log_partitions OVERRIDING SYSTEM VALUE VALUES
	(1, '8ba68ef0-1d7c-4124-82a8-92ce32a97e01', 1, 'customer-1', 2, 0, 0, '2026-11-30 02:09:45.412138+00', '2026-11-30 02:09:45.412138+00', '2026-11-30 02:09:45.412138+00', '2026-11-30 02:09:45.412138+00', 3, 1, '2026-11-30 02:09:45.400051+00', false, false),
	(2, 'bded2098-abba-483d-b2c7-6fd4298fb806', 1, 'customer-2', 2, 0, 0, '2026-11-30 02:09:45.413874+00', '2026-11-30 02:09:45.413874+00', '2026-11-30 02:09:45.413874+00', '2026-11-30 02:09:45.413874+00', 3, 1, '2026-11-30 02:09:45.400707+00', false, false);


--
-- Data for Name: log_segments; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.log_segments VALUES
	(1, 0, 2, '2026-11-30 02:09:45.412138+00', 3, '\x51530100030000001b000000f6217de0050000000a0000000f000000000100613100010062320001006333'),
	(2, 0, 2, '2026-11-30 02:09:45.413874+00', 3, '\x51530100030000001b000000f6217de0050000000a0000000f000000000100613100010062320001006333');


--
-- Data for Name: log_trims; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: log_txns; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.log_txns VALUES
	(1, 0, 2, '2026-11-30 02:09:45.412138+00', '\xca978112ca1bbdcafac231b39a23dc4d3e23e8160039594a33894f6564e1b1342e7d2c03a9507ae265ecf5b5356885a5'),
	(2, 0, 2, '2026-11-30 02:09:45.413874+00', '\xca978112ca1bbdcafac231b39a23dc4d3e23e8160039594a33894f6564e1b1342e7d2c03a9507ae265ecf5b5356885a5');


--
-- Data for Name: maintenance_leases; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.maintenance_leases VALUES
	('retention', '00:00:05', '2026-11-30 01:27:11.034521+00', NULL, NULL, 0, true, NULL, NULL, NULL, '2026-11-30 01:27:11.034522+00', NULL),
	('sidecar', '00:01:00', '2026-11-30 01:27:11.034665+00', NULL, NULL, 0, true, NULL, NULL, NULL, '2026-11-30 01:27:11.034665+00', NULL),
	('partitions', '00:01:00', '2026-11-30 01:27:11.03467+00', NULL, NULL, 0, true, NULL, NULL, NULL, '2026-11-30 01:27:11.03467+00', NULL),
	('history', '01:00:00', '2026-11-30 01:27:11.034672+00', NULL, NULL, 0, true, NULL, NULL, NULL, '2026-11-30 01:27:11.034672+00', NULL);


--
-- Data for Name: message_trace_names; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.message_trace_names VALUES
	('296aacc1-c684-44fe-b5fa-820cb167f27c', 'journey', '2026-11-30 02:09:45.526773+00', '29761eb4-afc8-4e4c-9ac2-0fb5084cbd71', '8ba68ef0-1d7c-4124-82a8-92ce32a97e01', '\xca978112ca1bbdcafac231b39a23dc4d');


--
-- Data for Name: message_traces; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.message_traces VALUES
	('29761eb4-afc8-4e4c-9ac2-0fb5084cbd71', '296aacc1-c684-44fe-b5fa-820cb167f27c', '8ba68ef0-1d7c-4124-82a8-92ce32a97e01', '\xca978112ca1bbdcafac231b39a23dc4d', 'a', 'orders', 'customer-1', '', 'seen', '', '{"by":"a test"}', '{journey}', '2026-11-30 02:09:45.526773+00');


--
-- Data for Name: queue_metrics; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: queues; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.queues OVERRIDING SYSTEM VALUE VALUES
	(1, '30926b7f-5084-435b-8f3f-5696a16fa66a', '296aacc1-c684-44fe-b5fa-820cb167f27c', 'orders', '', '', 300, 3, 1000, 0, 0, 3600, true, true, 0, 0, false, 0, 0, 0, 0, false, 3600, '', 604800, 0, '2026-11-30 02:09:45.397411+00');


--
-- Data for Name: redrives; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: retained_ledger; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: retention_history; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: scope_registrations; Type: TABLE DATA; Schema: queen; Owner: -
--



--
-- Data for Name: system_state; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.system_state VALUES
	('maintenance_mode', '{"enabled": false}', '2026-11-30 02:09:45.526021+00');


--
-- Data for Name: tenants; Type: TABLE DATA; Schema: queen; Owner: -
--

INSERT INTO queen.tenants VALUES
	('296aacc1-c684-44fe-b5fa-820cb167f27c', 0, 6, '2026-11-30 02:09:45.396717+00');


--
-- Name: queengate_broker_version_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.queengate_broker_version_id_seq', 12, true);


--
-- Name: cursor_moves_id_seq; Type: SEQUENCE SET; Schema: queen; Owner: -
--

SELECT pg_catalog.setval('queen.cursor_moves_id_seq', 1, false);


--
-- Name: log_partitions_id_seq; Type: SEQUENCE SET; Schema: queen; Owner: -
--

SELECT pg_catalog.setval('queen.log_partitions_id_seq', 2, true);


--
-- Name: log_trims_id_seq; Type: SEQUENCE SET; Schema: queen; Owner: -
--

SELECT pg_catalog.setval('queen.log_trims_id_seq', 1, false);


--
-- Name: queues_id_seq; Type: SEQUENCE SET; Schema: queen; Owner: -
--

SELECT pg_catalog.setval('queen.queues_id_seq', 1, true);


--
-- Name: queengate_broker_version queengate_broker_version_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.queengate_broker_version
    ADD CONSTRAINT queengate_broker_version_pkey PRIMARY KEY (id);


--
-- Name: queengate_routines queengate_routines_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.queengate_routines
    ADD CONSTRAINT queengate_routines_pkey PRIMARY KEY (name);


--
-- Name: broker_metrics broker_metrics_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.broker_metrics
    ADD CONSTRAINT broker_metrics_pkey PRIMARY KEY (bucket, broker_id);


--
-- Name: brokers brokers_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.brokers
    ADD CONSTRAINT brokers_pkey PRIMARY KEY (id);


--
-- Name: cell_totals cell_totals_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.cell_totals
    ADD CONSTRAINT cell_totals_pkey PRIMARY KEY (singleton);


--
-- Name: config_version config_version_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.config_version
    ADD CONSTRAINT config_version_pkey PRIMARY KEY (shard);


--
-- Name: cursor_moves cursor_moves_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.cursor_moves
    ADD CONSTRAINT cursor_moves_pkey PRIMARY KEY (id);


--
-- Name: dropped_partitions dropped_partitions_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.dropped_partitions
    ADD CONSTRAINT dropped_partitions_pkey PRIMARY KEY (partition_id);


--
-- Name: group_registrations group_registrations_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.group_registrations
    ADD CONSTRAINT group_registrations_pkey PRIMARY KEY (tenant_id, queue, consumer_group);


--
-- Name: log_consumers log_consumers_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_consumers
    ADD CONSTRAINT log_consumers_pkey PRIMARY KEY (partition_id, consumer_group);


--
-- Name: log_dlq log_dlq_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_dlq
    ADD CONSTRAINT log_dlq_pkey PRIMARY KEY (id);


--
-- Name: log_partitions log_partitions_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_partitions
    ADD CONSTRAINT log_partitions_pkey PRIMARY KEY (id);


--
-- Name: log_partitions log_partitions_queue_id_name_key; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_partitions
    ADD CONSTRAINT log_partitions_queue_id_name_key UNIQUE (queue_id, name);


--
-- Name: log_partitions log_partitions_uid_key; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_partitions
    ADD CONSTRAINT log_partitions_uid_key UNIQUE (uid);


--
-- Name: log_segments log_segments_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_segments
    ADD CONSTRAINT log_segments_pkey PRIMARY KEY (partition_id, base_offset);


--
-- Name: log_trims log_trims_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_trims
    ADD CONSTRAINT log_trims_pkey PRIMARY KEY (id);


--
-- Name: log_txns log_txns_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_txns
    ADD CONSTRAINT log_txns_pkey PRIMARY KEY (partition_id, base_offset);


--
-- Name: maintenance_leases maintenance_leases_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.maintenance_leases
    ADD CONSTRAINT maintenance_leases_pkey PRIMARY KEY (task);


--
-- Name: message_trace_names message_trace_names_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.message_trace_names
    ADD CONSTRAINT message_trace_names_pkey PRIMARY KEY (tenant_id, name, created_at, trace_id);


--
-- Name: message_traces message_traces_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.message_traces
    ADD CONSTRAINT message_traces_pkey PRIMARY KEY (id);


--
-- Name: queue_metrics queue_metrics_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.queue_metrics
    ADD CONSTRAINT queue_metrics_pkey PRIMARY KEY (tenant_id, bucket, queue, broker_id);


--
-- Name: queues queues_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (id);


--
-- Name: queues queues_tenant_id_name_key; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.queues
    ADD CONSTRAINT queues_tenant_id_name_key UNIQUE (tenant_id, name);


--
-- Name: queues queues_uid_key; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.queues
    ADD CONSTRAINT queues_uid_key UNIQUE (uid);


--
-- Name: redrives redrives_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.redrives
    ADD CONSTRAINT redrives_pkey PRIMARY KEY (id);


--
-- Name: scope_registrations scope_registrations_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.scope_registrations
    ADD CONSTRAINT scope_registrations_pkey PRIMARY KEY (tenant_id, namespace, task, consumer_group);


--
-- Name: system_state system_state_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.system_state
    ADD CONSTRAINT system_state_pkey PRIMARY KEY (key);


--
-- Name: tenants tenants_pkey; Type: CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (tenant_id);


--
-- Name: cursor_moves_moved_at; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX cursor_moves_moved_at ON queen.cursor_moves USING btree (moved_at);


--
-- Name: log_dlq_offset; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_dlq_offset ON queen.log_dlq USING btree (partition_id, offset_);


--
-- Name: log_dlq_partition; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_dlq_partition ON queen.log_dlq USING btree (partition_id, failed_at DESC);


--
-- Name: log_dlq_queue; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_dlq_queue ON queen.log_dlq USING btree (tenant_id, queue, failed_at DESC, id DESC);


--
-- Name: log_dlq_tenant; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_dlq_tenant ON queen.log_dlq USING btree (tenant_id, failed_at DESC, id DESC);


--
-- Name: log_dlq_transaction; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_dlq_transaction ON queen.log_dlq USING btree (partition_id, hashtextextended(transaction_id, (0)::bigint));


--
-- Name: log_partitions_idle; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_partitions_idle ON queen.log_partitions USING btree (GREATEST(created_at, last_write_at)) WHERE (oldest_live_at IS NULL);


--
-- Name: log_partitions_last_write_at; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_partitions_last_write_at ON queen.log_partitions USING btree (last_write_at);


--
-- Name: log_partitions_live_due; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_partitions_live_due ON queen.log_partitions USING btree (queue_id, oldest_live_at, id) WHERE (oldest_live_at IS NOT NULL);


--
-- Name: log_partitions_txn_due; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX log_partitions_txn_due ON queen.log_partitions USING btree (queue_id, oldest_txn_at, id) WHERE (oldest_txn_at IS NOT NULL);


--
-- Name: message_traces_message; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX message_traces_message ON queen.message_traces USING btree (tenant_id, partition_id, transaction_hash, created_at);


--
-- Name: queue_metrics_bucket; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX queue_metrics_bucket ON queen.queue_metrics USING brin (bucket) WITH (pages_per_range='32', autosummarize='on');


--
-- Name: queues_retained; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX queues_retained ON queen.queues USING btree (id) WHERE (retention_enabled OR (max_wait_time_seconds > 0));


--
-- Name: queues_scope; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX queues_scope ON queen.queues USING btree (tenant_id, namespace, task);


--
-- Name: redrives_running; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX redrives_running ON queen.redrives USING btree (created_at) WHERE (state = 'running'::text);


--
-- Name: redrives_tenant; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX redrives_tenant ON queen.redrives USING btree (tenant_id, created_at);


--
-- Name: retention_history_fresh; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX retention_history_fresh ON queen.retention_history USING btree (at) WHERE (partition_id IS NOT NULL);


--
-- Name: retention_history_tenant; Type: INDEX; Schema: queen; Owner: -
--

CREATE INDEX retention_history_tenant ON queen.retention_history USING btree (tenant_id, at);


--
-- Name: log_consumers log_consumers_partition_id_fkey; Type: FK CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.log_consumers
    ADD CONSTRAINT log_consumers_partition_id_fkey FOREIGN KEY (partition_id) REFERENCES queen.log_partitions(id) ON DELETE CASCADE;


--
-- Name: queues queues_tenant_id_fkey; Type: FK CONSTRAINT; Schema: queen; Owner: -
--

ALTER TABLE ONLY queen.queues
    ADD CONSTRAINT queues_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES queen.tenants(tenant_id);


--
-- PostgreSQL database dump complete
--


