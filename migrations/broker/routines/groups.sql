-- Where a group starts on a partition it has no cursor for. An existing cursor is never seeded again.

-- offset_before returns the offset just before the first segment stamped at or after p_at, or the last offset when no
-- segment is that young. created_at rises with the offset, so it halves the range with one key probe per step instead
-- of walking the backlog.
CREATE OR REPLACE FUNCTION queen.offset_before(p_partition bigint, p_at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
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

-- seed_offset applies a registration to a partition that was not there when the group registered. Under "new" such a
-- partition was created later, so everything in it is new; comparing with five seconds of slack keeps that true when
-- two servers' clocks disagree over a failover. An older partition has no cursor only if an operator deleted it.
CREATE OR REPLACE FUNCTION queen.seed_offset(
    p_mode text, p_from timestamptz, p_partition bigint, p_log_start bigint, p_created_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN p_mode IS NULL OR p_mode = 'all' THEN p_log_start - 1
        WHEN p_mode = 'new' AND p_created_at >= p_from - interval '5 seconds' THEN p_log_start - 1
        ELSE queen.offset_before(p_partition, p_from)
    END
$$;

-- register_group records a group on a queue and seeds the cursors of its partitions, all in one commit. It answers
-- 'first', 'known', or 'full' when the queue does not exist and the tenant has p_limit such registrations already; and
-- whether the group conflates, which its first registration decides.
-- Two first calls meet on the key: the second waits for the first and finds the group known and seeded.
CREATE OR REPLACE FUNCTION queen.register_group(
    p_tenant uuid, p_group text, p_queue text, p_mode text, p_from timestamptz, p_conflation boolean, p_limit bigint,
    OUT outcome text, OUT conflating boolean)
LANGUAGE plpgsql AS $$
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

-- seed_cursors makes the missing cursors of (partition, group) pairs and returns how many. It works in key order, so that
-- two seeders cannot wait for each other in a circle. The reserved group of consumers that name none has no
-- registration: it starts with the log. Any other group without one was deleted while its pop was under way: it gets no
-- cursor before it has registered anew.
CREATE OR REPLACE FUNCTION queen.seed_cursors(p_partition bigint[], p_group text[]) RETURNS bigint
LANGUAGE sql AS $$
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
