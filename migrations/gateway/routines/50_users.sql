-- People: accounts, identities, roles on clusters, sessions. The audit names them by id, never by address.

CREATE OR REPLACE FUNCTION queengate.create_user(
    p_tenant uuid, p_email text, p_password_hash text DEFAULT NULL, p_name text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_id    uuid;
    v_email text := lower(btrim(p_email));
BEGIN
    PERFORM queengate.lock_changes();
    IF NOT EXISTS (SELECT FROM queengate.tenants WHERE id = p_tenant) THEN
        RAISE EXCEPTION 'unknown tenant %', p_tenant USING ERRCODE = 'no_data_found';
    END IF;
    IF EXISTS (SELECT FROM queengate.users WHERE email = v_email) THEN
        RAISE EXCEPTION 'user % exists', v_email USING ERRCODE = 'unique_violation';
    END IF;
    INSERT INTO queengate.users (tenant_id, email, password_hash, name) VALUES (p_tenant, v_email, p_password_hash, p_name)
        RETURNING id INTO v_id;
    PERFORM queengate.audit(p_tenant, NULL, 'user_created', v_id::text,
        jsonb_build_object('password', p_password_hash IS NOT NULL));
    RETURN v_id;
END
$$;

CREATE OR REPLACE FUNCTION queengate.link_identity(p_user uuid, p_provider text, p_provider_id text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenant uuid;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT tenant_id INTO v_tenant FROM queengate.users WHERE id = p_user;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown user %', p_user USING ERRCODE = 'no_data_found';
    END IF;
    INSERT INTO queengate.identities (provider, provider_id, user_id) VALUES (p_provider, p_provider_id, p_user);
    PERFORM queengate.audit(v_tenant, NULL, 'identity_linked', p_user::text, jsonb_build_object('provider', p_provider));
END
$$;

-- set_operator is the only way to make or unmake an operator; a cell must also allow operators.
CREATE OR REPLACE FUNCTION queengate.set_operator(p_email text, p_operator boolean) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_user queengate.users;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT * INTO v_user FROM queengate.users WHERE email = lower(btrim(p_email));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown user %', p_email USING ERRCODE = 'no_data_found';
    END IF;
    UPDATE queengate.users SET is_operator = p_operator WHERE id = v_user.id;
    PERFORM queengate.audit(v_user.tenant_id, NULL, 'operator_set', v_user.id::text,
        jsonb_build_object('from', v_user.is_operator, 'to', p_operator));
END
$$;

-- grant_cluster_role adds a role; a role that is held already is left alone. User and cluster must be of one tenant:
-- this is a security boundary, and the table's references hold it too.
CREATE OR REPLACE FUNCTION queengate.grant_cluster_role(p_cluster uuid, p_email text, p_role text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
    v_user    queengate.users;
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    SELECT * INTO v_user FROM queengate.users WHERE email = lower(btrim(p_email));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown user %', p_email USING ERRCODE = 'no_data_found';
    END IF;
    IF v_user.tenant_id <> v_cluster.tenant_id THEN
        RAISE EXCEPTION 'user % is not of the tenant of cluster %', p_email, v_cluster.slug
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO queengate.cluster_roles (tenant_id, user_id, cluster_id, role)
        VALUES (v_cluster.tenant_id, v_user.id, p_cluster, p_role) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'cluster_role_granted', v_user.id::text,
            jsonb_build_object('role', p_role));
    END IF;
END
$$;

-- revoke_cluster_role takes one role, or all with NULL. It raises when there was none to take. Roles that the user's tokens
-- state of the cluster end with it: from then on such a token has those that the user holds.
CREATE OR REPLACE FUNCTION queengate.revoke_cluster_role(p_cluster uuid, p_email text, p_role text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
    v_user    uuid;
    v_roles   text[];
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    SELECT id INTO v_user FROM queengate.users WHERE email = lower(btrim(p_email));
    WITH gone AS (
        DELETE FROM queengate.cluster_roles
        WHERE user_id = v_user AND cluster_id = p_cluster AND role = coalesce(p_role, role) RETURNING role)
    SELECT array_agg(role ORDER BY role) INTO v_roles FROM gone;
    IF v_roles IS NULL THEN
        RAISE EXCEPTION 'user % holds no such role on cluster %', p_email, v_cluster.slug USING ERRCODE = 'no_data_found';
    END IF;
    PERFORM queengate.cut_off(v_cluster.tenant_id, NULL, p_cluster, v_user::text, clock_timestamp());
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'cluster_role_revoked', v_user::text,
        jsonb_build_object('roles', v_roles));
END
$$;

-- revoke_session ends a token before its time, and with it all that name it as their session (sid). Doing it twice is fine
-- and leaves one audit row.
CREATE OR REPLACE FUNCTION queengate.revoke_session(p_jti text, p_expires_at timestamptz, p_user uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM queengate.lock_changes();
    INSERT INTO queengate.revoked_tokens (jti, expires_at) VALUES (p_jti, p_expires_at) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM queengate.audit((SELECT tenant_id FROM queengate.users WHERE id = p_user), NULL, 'session_revoked', p_jti,
            jsonb_build_object('user', p_user));
    END IF;
END
$$;

-- sweep_revoked_tokens forgets tokens that no verifier would accept any more, its leeway included, nor a short one that was
-- made of it at its end.
CREATE OR REPLACE FUNCTION queengate.sweep_revoked_tokens() RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_count bigint;
BEGIN
    DELETE FROM queengate.revoked_tokens WHERE expires_at < now() - interval '1 hour';
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
