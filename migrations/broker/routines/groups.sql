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

-- start_offset is the offset before the first one that a group without a cursor gets of a partition, by its registration; a
-- NULL mode is the group of consumers that name none. Under "new" a partition that was created after the registration is
-- new as a whole, and an older one is from the time of registration on: what is stamped later came later. Where nobody has
-- written since, which is nearly everywhere, that takes no look at the log.
--
-- Registrations that do not know the last partition of their time compare when it was created; five seconds of slack keep
-- that true when two servers' clocks disagree over a failover.
CREATE OR REPLACE FUNCTION queen.start_offset(
    p_mode text, p_from timestamptz, p_last bigint, p queen.log_partitions) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN p_mode IS NULL OR p_mode = 'all' THEN p.log_start - 1
        WHEN p_mode = 'new' AND coalesce(p.id > p_last, p.created_at >= p_from - interval '5 seconds') THEN p.log_start - 1
        WHEN p.last_created_at < p_from THEN p.last_offset
        ELSE queen.offset_before(p.id, p_from)
    END
$$;

-- starts_within says whether a group without a cursor may have something to read in a partition, from the partition's row
-- alone: whenever start_offset lies before the end, and at times when retention has removed what was behind it.
CREATE OR REPLACE FUNCTION queen.starts_within(
    p_mode text, p_from timestamptz, p_last bigint, p queen.log_partitions) RETURNS boolean
LANGUAGE sql STABLE AS $$ -- as the sum of a time and an interval is, or it would not be inlined
    SELECT p.last_offset >= p.log_start AND (
        p_mode IS NULL OR p_mode = 'all' OR p.last_created_at >= p_from
        OR p_mode = 'new' AND coalesce(p.id > p_last, p.created_at >= p_from - interval '5 seconds'))
$$;

