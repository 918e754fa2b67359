-- wipe_tenant takes one step of the removal of a tenant: about p_limit rows in one commit, from what consumers see down to
-- what is only remembered. `what` names the kind of rows, `removed` is their number, and `done` comes with the step after
-- which no table holds anything of the tenant. Steps may be taken by anybody, after any pause or crash, also at the same
-- time. Nothing is kept of how far it has come: what is left says it.
--
-- Whatever the tenant writes meanwhile is a tenant's that begins anew: who wants it to end closes the tenant first.
--
-- Locks: the tenant's row, then those of delete_partitions. Rows of redrives, letters, traces and metrics that others work
-- on are waited for or left to a later step: docs/design/wipe.md. A part of a tenant that has no row any more (minutes
-- that a broker wrote late) is removed as well.
CREATE OR REPLACE FUNCTION queen.wipe_tenant(
    p_tenant uuid, p_limit integer, OUT what text, OUT removed bigint, OUT done boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
BEGIN
    done := false;
    PERFORM 1 FROM queen.tenants t WHERE t.tenant_id = p_tenant FOR UPDATE;

    -- Nobody moves letters back into a log that is about to go.
    what := 'redrives';
    DELETE FROM queen.redrives r WHERE r.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.redrives x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN RETURN; END IF;

    -- Of letters there may be any number to a partition. Those that others hold go with it.
    what := 'dead letters';
    DELETE FROM queen.log_dlq d WHERE d.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.log_dlq x WHERE x.tenant_id = p_tenant LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN RETURN; END IF;

    -- A partition costs as much as some ten rows.
    what := 'partitions';
    v_ids := ARRAY(SELECT p.id FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
                    WHERE q.tenant_id = p_tenant LIMIT greatest(p_limit / 10, 1));
    IF cardinality(v_ids) > 0 THEN
        removed := cardinality(queen.delete_partitions(p_tenant, v_ids));
        RETURN;
    END IF;

    -- Under the tenant's row no partition can have joined them.
    what := 'queues';
    DELETE FROM queen.queues q WHERE q.id = ANY (ARRAY(
        SELECT x.id FROM queen.queues x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN
        UPDATE queen.tenants t SET queue_count = t.queue_count - removed WHERE t.tenant_id = p_tenant;
        PERFORM queen.bump_config();
        RETURN;
    END IF;

    what := 'log';
    IF EXISTS (SELECT FROM queen.dropped_partitions d WHERE d.tenant_id = p_tenant) THEN
        removed := queen.sweep_dropped(p_limit, p_tenant); -- 0 while another session sweeps the rest
        RETURN;
    END IF;

    what := 'registrations';
    DELETE FROM queen.group_registrations r WHERE r.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.group_registrations x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN RETURN; END IF;
    DELETE FROM queen.scope_registrations s WHERE s.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.scope_registrations x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN RETURN; END IF;

    what := 'traces';
    removed := queen.delete_traces(ARRAY(SELECT t.id FROM queen.message_traces t WHERE t.tenant_id = p_tenant LIMIT p_limit));
    IF removed > 0 THEN RETURN; END IF;

    what := 'history';
    DELETE FROM queen.queue_metrics m WHERE m.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.queue_metrics x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN RETURN; END IF;
    DELETE FROM queen.retention_history h WHERE h.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.retention_history x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN RETURN; END IF;
    DELETE FROM queen.cursor_moves m WHERE m.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.cursor_moves x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed > 0 THEN RETURN; END IF;

    -- A fold skips a tenant whose row is held, so the ledger is read by nobody else.
    what := 'ledger';
    DELETE FROM queen.retained_ledger l WHERE l.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.retained_ledger x WHERE x.tenant_id = p_tenant LIMIT p_limit));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed = p_limit THEN RETURN; END IF;

    what := 'tenant';
    DELETE FROM queen.tenants t WHERE t.tenant_id = p_tenant;
    GET DIAGNOSTICS removed = ROW_COUNT;
    done := true;
END
$$;

-- delete_traces deletes trace events with their names and returns how many events. Names are reached by their events only,
-- so that two sessions meet on the events.
CREATE OR REPLACE FUNCTION queen.delete_traces(p_ids uuid[]) RETURNS bigint
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM queen.message_traces t WHERE t.id = ANY (p_ids) RETURNING t.id, t.tenant_id, t.names, t.created_at
    ), unnamed AS (
        DELETE FROM queen.message_trace_names n USING gone g CROSS JOIN LATERAL unnest(g.names) AS w (name)
         WHERE n.tenant_id = g.tenant_id AND n.name = w.name AND n.created_at = g.created_at AND n.trace_id = g.id
    )
    SELECT count(*) FROM gone
$$;

-- purge_traces deletes at most p_limit trace events that are older than p_before and returns how many. It waits for nobody.
-- Index: message_traces_created.
CREATE OR REPLACE FUNCTION queen.purge_traces(p_before timestamptz, p_limit integer) RETURNS bigint
LANGUAGE sql AS $$
    SELECT queen.delete_traces(ARRAY(
        SELECT t.id FROM queen.message_traces t WHERE t.created_at < p_before LIMIT p_limit FOR UPDATE SKIP LOCKED))
$$;
