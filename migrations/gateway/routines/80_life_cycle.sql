-- The end of tenants and clusters: which are to be removed, how far that has come, and the last deed. The gateways' driver
-- (proxy/wipe) calls these; docs/design/wipe.md tells the whole story.

-- change_status raises unless a tenant or cluster may go from one state to the other, and returns whether that is a change.
-- Every state may follow every other, but nothing follows deleting: the wipe may have begun.
CREATE OR REPLACE FUNCTION queengate.change_status(p_what text, p_from text, p_to text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_to IS NULL OR p_to NOT IN ('active', 'grace', 'push_blocked', 'export_only', 'paused', 'suspended', 'deleting') THEN
        RAISE EXCEPTION 'a state is one of active, grace, push_blocked, export_only, paused, suspended and deleting, not %', p_to
            USING ERRCODE = 'check_violation';
    END IF;
    IF p_from = 'deleting' AND p_to <> 'deleting' THEN
        RAISE EXCEPTION '% is being deleted', p_what USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN p_from <> p_to;
END
$$;

-- take_lease makes the caller the one who does a task, until p_for from now, and returns its fence; NULL while somebody
-- else is. The holder renews its own, with the same fence as long as it never ended.
CREATE OR REPLACE FUNCTION queengate.take_lease(p_task text, p_holder text, p_for interval) RETURNS bigint
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO queengate.leases AS l (task, holder, until) VALUES (p_task, p_holder, clock_timestamp() + p_for)
    ON CONFLICT (task) DO UPDATE SET
        fence = l.fence + (l.holder <> p_holder OR l.until <= clock_timestamp())::integer,
        holder = p_holder, until = EXCLUDED.until
    WHERE l.holder = p_holder OR l.until <= clock_timestamp()
    RETURNING l.fence
$$;

-- release_lease ends a lease of the caller's before its time.
CREATE OR REPLACE FUNCTION queengate.release_lease(p_task text, p_holder text) RETURNS void
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE queengate.leases SET until = '-infinity' WHERE task = p_task AND holder = p_holder
$$;

-- hold_lease raises unless the fence is that of a lease in force, and keeps it so until the transaction ends.
CREATE OR REPLACE FUNCTION queengate.hold_lease(p_task text, p_fence bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM 1 FROM queengate.leases WHERE task = p_task AND fence = p_fence AND until > clock_timestamp() FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease on % is lost', p_task USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;

-- dying_clusters are the clusters whose data is to be removed: their own state or their tenant's is deleting. wait is how
-- long its cell is left alone before the next step: nothing while there is something to remove, and after that so long
-- that brokers have written what they still had.
CREATE OR REPLACE FUNCTION queengate.dying_clusters(p_settle interval) RETURNS TABLE (
    cluster_id uuid, slug text, tenant_id uuid, tenant text, broker_tenant uuid, cell text, begun boolean, confirmed boolean,
    wait interval)
LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.id, c.slug, t.id, t.slug, c.broker_tenant_uuid, c.cell, w.cluster_id IS NOT NULL, w.confirmed_at IS NOT NULL,
        CASE WHEN w.confirmed_at IS NULL AND w.emptied_at IS NOT NULL
            THEN greatest(w.emptied_at + p_settle - clock_timestamp(), interval '0') ELSE interval '0' END
    FROM queengate.clusters c
    JOIN queengate.tenants t ON t.id = c.tenant_id
    LEFT JOIN queengate.wipes w ON w.cluster_id = c.id
    WHERE c.status = 'deleting' OR t.status = 'deleting'
    ORDER BY c.id
$$;

-- dying_tenants are the tenants that are deleting and have no cluster any more.
CREATE OR REPLACE FUNCTION queengate.dying_tenants() RETURNS TABLE (tenant_id uuid, slug text)
LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.id, t.slug FROM queengate.tenants t
    WHERE t.status = 'deleting' AND NOT EXISTS (SELECT FROM queengate.clusters c WHERE c.tenant_id = t.id)
    ORDER BY t.id
$$;

-- begin_wipe notes that the removal of a cluster's data begins, and how many bytes there are.
CREATE OR REPLACE FUNCTION queengate.begin_wipe(p_fence bigint, p_cluster uuid, p_bytes bigint) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
BEGIN
    PERFORM queengate.lock_changes();
    PERFORM queengate.hold_lease('wipe', p_fence);
    v_cluster := queengate.cluster(p_cluster);
    IF v_cluster.status <> 'deleting' AND NOT EXISTS (
        SELECT FROM queengate.tenants WHERE id = v_cluster.tenant_id AND status = 'deleting') THEN
        RAISE EXCEPTION 'cluster % is %, not deleting', v_cluster.slug, v_cluster.status
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    INSERT INTO queengate.wipes (cluster_id, bytes_found, bytes_left) VALUES (p_cluster, p_bytes, p_bytes)
        ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'wipe_begun', v_cluster.slug, jsonb_build_object('bytes', p_bytes));
    END IF;
END
$$;

-- note_wipe adds what one request to the cell has removed. The first time that nothing is left begins the wait, and what is
-- found after it begins it anew; nothing found after it ends the wipe. It returns whether the wipe has ended.
CREATE OR REPLACE FUNCTION queengate.note_wipe(
    p_fence bigint, p_cluster uuid, p_rows bigint, p_done boolean, p_at text, p_bytes bigint, p_queues bigint,
    p_settle interval) RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ended boolean;
BEGIN
    PERFORM queengate.hold_lease('wipe', p_fence);
    UPDATE queengate.wipes SET
        rows_removed = rows_removed + p_rows, bytes_left = p_bytes, queues_left = p_queues, stands_at = p_at, failure = NULL,
        updated_at = clock_timestamp(),
        confirmed_at = CASE WHEN p_done AND p_rows = 0 AND emptied_at <= clock_timestamp() - p_settle THEN clock_timestamp() END,
        emptied_at = CASE WHEN NOT p_done THEN NULL WHEN p_rows > 0 THEN clock_timestamp() ELSE coalesce(emptied_at, clock_timestamp()) END
    WHERE cluster_id = p_cluster
    RETURNING confirmed_at IS NOT NULL INTO v_ended;
    RETURN coalesce(v_ended, false);
END
$$;

-- fail_wipe notes why the last attempt did not get on.
CREATE OR REPLACE FUNCTION queengate.fail_wipe(p_fence bigint, p_cluster uuid, p_failure text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM queengate.hold_lease('wipe', p_fence);
    UPDATE queengate.wipes SET failure = left(p_failure, 500), updated_at = clock_timestamp() WHERE cluster_id = p_cluster;
END
$$;

-- delete_cluster forgets a cluster whose data its cell has removed for certain, with its keys and roles. The audit stays.
CREATE OR REPLACE FUNCTION queengate.delete_cluster(p_fence bigint, p_cluster uuid) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
    v_wipe    queengate.wipes;
    v_keys    bigint;
    v_result  jsonb;
BEGIN
    PERFORM queengate.lock_changes();
    PERFORM queengate.hold_lease('wipe', p_fence);
    v_cluster := queengate.cluster(p_cluster);
    SELECT * INTO v_wipe FROM queengate.wipes WHERE cluster_id = p_cluster;
    IF v_wipe.confirmed_at IS NULL THEN
        RAISE EXCEPTION 'the data of cluster % is not removed', v_cluster.slug USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    DELETE FROM queengate.api_keys WHERE cluster_id = p_cluster;
    GET DIAGNOSTICS v_keys = ROW_COUNT;
    DELETE FROM queengate.cluster_roles WHERE cluster_id = p_cluster;
    DELETE FROM queengate.clusters WHERE id = p_cluster;
    v_result := jsonb_build_object('broker_tenant_uuid', v_cluster.broker_tenant_uuid, 'cell', v_cluster.cell, 'keys', v_keys,
        'rows', v_wipe.rows_removed, 'bytes', v_wipe.bytes_found, 'began_at', v_wipe.began_at);
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'cluster_deleted', v_cluster.slug, v_result);
    PERFORM queengate.emit_outbox('cluster_deleted',
        v_result || jsonb_build_object('tenant_id', v_cluster.tenant_id, 'cluster_id', p_cluster));
END
$$;

-- wipe_progress shows what is being removed, for people.
CREATE OR REPLACE VIEW queengate.wipe_progress AS
    SELECT t.slug AS tenant, c.slug AS cluster, c.cell,
        CASE WHEN w.cluster_id IS NULL THEN 'waiting' WHEN w.confirmed_at IS NOT NULL THEN 'removed'
            WHEN w.emptied_at IS NOT NULL THEN 'settling' ELSE 'removing' END AS state,
        w.rows_removed, greatest(w.bytes_found - w.bytes_left, 0) AS bytes_removed, w.bytes_left, w.queues_left, w.stands_at,
        w.began_at, w.updated_at, w.failure
    FROM queengate.clusters c
    JOIN queengate.tenants t ON t.id = c.tenant_id
    LEFT JOIN queengate.wipes w ON w.cluster_id = c.id
    WHERE c.status = 'deleting' OR t.status = 'deleting';
REVOKE ALL ON queengate.wipe_progress FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
