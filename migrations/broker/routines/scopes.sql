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
-- on yet, with cursors for the partitions there are. A queue that joins the scope later is read from the time at which
-- the scope was registered. It answers 'first', 'known', or 'full' when the tenant has p_limit scope registrations
-- already; and whether the group conflates here.
--
-- Locks: registrations by key, then consumer rows ascending, as register_group does; two first calls meet on the key.
CREATE OR REPLACE FUNCTION queen.register_scope(
    p_tenant uuid, p_group text, p_namespace text, p_task text, p_mode text, p_from timestamptz, p_conflation boolean,
    p_limit bigint, OUT outcome text, OUT conflating boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_mode text;
    v_from timestamptz;
BEGIN
    outcome := 'known';
    SELECT r.mode, r.seed_from, r.conflation INTO v_mode, v_from, conflating FROM queen.scope_registrations r
     WHERE r.tenant_id = p_tenant AND r.namespace = p_namespace AND r.task = p_task AND r.consumer_group = p_group;
    IF NOT FOUND THEN
        IF (SELECT count(*) FROM (SELECT FROM queen.scope_registrations r WHERE r.tenant_id = p_tenant LIMIT p_limit) ahead) >= p_limit THEN
            outcome := 'full';
            RETURN;
        END IF;
        INSERT INTO queen.scope_registrations AS r (tenant_id, namespace, task, consumer_group, mode, seed_from, conflation)
        VALUES (p_tenant, p_namespace, p_task, p_group, p_mode, coalesce(p_from, clock_timestamp()), p_conflation)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            outcome := 'first';
        END IF;
        SELECT r.mode, r.seed_from, r.conflation INTO v_mode, v_from, conflating FROM queen.scope_registrations r
         WHERE r.tenant_id = p_tenant AND r.namespace = p_namespace AND r.task = p_task AND r.consumer_group = p_group;
    END IF;
    WITH joined AS (
        INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from, conflation)
        SELECT p_tenant, q.queue, p_group, v_mode, v_from, conflating
          FROM queen.scope_queues(ARRAY[p_tenant], ARRAY[p_namespace], ARRAY[p_task]) q
         WHERE NOT EXISTS (SELECT FROM queen.group_registrations g
                            WHERE g.tenant_id = p_tenant AND g.queue = q.queue AND g.consumer_group = p_group)
         ORDER BY q.queue COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING queue)
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group, CASE WHEN outcome = 'first' AND v_mode = 'new' THEN p.last_offset
                               ELSE queen.seed_offset(v_mode, v_from, p.id, p.log_start, p.created_at) END
      FROM (
        -- A partition that is being deleted is waited for and then left out: the reference would fail.
        SELECT p.id, p.log_start, p.last_offset, p.created_at
          FROM joined j
          JOIN queen.queues q ON q.tenant_id = p_tenant AND q.name = j.queue
          JOIN queen.log_partitions p ON p.queue_id = q.id
         ORDER BY p.id
           FOR KEY SHARE OF p) p
     ORDER BY p.id
    ON CONFLICT DO NOTHING;
END $$;
