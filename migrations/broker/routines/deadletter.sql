-- queen.move_letters puts dead letters back into the log at the end of one partition and deletes them, in one
-- transaction: whatever happens, a message is either dead or in the log. p_blob holds the letters as one segment, in the
-- order of p_ids; allocation, deduplication, segment, sidecar and ledger are push_bundle's.
--
-- Outcomes, in the first column:
--   0 moved: at_offset is the first offset, last_offset the partition's, created_at the stamp
--   1 duplicate: one row per frame (from 0) that the log held already, with the original's offset and stamp. Those
--     letters are deleted, the others untouched: offer them again
--   2 changed: a letter is gone, or another session holds it. Nothing was done
--   3 missing: the partition does not exist or is not the tenant's. Nothing was done
--   4 lost: the redrive ended or is held by another. Nothing was done
--   5 plaintext: the destination's queue is encrypted and the segment is not. Nothing was done
--
-- p_redrive NULL is a replay by hand. Else the redrive's counters and its lease move in the same transaction, so they
-- are exact after any crash. p_verified, p_window and p_sealed are as for
-- push_bundle.
--
-- A lone letter is waited for: two replays of it meet here, and the second finds it gone. Locks: the redrive's row, the
-- partition, the letters.
CREATE OR REPLACE FUNCTION queen.move_letters(
    p_tenant uuid, p_redrive uuid, p_fence bigint, p_lease_ms bigint, p_ids uuid[], p_partition bigint,
    p_raw_bytes bigint, p_verified bigint, p_window bigint, p_blob bytea, p_hashes bytea,
    p_sealed boolean DEFAULT false
) RETURNS TABLE (outcome integer, frame integer, at_offset bigint, last_offset bigint, created_at timestamptz)
LANGUAGE plpgsql AS $$
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

-- queen.dead_letter_head files the message at the head of a group's partition as a dead letter and moves the cursor past
-- it, in one transaction. Outcomes: 0 filed, 1 not the tenant's partition, 2 the group has no cursor there, 3 the message
-- is consumed already, 4 it is leased until `until`, 5 it is not the next one: `head` is. committed is the cursor after
-- the call. Locks: the consumer's row.
CREATE OR REPLACE FUNCTION queen.dead_letter_head(
    p_tenant uuid, p_partition uuid, p_group text, p_offset bigint,
    p_id uuid, p_message uuid, p_txn text, p_payload bytea, p_error text, p_created timestamptz,
    OUT outcome integer, OUT partition_id bigint, OUT queue text, OUT head bigint, OUT committed bigint,
    OUT last_offset bigint, OUT until timestamptz
) LANGUAGE plpgsql AS $$
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
