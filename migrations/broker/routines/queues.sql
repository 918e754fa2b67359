-- queen.delete_partitions deletes those of the partitions that belong to the tenant, with their cursors and dead
-- letters, and gives their bytes back. It returns the ids it deleted. Their log is listed in dropped_partitions in the
-- same transaction and swept afterwards, so the cost here is per partition, not per message: nobody can reach the
-- rows any more, since ids are never used again.
--
-- Every deletion of a partition goes through here; nothing else may delete from log_partitions.
-- Locks: the tenant's row, then the partition rows ascending (it waits for pushes in flight), then their consumers, their
-- letters and trims (it waits for a replay, and for a step of sweep_trimmed, which want nothing that it holds).
CREATE OR REPLACE FUNCTION queen.delete_partitions(p_tenant uuid, p_partitions bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
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
    -- From here on their whole log is the business of sweep_dropped: two sweeps of the same rows could wait for each other.
    DELETE FROM queen.log_trims t WHERE t.partition_id = ANY (v_ids);

    UPDATE queen.queues q SET partition_count = q.partition_count - g.gone
    FROM (SELECT p.queue_id, count(*) AS gone FROM queen.log_partitions p WHERE p.id = ANY (v_ids) AND p.name <> 'Default' GROUP BY p.queue_id) g
    WHERE q.id = g.queue_id;

    INSERT INTO queen.dropped_partitions (partition_id, tenant_id) SELECT unnest(v_ids), p_tenant;
    DELETE FROM queen.log_partitions p WHERE p.id = ANY (v_ids);
    IF v_bytes <> 0 THEN
        INSERT INTO queen.retained_ledger (tenant_id, bytes) VALUES (p_tenant, -v_bytes);
    END IF;
    PERFORM queen.bump_config();
    RETURN v_ids;
END
$$;

-- queen.delete_queue deletes a queue with its partitions and the registrations of its groups. existed says whether
-- there was one. Locks: as delete_partitions.
CREATE OR REPLACE FUNCTION queen.delete_queue(p_tenant uuid, p_queue text, OUT existed bool, OUT partitions bigint[])
LANGUAGE plpgsql AS $$
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

-- queen.sweep_dropped deletes at most p_limit segments and p_limit sidecar rows of dropped partitions, of one tenant or
-- (p_tenant NULL) of all, and returns how many rows it removed; 0 means that nothing is left that another session is not
-- sweeping.
-- Locks: dropped_partitions rows, skipping those another sweep holds. Indexes: the primary keys.
CREATE OR REPLACE FUNCTION queen.sweep_dropped(p_limit integer, p_tenant uuid DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_ids     bigint[];
    v_removed bigint := 0;
    v_count   bigint;
BEGIN
    SELECT array_agg(l.partition_id) INTO v_ids
    FROM (SELECT d.partition_id FROM queen.dropped_partitions d WHERE p_tenant IS NULL OR d.tenant_id = p_tenant
           ORDER BY d.partition_id LIMIT p_limit FOR UPDATE SKIP LOCKED) l;
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

-- queen.set_encryption makes the partitions of a queue take encrypted messages only, or any again. It is called in the
-- transaction that rewrites the queue's options: whatever push comes to lock a partition afterwards sees the flag, and
-- those under way are waited for, so that no plaintext is stored once this has committed.
-- Locks: the caller holds the tenant's row and the queue's; the partition rows of the queue that differ, ascending.
CREATE OR REPLACE FUNCTION queen.set_encryption(p_queue bigint, p_encrypted boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM queen.log_partitions p
      WHERE p.queue_id = p_queue AND p.encrypted <> p_encrypted ORDER BY p.id FOR NO KEY UPDATE;
    UPDATE queen.log_partitions p SET encrypted = p_encrypted, sealed = p.sealed OR p_encrypted
      WHERE p.queue_id = p_queue AND p.encrypted <> p_encrypted;
END
$$;
