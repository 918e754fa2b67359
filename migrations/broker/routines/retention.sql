-- Retention, in steps that hold nobody up: docs/design/retention.md.

-- The rules of every queue as ages; NULL means that a rule is off. What is older than keep_txn has no sidecar row, and
-- what is older than firm goes whatever any group has done. What is older than soft goes if the groups let it.
CREATE OR REPLACE VIEW queen.retention_rules AS
SELECT r.*,
       least(r.keep_wait, CASE WHEN r.sink = '' OR r.keep_all >= r.sink_max THEN r.keep_all
                               WHEN r.keep_all < r.sink_max THEN r.sink_max END) AS firm,
       least(r.keep_done, CASE WHEN r.sink <> '' THEN r.keep_all END) AS soft
  FROM (SELECT q.id AS queue_id, q.tenant_id, q.name AS queue, q.retention_sink_hold AS sink,
               q.retention_sink_hold_max_seconds * interval '1 second' AS sink_max,
               CASE WHEN q.retention_enabled AND q.retention_seconds > 0 THEN q.retention_seconds * interval '1 second' END AS keep_all,
               CASE WHEN q.retention_enabled AND q.completed_retention_seconds > 0
                    THEN q.completed_retention_seconds * interval '1 second' END AS keep_done,
               CASE WHEN q.max_wait_time_seconds > 0 THEN q.max_wait_time_seconds * interval '1 second' END AS keep_wait,
               greatest(q.dedup_window_seconds, q.completed_retention_seconds, 900) * interval '1 second' AS keep_txn,
               q.retention_enabled OR q.max_wait_time_seconds > 0 AS retained -- the predicate of queues_retained
          FROM queen.queues q) r;