-- As the brokers of the release before call it, which know of no last_partition.
CREATE OR REPLACE FUNCTION queen.seed_offset(
    p_mode text, p_from timestamptz, p_partition bigint, p_log_start bigint, p_created_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN p_mode IS NULL OR p_mode = 'all' THEN p_log_start - 1
        WHEN p_mode = 'new' AND p_created_at >= p_from - interval '5 seconds' THEN p_log_start - 1
        ELSE queen.offset_before(p_partition, p_from)
    END
$$;

-- last_partition is an id that no partition is above now and that those to come are above. It holds for the partitions of
-- a tenant whose row the caller has locked: ids rise, and none of them is handed out and not committed yet.
CREATE OR REPLACE FUNCTION queen.last_partition() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(max(p.id), 0) FROM queen.log_partitions p
$$;

-- register_group records a group on a queue, and makes its cursors in the same commit if the queue has at most p_whole
-- partitions (NULL: however many). Otherwise they are made by seed_registered, and before that by the first claim of each.
-- It answers 'first', 'known', or 'full' when the queue does not exist and the tenant has p_limit such registrations
-- already; and whether the group conflates, which its first registration decides.
--
-- Locks: the tenant's row for the first call, so that partitions neither come nor go meanwhile and a deletion of the group
-- is before it or after it; then consumer rows ascending. Two first calls meet there, and the second finds the group known.
CREATE OR REPLACE FUNCTION queen.register_group(
    p_tenant uuid, p_group text, p_queue text, p_mode text, p_from timestamptz, p_conflation boolean, p_limit bigint,
    p_whole bigint, OUT outcome text, OUT conflating boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue      bigint;
    v_partitions bigint;
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
    PERFORM queen.lock_tenant(p_tenant);
    SELECT q.id, q.partition_count + 1 INTO v_queue, v_partitions -- Default is not counted
      FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from, conflation, last_partition, seeded_to)
    VALUES (p_tenant, p_queue, p_group, p_mode, coalesce(p_from, clock_timestamp()), p_conflation, queen.last_partition(),
            CASE WHEN v_partitions > p_whole THEN '' END)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT r.conflation INTO conflating FROM queen.group_registrations r
         WHERE r.tenant_id = p_tenant AND r.queue = p_queue AND r.consumer_group = p_group;
        RETURN;
    END IF;
    outcome := 'first';
    conflating := p_conflation;
    IF v_partitions > p_whole THEN
        RETURN;
    END IF;
    -- In the commit of the registration "new" begins at the end, without a clock.
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group, CASE WHEN p_mode = 'new' THEN p.last_offset ELSE queen.start_offset(p_mode, p_from, NULL, p) END
      FROM queen.log_partitions p WHERE p.queue_id = v_queue
     ORDER BY p.id
    ON CONFLICT DO NOTHING;
END $$;

-- As the brokers of the release before call it: all cursors in one commit.
CREATE OR REPLACE FUNCTION queen.register_group(
    p_tenant uuid, p_group text, p_queue text, p_mode text, p_from timestamptz, p_conflation boolean, p_limit bigint,
    OUT outcome text, OUT conflating boolean)
LANGUAGE sql AS $$
    SELECT * FROM queen.register_group(p_tenant, p_group, p_queue, p_mode, p_from, p_conflation, p_limit, NULL)
$$;

-- seed_page makes the cursors of the next p_limit partitions that a registration still owes and returns how many partitions
-- it looked at; 0: it owes none. Cursors that claims have made meanwhile stay as they are. p_limit NULL takes all.
--
-- Locks: the caller holds the tenant's row; consumer rows ascending, then the registration.
-- Index: log_partitions (queue_id, name).
CREATE OR REPLACE FUNCTION queen.seed_page(p_tenant uuid, p_queue text, p_group text, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    r       queen.group_registrations;
    v_queue bigint;
    v_seen  bigint;
    v_to    text;
BEGIN
    SELECT * INTO r FROM queen.group_registrations g
     WHERE g.tenant_id = p_tenant AND g.queue = p_queue AND g.consumer_group = p_group AND g.seeded_to IS NOT NULL;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    WITH page AS MATERIALIZED (
        SELECT p FROM queen.log_partitions p
         WHERE p.queue_id = v_queue AND p.name > r.seeded_to
         ORDER BY p.name LIMIT p_limit
    ), made AS (
        INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
        SELECT (g.p).id, p_group, queen.start_offset(r.mode, r.seed_from, r.last_partition, g.p)
          FROM page g
         ORDER BY (g.p).id
        ON CONFLICT DO NOTHING
    )
    SELECT count(*), max((g.p).name) INTO v_seen, v_to FROM page g;
    UPDATE queen.group_registrations g SET seeded_to = CASE WHEN v_seen >= p_limit THEN v_to END
     WHERE g.tenant_id = p_tenant AND g.queue = p_queue AND g.consumer_group = p_group;
    RETURN v_seen;
END $$;

-- seed_registered is one step of making the cursors that registrations owe, and returns how many partitions it looked at,
-- at least 1; 0: none are owed, or only by tenants whose row is held, which are left to a later turn. NULL when the claim
-- is lost.
-- Locks: the task's row (shared), then a tenant's, skipping busy ones, then those of seed_page.
-- Index: group_registrations_unseeded.
CREATE OR REPLACE FUNCTION queen.seed_registered(p_task text, p_holder text, p_fence bigint, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    r record;
BEGIN
    IF NOT queen.holds_task(p_task, p_holder, p_fence) THEN
        RETURN NULL;
    END IF;
    SELECT g.tenant_id, g.queue, g.consumer_group INTO r
      FROM queen.group_registrations g JOIN queen.tenants t ON t.tenant_id = g.tenant_id
     WHERE g.seeded_to IS NOT NULL
     ORDER BY g.tenant_id, g.queue, g.consumer_group LIMIT 1
       FOR NO KEY UPDATE OF t SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    RETURN greatest(queen.seed_page(r.tenant_id, r.queue, r.consumer_group, p_limit), 1);
END $$;

-- seed_cursors makes the missing cursors of (partition, group) pairs and returns how many. It works in key order, so that
-- two seeders cannot wait for each other in a circle. The reserved group of consumers that name none has no
-- registration: it starts with the log. Any other group without one was deleted while its pop was under way: it gets no
-- cursor before it has registered anew.
CREATE OR REPLACE FUNCTION queen.seed_cursors(p_partition bigint[], p_group text[]) RETURNS bigint
LANGUAGE sql AS $$
    WITH kept AS MATERIALIZED (
        -- A partition that is being deleted is waited for and then left out: the reference would fail.
        SELECT p FROM queen.log_partitions p
         WHERE p.id = ANY (p_partition)
         ORDER BY p.id
           FOR KEY SHARE
    ), made AS (
        INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
        SELECT w.id, w.consumer_group, queen.start_offset(r.mode, r.seed_from, r.last_partition, k.p)
          FROM (SELECT DISTINCT * FROM unnest(p_partition, p_group) AS u(id, consumer_group)) w
          JOIN kept k ON (k.p).id = w.id
          JOIN queen.queues q ON q.id = (k.p).queue_id
          LEFT JOIN queen.group_registrations r
                 ON r.tenant_id = q.tenant_id AND r.queue = q.name AND r.consumer_group = w.consumer_group
         WHERE r.mode IS NOT NULL OR w.consumer_group = '__QUEUE_MODE__'
         ORDER BY w.id, w.consumer_group COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING 1)
    SELECT count(*) FROM made
$$;
