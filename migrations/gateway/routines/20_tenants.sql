-- Tenants: who pays.

CREATE OR REPLACE FUNCTION queengate.create_tenant(p_slug text, p_name text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_id uuid;
BEGIN
    PERFORM queengate.lock_changes();
    IF EXISTS (SELECT FROM queengate.tenants WHERE slug = p_slug) THEN
        RAISE EXCEPTION 'tenant % exists', p_slug USING ERRCODE = 'unique_violation';
    END IF;
    INSERT INTO queengate.tenants (slug, name) VALUES (p_slug, coalesce(nullif(p_name, ''), p_slug)) RETURNING id INTO v_id;
    PERFORM queengate.audit(v_id, NULL, 'tenant_created', p_slug);
    RETURN v_id;
END
$$;

-- set_tenant_status moves a tenant, and with it all its clusters as far as they are not in a worse state, to a state of the
-- life cycle. Deleting is one way: gateways begin at once to remove what the cells hold (80_life_cycle.sql). The state it
-- has already is no change and leaves no audit row.
CREATE OR REPLACE FUNCTION queengate.set_tenant_status(p_tenant uuid, p_status text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old text;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT status INTO v_old FROM queengate.tenants WHERE id = p_tenant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown tenant %', p_tenant USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT queengate.change_status('tenant ' || p_tenant, v_old, p_status) THEN
        RETURN;
    END IF;
    UPDATE queengate.tenants SET status = p_status WHERE id = p_tenant;
    PERFORM queengate.audit(p_tenant, NULL, 'tenant_status_changed', p_status, jsonb_build_object('from', v_old));
END
$$;

-- delete_tenant forgets a tenant: it is deleting and its clusters are gone, or their data is removed for certain. Gateways
-- do that by themselves when a wipe has ended. p_force forgets it in any state, for a cell that is lost: what brokers still
-- hold of it then stays there. It returns what was removed, with the broker namespaces, or {"deleted": false} when there is
-- no such tenant. The audit stays.
CREATE OR REPLACE FUNCTION queengate.delete_tenant(p_tenant uuid, p_force boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenant   queengate.tenants;
    v_clusters jsonb;
    v_keys     bigint;
    v_users    bigint;
    v_result   jsonb;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT * INTO v_tenant FROM queengate.tenants WHERE id = p_tenant;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', false);
    END IF;
    IF v_tenant.status <> 'deleting' AND p_force IS NOT TRUE THEN
        RAISE EXCEPTION 'tenant % is %, not deleting', v_tenant.slug, v_tenant.status
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF p_force IS NOT TRUE AND EXISTS (
        SELECT FROM queengate.clusters c LEFT JOIN queengate.wipes w ON w.cluster_id = c.id
        WHERE c.tenant_id = p_tenant AND w.confirmed_at IS NULL) THEN
        RAISE EXCEPTION 'the data of tenant % is not removed', v_tenant.slug USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT coalesce(jsonb_agg(jsonb_build_object('id', id, 'slug', slug, 'broker_tenant_uuid', broker_tenant_uuid) ORDER BY slug), '[]')
        INTO v_clusters FROM queengate.clusters WHERE tenant_id = p_tenant;

    DELETE FROM queengate.api_keys k USING queengate.clusters c WHERE c.id = k.cluster_id AND c.tenant_id = p_tenant;
    GET DIAGNOSTICS v_keys = ROW_COUNT;
    DELETE FROM queengate.cluster_roles WHERE tenant_id = p_tenant;
    DELETE FROM queengate.clusters WHERE tenant_id = p_tenant;
    DELETE FROM queengate.identities i USING queengate.users u WHERE u.id = i.user_id AND u.tenant_id = p_tenant;
    DELETE FROM queengate.users WHERE tenant_id = p_tenant;
    GET DIAGNOSTICS v_users = ROW_COUNT;
    DELETE FROM queengate.tenants WHERE id = p_tenant;
    UPDATE queengate.outbox SET payload = payload - 'admin_email' - 'email'
        WHERE payload ->> 'tenant_id' = p_tenant::text;

    v_result := jsonb_build_object('deleted', true, 'keys', v_keys, 'users', v_users, 'clusters', v_clusters);
    PERFORM queengate.audit(p_tenant, NULL, 'tenant_deleted', v_tenant.slug, v_result || jsonb_build_object('force', p_force));
    PERFORM queengate.emit_outbox('tenant_deleted', v_result || jsonb_build_object('tenant_id', p_tenant));
    RETURN v_result;
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
