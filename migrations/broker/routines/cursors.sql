-- Cursors moved by an operator: seek, deletion of a group, clearing of a queue. All of it runs under the tenant's row,
-- in the order of the lock header of 00002: no partition appears or goes while cursors move, and two moves of a tenant
-- cannot wait for each other in a circle. Claims skip the rows it holds; an ack waits and then finds its lease gone.

-- queen.mark_move writes the marker by which brokers hear of a move. p_group NULL stands for every group of the queue.
-- Call it behind the locks of the rows it tells of; old markers go with new ones.
CREATE OR REPLACE FUNCTION queen.mark_move(p_tenant uuid, p_queue text, p_group text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM queen.cursor_moves m WHERE m.id IN (
        SELECT o.id FROM queen.cursor_moves o WHERE o.moved_at < clock_timestamp() - interval '1 hour'
        ORDER BY o.moved_at LIMIT 1000 FOR UPDATE SKIP LOCKED);
    INSERT INTO queen.cursor_moves (tenant_id, queue, consumer_group) VALUES (p_tenant, p_queue, p_group);
END
$$;

-- queen.seek_group moves the cursors of a group on the partitions of a queue, or on one of them, to the end (p_at NULL)
-- or to just before the first segment stamped at or after p_at: at the latest to the end, at the earliest to the oldest
-- retained message. Missing cursors are made. Leases end, and counts of retries and attempts begin anew.
-- It returns the number of cursors, 0 when nothing matched.
CREATE OR REPLACE FUNCTION queen.seek_group(
    p_tenant uuid, p_group text, p_queue text, p_partition text, p_at timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
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

-- queen.delete_group removes the cursors of a group, of one queue or (p_queue NULL) of all, and with p_registrations its
-- registrations too. It returns what it removed and the queues it touched.
CREATE OR REPLACE FUNCTION queen.delete_group(
    p_tenant uuid, p_group text, p_queue text, p_registrations bool,
    OUT cursors bigint, OUT registrations bigint, OUT queues text[])
LANGUAGE plpgsql AS $$
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

-- queen.set_subscription changes where the registrations of a group start from, and returns how many there are. It moves
-- no cursor: partitions without one are seeded by it. Cursors that the registrations still owe are made first, so that it
-- does not matter how far they have come. A group that read everything starts from the time as well.
CREATE OR REPLACE FUNCTION queen.set_subscription(p_tenant uuid, p_group text, p_from timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    PERFORM queen.seed_page(p_tenant, r.queue, p_group, NULL) FROM queen.group_registrations r
      WHERE r.tenant_id = p_tenant AND r.consumer_group = p_group AND r.seeded_to IS NOT NULL;
    UPDATE queen.group_registrations r SET mode = 'timestamp', seed_from = p_from
    WHERE r.tenant_id = p_tenant AND r.consumer_group = p_group;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    UPDATE queen.scope_registrations s SET mode = 'timestamp', seed_from = p_from
    WHERE s.tenant_id = p_tenant AND s.consumer_group = p_group;
    RETURN v_count;
END
$$;

-- queen.clear_queue removes all partitions of a queue, or one, with messages, cursors, dead letters and dedup keys; the
-- queue, its options and the registrations of its groups stay, so that running consumers go on with what comes next.
-- messages counts what was retained. Locks: as delete_partitions.
CREATE OR REPLACE FUNCTION queen.clear_queue(
    p_tenant uuid, p_queue text, p_partition text, OUT existed bool, OUT partitions bigint[], OUT messages bigint)
LANGUAGE plpgsql AS $$
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

-- queen.pending_since returns the stamp of the oldest message behind a cursor that stands at p_done, NULL without one.
-- One key probe, a second where retention has left a gap. Index: log_segments_pkey.
CREATE OR REPLACE FUNCTION queen.pending_since(p_partition bigint, p_done bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
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
