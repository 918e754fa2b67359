-- One call from nothing to a tenant that can work, as often as one likes.

-- bootstrap_tenant makes what is missing of a tenant, its cluster and, with an address, its first administrator. What
-- exists is left as it is; a cluster slug or an address of another tenant is refused. It returns {tenant_id, cluster_id,
-- user_id, created, can_login}; can_login is null without a user. Keys are issued apart, where their plaintext is known.
CREATE OR REPLACE FUNCTION queengate.bootstrap_tenant(
    p_tenant_slug text, p_tenant_name text, p_cluster_slug text, p_plan text, p_cell text,
    p_email text DEFAULT NULL, p_password_hash text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenant  uuid;
    v_cluster queengate.clusters;
    v_user    queengate.users;
    v_created boolean := false;
    v_result  jsonb;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT id INTO v_tenant FROM queengate.tenants WHERE slug = p_tenant_slug;
    IF NOT FOUND THEN
        v_tenant := queengate.create_tenant(p_tenant_slug, p_tenant_name);
        v_created := true;
    END IF;

    SELECT * INTO v_cluster FROM queengate.clusters WHERE slug = p_cluster_slug;
    IF NOT FOUND THEN
        v_cluster.id := queengate.create_cluster(v_tenant, p_cluster_slug, p_plan, p_cell);
        v_created := true;
    ELSIF v_cluster.tenant_id <> v_tenant THEN
        RAISE EXCEPTION 'cluster % belongs to another tenant', p_cluster_slug USING ERRCODE = 'insufficient_privilege';
    END IF;

    IF nullif(btrim(p_email), '') IS NOT NULL THEN
        SELECT * INTO v_user FROM queengate.users WHERE email = lower(btrim(p_email));
        IF NOT FOUND THEN
            v_user.id := queengate.create_user(v_tenant, p_email, p_password_hash);
            v_user.password_hash := p_password_hash;
            v_created := true;
        ELSIF v_user.tenant_id <> v_tenant THEN
            RAISE EXCEPTION 'user % belongs to another tenant', p_email USING ERRCODE = 'insufficient_privilege';
        END IF;
        PERFORM queengate.grant_cluster_role(v_cluster.id, p_email, 'admin');
    END IF;

    v_result := jsonb_build_object('tenant_id', v_tenant, 'cluster_id', v_cluster.id, 'user_id', v_user.id,
        'created', v_created,
        'can_login', CASE WHEN v_user.id IS NOT NULL THEN v_user.password_hash IS NOT NULL
            OR EXISTS (SELECT FROM queengate.identities WHERE user_id = v_user.id) END);
    IF v_created THEN
        PERFORM queengate.audit(v_tenant, v_cluster.id, 'tenant_bootstrapped', p_tenant_slug, v_result);
        PERFORM queengate.emit_outbox('tenant_bootstrapped',
            v_result || jsonb_strip_nulls(jsonb_build_object('admin_email', lower(nullif(btrim(p_email), '')))));
    END IF;
    RETURN v_result;
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