-- holds_task says whether the caller's claim of a task is still the last one and alive, and keeps it so until the end of
-- the transaction: a claim takes the row and skips one that is held. Whatever a task writes begins with it.
CREATE OR REPLACE FUNCTION queen.holds_task(p_task text, p_holder text, p_fence bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM queen.maintenance_leases l
      WHERE l.task = p_task AND l.holder = p_holder AND l.fence = p_fence AND l.lease_until > clock_timestamp()
        FOR SHARE;
    RETURN FOUND;
END $$;

-- task_due says whether a task has anything to do. No lock; a few index probes per queue.
CREATE OR REPLACE FUNCTION queen.task_due(p_task text, p_idle interval) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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
        WHEN 'cursors' THEN EXISTS (SELECT FROM queen.group_registrations r WHERE r.seeded_to IS NOT NULL)
        WHEN 'writes' THEN EXISTS (SELECT FROM queen.log_writes w WHERE w.written_at < v_now - queen.writes_keep())
        ELSE true END;
END $$;

-- claim_tasks takes those of the tasks that are due, free and enabled, and have something to do; the others of them are
-- done with at once, so that an idle cell costs one statement without a flush per turn. A claim raises the fence.
--
-- Locks: the rows of the tasks, in their order, skipping those that another broker claims or works under.
CREATE OR REPLACE FUNCTION queen.claim_tasks(
    p_holder text, p_lease interval, p_tasks text[], p_periods interval[], p_idle interval)
RETURNS TABLE (task text, fence bigint, until timestamptz)
LANGUAGE plpgsql AS $$
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

-- next_turn is one period after the last due time; turns that were missed are not made up for.
CREATE OR REPLACE FUNCTION queen.next_turn(p_due timestamptz, p_period interval, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_due + p_period > p_now AND p_due <= p_now THEN p_due + p_period ELSE p_now + p_period END
$$;

-- renew_task prolongs a claim and says whether it is still the caller's.
CREATE OR REPLACE FUNCTION queen.renew_task(p_task text, p_holder text, p_fence bigint, p_lease interval) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE queen.maintenance_leases l SET lease_until = clock_timestamp() + p_lease, updated_at = clock_timestamp()
     WHERE l.task = p_task AND l.holder = p_holder AND l.fence = p_fence AND l.lease_until > clock_timestamp();
    RETURN FOUND;
END $$;

-- release_task ends a claim: the task is due again one period later, or at once after an error.
CREATE OR REPLACE FUNCTION queen.release_task(
    p_task text, p_holder text, p_fence bigint, p_took_ms bigint, p_stats jsonb, p_error text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE queen.maintenance_leases l
       SET next_due_at = CASE WHEN p_error IS NULL THEN queen.next_turn(l.next_due_at, l.period, clock_timestamp()) ELSE l.next_due_at END,
           lease_until = NULL, last_run_at = clock_timestamp(), last_run_ms = p_took_ms, last_run_stats = p_stats, last_error = p_error,
           updated_at = clock_timestamp()
     WHERE l.task = p_task AND l.holder = p_holder AND l.fence = p_fence;
    RETURN FOUND;
END $$;

-- retention_firm lists at most p_limit partitions whose oldest segment goes whatever any group has done.
-- No lock. Index: log_partitions_live_due.
CREATE OR REPLACE FUNCTION queen.retention_firm(p_limit integer) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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

-- retention_soft looks at p_limit partitions whose oldest segment goes if the groups let it, in key order after the given
-- one, and lists those of them where some group may. A partition whose groups do not move is due for ever: the caller
-- goes round by asking on from the position returned, so the cost of a turn has a bound and nobody starves. seen is how
-- many it looked at; fewer than p_limit is the end.
-- No lock. Indexes: log_partitions_live_due, log_consumers_pkey.
CREATE OR REPLACE FUNCTION queen.retention_soft(
    p_queue bigint, p_at timestamptz, p_id bigint, p_limit integer, -- NULLs: from the beginning
    OUT ids bigint[], OUT seen bigint, OUT last_queue bigint, OUT last_at timestamptz, OUT last_id bigint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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

-- sidecar_due lists at most p_limit partitions whose oldest sidecar row is past its age.
-- No lock. Index: log_partitions_txn_due.
CREATE OR REPLACE FUNCTION queen.sidecar_due(p_limit integer) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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

-- completed_upto is the last offset that every group is done with: those that have a cursor on the partition, and those
-- that are registered on its queue and would get one at their first claim. NULL: no group at all.
CREATE OR REPLACE FUNCTION queen.completed_upto(p_partition bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT min(g.committed)
      FROM queen.log_partitions p
      JOIN queen.queues q ON q.id = p.queue_id
     CROSS JOIN LATERAL (
            SELECT k.committed FROM queen.log_consumers k WHERE k.partition_id = p.id
            UNION ALL
            SELECT queen.start_offset(r.mode, r.seed_from, r.last_partition, p)
              FROM queen.group_registrations r
             WHERE r.tenant_id = q.tenant_id AND r.queue = q.name
               AND NOT EXISTS (SELECT FROM queen.log_consumers k
                                WHERE k.partition_id = p.id AND k.consumer_group = r.consumer_group)
            UNION ALL
            SELECT queen.start_offset(r.mode, r.seed_from, r.last_partition, p)
              FROM queen.scope_registrations r
             WHERE r.tenant_id = q.tenant_id AND r.namespace IN ('', q.namespace) AND r.task IN ('', q.task)
               AND NOT EXISTS (SELECT FROM queen.log_consumers k
                                WHERE k.partition_id = p.id AND k.consumer_group = r.consumer_group)
               AND NOT EXISTS (SELECT FROM queen.group_registrations g
                                WHERE g.tenant_id = q.tenant_id AND g.queue = q.name AND g.consumer_group = r.consumer_group)) g
     WHERE p.id = p_partition
$$;

-- trim_plan says how far the watermarks of the partitions may move: by the task that asks those of the segments or those
-- of the sidecar, by at most p_batch rows each: whole segments from the first live one on. Ages are those of the database's clock, and stamps rise with
-- offsets, so each rule covers a prefix and the longest counts. Rows appear only for what can move. No lock.
CREATE OR REPLACE FUNCTION queen.trim_plan(p_task text, p_partitions bigint[], p_batch integer)
RETURNS SETOF queen.trim_step
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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

-- trim_partitions is one step of retention: it moves the watermarks of the partitions, and with them their counters, the tenants'
-- retained bytes and the history, all in one commit. From then on what lies below is deleted for every reader;
-- sweep_trimmed removes the rows.
--
-- It looks first and locks last. What the plan says stays true: segments never change, only retention moves the
-- watermarks (a plan whose start has moved is dropped), and a cursor that is moved back meanwhile gets what a move after
-- the step would get. The partition rows are held for one update by key and no flush: nothing else is in this
-- transaction, and a later commit that is durable makes this one durable too, the deletion of the rows among them.
--
-- Locks: the task's row (shared), then partition rows ascending, skipping busy ones; with p_wait, for one partition that
-- was busy too often, waiting up to 250 ms. Returns NULLs when the claim is lost; nothing was written then.
CREATE OR REPLACE FUNCTION queen.trim_partitions(
    p_task text, p_holder text, p_fence bigint, p_partitions bigint[], p_batch integer, p_wait boolean,
    OUT segments bigint, OUT txns bigint, OUT raw_bytes bigint,
    OUT by_age bigint, OUT by_completion bigint, OUT by_wait bigint, OUT moved bigint[], OUT busy bigint[])
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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
               idle_since = p.last_write_at,
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

-- sweep_trimmed deletes rows that lie below the watermarks of their partitions, oldest ranges first, about p_limit of
-- them, and returns how many; NULL when the claim is lost. No partition row is touched: nobody waits for it.
CREATE OR REPLACE FUNCTION queen.sweep_trimmed(p_task text, p_holder text, p_fence bigint, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
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

-- idle_partitions lists partitions that are empty and to which nobody has come for p_idle. Vetoes: a dead letter, a live
-- lease, and a group that was created, was given a lease, or whose lease ended within that time. idle_since is never later
-- than last_write_at and leads to the candidates; the last write itself decides.
-- No lock. Indexes: log_partitions_idle, log_dlq_partition, log_consumers_pkey.
CREATE OR REPLACE FUNCTION queen.idle_partitions(p_idle interval, p_limit integer) RETURNS TABLE (tenant_id uuid, partition_id bigint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_since timestamptz := clock_timestamp() - p_idle;
BEGIN
    RETURN QUERY
    SELECT q.tenant_id, p.id FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
     WHERE p.oldest_live_at IS NULL AND greatest(p.created_at, p.idle_since) < v_since AND greatest(p.created_at, p.last_write_at) < v_since
       AND NOT EXISTS (SELECT FROM queen.log_dlq d WHERE d.partition_id = p.id)
       AND NOT EXISTS (SELECT FROM queen.log_consumers k WHERE k.partition_id = p.id
                          AND greatest(k.created_at, k.lease_acquired_at, k.lease_expires_at) >= v_since)
     ORDER BY greatest(p.created_at, p.idle_since) LIMIT p_limit;
END $$;

-- reclaim_partitions deletes those of the tenant's partitions that are still idle once they are locked, with what
-- delete_partitions takes along, and returns their number; NULL when the claim is lost.
-- Locks: the task's row (shared), the tenant's, then partition rows ascending, skipping busy ones: somebody is there.
CREATE OR REPLACE FUNCTION queen.reclaim_partitions(
    p_task text, p_holder text, p_fence bigint, p_tenant uuid, p_partitions bigint[], p_idle interval) RETURNS bigint
LANGUAGE plpgsql AS $$
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

-- fold_retention_history makes one row per hour, queue and kind of what is older than p_fold, at most p_limit rows at a time, and
-- drops what is older than p_keep. It returns the rows it took; NULL when the claim is lost.
CREATE OR REPLACE FUNCTION queen.fold_retention_history(
    p_task text, p_holder text, p_fence bigint, p_fold interval, p_keep interval, p_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
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

-- purge_writes deletes at most p_limit rows of log_writes that nobody looks back to any more, oldest first, and returns how
-- many; NULL when the claim is lost. Index: log_writes_written_at.
CREATE OR REPLACE FUNCTION queen.purge_writes(p_task text, p_holder text, p_fence bigint, p_limit integer) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_before timestamptz := clock_timestamp() - queen.writes_keep();
    v_gone   bigint;
BEGIN
    IF NOT queen.holds_task(p_task, p_holder, p_fence) THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM queen.log_writes w WHERE w.ctid = ANY (ARRAY(
        SELECT o.ctid FROM queen.log_writes o WHERE o.written_at < v_before ORDER BY o.written_at LIMIT p_limit));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone;
END $$;
