-- transact stores segments and decides acknowledgements, all or nothing, in one statement and one commit:
-- docs/design/transactions.md.
--
-- t_*: the segments, at most one per partition, ascending by partition: as in queen.push_bundle.
-- p_*, f_*: the acknowledgements, at most one group per (partition, consumer group): as in queen.ack_bundle. t_passed
-- says of each of p_hash that the cursor is known to have passed its message, so that the span need not hold it.
-- t_fenced: a lease was named somewhere. Then every group must be covered by one of t_leases that is live and the
-- group's own: the one it names, else the one that holds it. And every one of t_leases must be live somewhere.
--
-- Rows by kind:
--   0 a segment, with ordinal and the columns of push_bundle: status 0 stored, 1 duplicate, 3 missing, 4 plaintext
--   1 a group, with the columns of ack_bundle
--   2 a lease that nobody holds, with its ordinal
--   3 everything above has been carried out. Without this row nothing was, whatever the other rows say.
--
-- Locks: partition rows ascending by id, waiting; then consumer rows ascending by (partition, group), waiting. Pushes
-- take partition rows only and acks consumer rows only, each in that order, so no two of these can wait in a circle.
--
-- The probe for duplicates comes first and the segments are written last, so a refused transaction has written nothing
-- but cursors and dead letters, which the exception block takes back. A refusal is an answer and no error: it costs no
-- line in the server's log.
CREATE OR REPLACE FUNCTION queen.transact(
    t_tenant uuid, t_fenced boolean, t_leases uuid[],
    t_partitions bigint[], t_counts integer[], t_raw_bytes bigint[], t_verified bigint[], t_windows bigint[],
    t_tenants uuid[], t_blobs bytea[], t_hashes bytea[], t_passed boolean[],
    p_tenant uuid[], p_partition uuid[], p_group text[], p_named boolean[], p_lease uuid[],
    p_low bigint[], p_high bigint[], p_done bigint[], p_sig bigint[], p_kind integer[],
    p_first integer[], p_last integer[], p_hash bytea[], p_status integer[], p_width bigint,
    p_frame integer[], f_offset bigint[], f_id uuid[], f_message uuid[], f_txn text[], f_payload bytea[],
    f_error text[], f_created timestamptz[], t_sealed boolean[] DEFAULT NULL)
RETURNS TABLE (
    kind integer,
    segment integer, status smallint, frame integer, at_offset bigint, end_offset bigint, created_at timestamptz,
    ordinal bigint, outcome integer, partition_id bigint, queue_id bigint, queue text,
    before bigint, committed bigint, last_offset bigint, act integer, signal bigint, released boolean, offsets bigint[],
    skipped bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
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
