-- A scope is a namespace, a task or both, as a discovery pop names them; the empty one was not given and matches any.

-- scope_queues returns the queues of many scopes of tenants. Index: queues_scope; a scope without a namespace reads the
-- queues of its tenant.
CREATE OR REPLACE FUNCTION queen.scope_queues(p_tenant uuid[], p_namespace text[], p_task text[])
RETURNS TABLE (scope bigint, queue_id bigint, queue text)
LANGUAGE sql STABLE AS $$
    SELECT s.n, q.id, q.name
      FROM unnest(p_tenant, p_namespace, p_task) WITH ORDINALITY AS s(tenant, namespace, task, n)
      JOIN queen.queues q ON q.tenant_id = s.tenant
                         AND (s.namespace = '' OR q.namespace = s.namespace COLLATE "C")
                         AND (s.task = '' OR q.task = s.task COLLATE "C")
$$;

-- register_scope records a group on a scope at its first pop, and on each queue of the scope that it is not registered
-- on yet. A queue that joins the scope later is read from the time at which the scope was registered. It makes the cursors
-- of the first queues that have at most p_whole partitions together (NULL: however many) in the same commit; the others are
-- left as register_group leaves those of a large queue. It answers 'first', 'known', or 'full' when the tenant has p_limit
-- scope registrations already; and whether the group conflates here.
--
-- Locks: those of register_group, if there is anything to record.
CREATE OR REPLACE FUNCTION queen.register_scope(
    p_tenant uuid, p_group text, p_namespace text, p_task text, p_mode text, p_from timestamptz, p_conflation boolean,
    p_limit bigint, p_whole bigint, OUT outcome text, OUT conflating boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_mode text;
    v_from timestamptz;
    v_last bigint;
BEGIN
    outcome := 'known';
    SELECT r.conflation INTO conflating FROM queen.scope_registrations r
     WHERE r.tenant_id = p_tenant AND r.namespace = p_namespace AND r.task = p_task AND r.consumer_group = p_group;
    IF NOT FOUND THEN
        IF (SELECT count(*) FROM (SELECT FROM queen.scope_registrations r WHERE r.tenant_id = p_tenant LIMIT p_limit) ahead) >= p_limit THEN
            outcome := 'full';
            RETURN;
        END IF;
    ELSIF NOT EXISTS (
        SELECT FROM queen.scope_queues(ARRAY[p_tenant], ARRAY[p_namespace], ARRAY[p_task]) q
         WHERE NOT EXISTS (SELECT FROM queen.group_registrations g
                            WHERE g.tenant_id = p_tenant AND g.queue = q.queue AND g.consumer_group = p_group)) THEN
        RETURN;
    END IF;
    PERFORM queen.lock_tenant(p_tenant);
    INSERT INTO queen.scope_registrations (tenant_id, namespace, task, consumer_group, mode, seed_from, conflation, last_partition)
    VALUES (p_tenant, p_namespace, p_task, p_group, p_mode, coalesce(p_from, clock_timestamp()), p_conflation, queen.last_partition())
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        outcome := 'first';
    END IF;
    SELECT r.mode, r.seed_from, r.last_partition, r.conflation INTO v_mode, v_from, v_last, conflating FROM queen.scope_registrations r
     WHERE r.tenant_id = p_tenant AND r.namespace = p_namespace AND r.task = p_task AND r.consumer_group = p_group;
    WITH joining AS (
        SELECT q.id, q.name, sum(q.partition_count + 1) OVER (ORDER BY q.name) > p_whole AS later
          FROM queen.scope_queues(ARRAY[p_tenant], ARRAY[p_namespace], ARRAY[p_task]) s
          JOIN queen.queues q ON q.id = s.queue_id
         WHERE NOT EXISTS (SELECT FROM queen.group_registrations g
                            WHERE g.tenant_id = p_tenant AND g.queue = q.name AND g.consumer_group = p_group)
    ), joined AS (
        INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from, conflation, last_partition, seeded_to)
        SELECT p_tenant, j.name, p_group, v_mode, v_from, conflating, v_last, CASE WHEN j.later THEN '' END
          FROM joining j
    )
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group, CASE WHEN outcome = 'first' AND v_mode = 'new' THEN p.last_offset
                               ELSE queen.start_offset(v_mode, v_from, v_last, p) END
      FROM joining j JOIN queen.log_partitions p ON p.queue_id = j.id
     WHERE j.later IS NOT TRUE
     ORDER BY p.id
    ON CONFLICT DO NOTHING;
END $$;

-- As the brokers of the release before call it: all cursors in one commit.
CREATE OR REPLACE FUNCTION queen.register_scope(
    p_tenant uuid, p_group text, p_namespace text, p_task text, p_mode text, p_from timestamptz, p_conflation boolean,
    p_limit bigint, OUT outcome text, OUT conflating boolean)
LANGUAGE sql AS $$
    SELECT * FROM queen.register_scope(p_tenant, p_group, p_namespace, p_task, p_mode, p_from, p_conflation, p_limit, NULL)
$$;
