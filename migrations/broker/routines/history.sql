-- queen.write_history stores one minute of a broker: what its queues did, what the process was like, and both in the
-- totals of the cell. A minute that is there already is left alone and not counted again.
--
-- Locks: the broker's own row, rows nobody else writes, and last the one row of totals, held until the commit: brokers
-- queue up for it once a minute for the length of a commit.
CREATE OR REPLACE FUNCTION queen.write_history(
    p_broker uuid, p_hostname text, p_port integer, p_started timestamptz, p_bucket timestamptz,
    p_tenant uuid[], p_queue text[], p_counts bigint[], p_parked integer[],
    p_requests bigint, p_messages bigint, p_db_errors bigint, p_process double precision[])
RETURNS integer
LANGUAGE plpgsql AS $$
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

-- queen.purge_history deletes at most p_limit rows of each kind that are older than p_before and returns how many.
CREATE OR REPLACE FUNCTION queen.purge_history(p_before timestamptz, p_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
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
