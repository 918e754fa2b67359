-- ack_bundle decides the acknowledgements of many groups in one statement and one commit: docs/design/ack.md.
--
-- Groups: one array element per (tenant, partition, consumer group); a (partition, group) may appear only once in a call.
-- p_named says that a lease was named, p_lease is NULL when what was named cannot be a lease id.
-- A positional group says where its messages are: p_low and p_high are the lowest and highest offset it names, p_done the
-- highest completed one, p_sig and p_kind the lowest signal and its strength. It is believed only if the lease it names
-- is live and holds all of it. A hashed group has p_low NULL and its items in p_hash and p_status from p_first[i] to
-- p_last[i]. Status and kind: 0 completed, 1 retry, 2 failed, 3 dead letter.
-- Frames: p_frame[i] is the index of the dead letter that group i may file, 0 for none.
--
-- Outcomes: 0 decided, 1 not the tenant's, 2 no cursor, 3 not the live lease, 4 resolve by hash, 5 the span is wider
-- than p_width hashes: ask alone, 6 file the frame at `signal` first. Only 0 changes anything.
-- Acts of a decided group: 0 none, 1 retry, 2 failed, 3 filed, 4 dropped.
--
-- A conflated lease has one message out, the last of its span; skipped is how many positions its ack passed over.
CREATE OR REPLACE FUNCTION queen.ack_bundle(
    p_tenant uuid[], p_partition uuid[], p_group text[], p_named boolean[], p_lease uuid[],
    p_low bigint[], p_high bigint[], p_done bigint[], p_sig bigint[], p_kind integer[],
    p_first integer[], p_last integer[], p_hash bytea[], p_status integer[], p_width bigint,
    p_frame integer[], f_offset bigint[], f_id uuid[], f_message uuid[], f_txn text[], f_payload bytea[],
    f_error text[], f_created timestamptz[])
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

-- resolve_hashes finds the messages of hashed groups: for each item the lowest offset in the group's span, -1 when the
-- span does not hold it. The span is what is out, (committed, batch_end], of a conflated lease its last message alone,
-- or all behind the cursor when nothing is; a
-- group whose span is wider than p_width is not looked at. It costs the width of the span, not the history.
CREATE OR REPLACE FUNCTION queen.resolve_hashes(
    p_tenant uuid[], p_partition uuid[], p_group text[], p_first integer[], p_last integer[], p_hash bytea[], p_width bigint)
RETURNS bigint[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = on
SET jit = off
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

-- passed_hash returns the 1-based numbers of the hashes that the sidecar has at or below p_upto, looking at the newest
-- rows first and stopping when all are found. It takes no lock: rows never change, and what it says moves no cursor.
CREATE OR REPLACE FUNCTION queen.passed_hash(p_partition bigint, p_upto bigint, p_hash bytea[]) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
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
