-- Issuers of a tenant's own, and revocations of tokens that nobody can list.

-- issuer_facts is an issuer for the audit. Values of rules may be addresses of people, so they are told by their hash.
CREATE OR REPLACE FUNCTION queengate.issuer_facts(p_issuer queengate.issuers) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_jsonb(p_issuer) - ARRAY['id', 'tenant_id', 'created_at', 'rules'] || jsonb_build_object(
        'rules', jsonb_array_length(p_issuer.rules),
        'rules_sha256', encode(sha256(convert_to(p_issuer.rules::text, 'UTF8')), 'hex'))
$$;

-- set_issuer makes an issuer of a tenant, or replaces the one of that name. Without a key set address the issuer's
-- discovery document names it. An inactive issuer stays inactive. Eight per tenant are enough; each may be asked for keys.
CREATE OR REPLACE FUNCTION queengate.set_issuer(
    p_tenant uuid, p_name text, p_issuer text, p_audience text, p_rules jsonb,
    p_jwks_url text DEFAULT NULL, p_algorithms text[] DEFAULT '{RS256,ES256,EdDSA}') RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old queengate.issuers;
    v_new queengate.issuers;
BEGIN
    PERFORM queengate.lock_changes();
    IF NOT EXISTS (SELECT FROM queengate.tenants WHERE id = p_tenant) THEN
        RAISE EXCEPTION 'unknown tenant %', p_tenant USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT coalesce(queengate.valid_claim_rules(p_rules), false) THEN
        RAISE EXCEPTION 'rules must be a list of {claim, value, roles, scopes, clusters}: claim a name or a list of names, value a text, '
            'roles some of admin, producer, consumer, viewer, scopes some of produce, consume, admin, read, read:payload, at least one of the two; clusters, if any, slugs'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT coalesce(cardinality(p_algorithms) > 0 AND p_algorithms <@ ARRAY['RS256', 'ES256', 'EdDSA'], false) THEN
        RAISE EXCEPTION 'algorithms must be some of RS256, ES256, EdDSA, not %', p_algorithms
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM queengate.issuers WHERE tenant_id = p_tenant AND issuer = p_issuer AND name <> p_name) THEN
        RAISE EXCEPTION 'issuer % exists under another name', p_issuer USING ERRCODE = 'unique_violation';
    END IF;
    SELECT * INTO v_old FROM queengate.issuers WHERE tenant_id = p_tenant AND name = p_name;
    IF FOUND THEN
        UPDATE queengate.issuers
            SET issuer = p_issuer, jwks_url = p_jwks_url, audience = p_audience, algorithms = p_algorithms, rules = p_rules
            WHERE id = v_old.id RETURNING * INTO v_new;
    ELSE
        IF (SELECT count(*) FROM queengate.issuers WHERE tenant_id = p_tenant) >= 8 THEN
            RAISE EXCEPTION 'a tenant has eight issuers at most' USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        INSERT INTO queengate.issuers (tenant_id, name, issuer, jwks_url, audience, algorithms, rules)
            VALUES (p_tenant, p_name, p_issuer, p_jwks_url, p_audience, p_algorithms, p_rules) RETURNING * INTO v_new;
    END IF;
    PERFORM queengate.audit(p_tenant, NULL, 'issuer_set', v_new.id::text, jsonb_build_object(
        'from', CASE WHEN v_old.id IS NOT NULL THEN queengate.issuer_facts(v_old) END, 'to', queengate.issuer_facts(v_new)));
    RETURN v_new.id;
END
$$;

-- issuer returns an issuer of that tenant, or raises.
CREATE OR REPLACE FUNCTION queengate.issuer(p_tenant uuid, p_name text) RETURNS queengate.issuers
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_issuer queengate.issuers;
BEGIN
    SELECT * INTO v_issuer FROM queengate.issuers WHERE tenant_id = p_tenant AND name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown issuer % of tenant %', p_name, p_tenant USING ERRCODE = 'no_data_found';
    END IF;
    RETURN v_issuer;
END
$$;

-- set_issuer_active has an issuer's tokens refused, or believed again, without forgetting its rules.
CREATE OR REPLACE FUNCTION queengate.set_issuer_active(p_tenant uuid, p_name text, p_active boolean) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_issuer queengate.issuers;
BEGIN
    PERFORM queengate.lock_changes();
    v_issuer := queengate.issuer(p_tenant, p_name);
    UPDATE queengate.issuers SET active = p_active WHERE id = v_issuer.id;
    PERFORM queengate.audit(p_tenant, NULL, 'issuer_active_set', v_issuer.id::text,
        jsonb_build_object('name', p_name, 'from', v_issuer.active, 'to', p_active));
END
$$;

-- delete_issuer forgets an issuer with the revocations of its tokens: should the same one be made again, it is another.
CREATE OR REPLACE FUNCTION queengate.delete_issuer(p_tenant uuid, p_name text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_issuer queengate.issuers;
BEGIN
    PERFORM queengate.lock_changes();
    v_issuer := queengate.issuer(p_tenant, p_name);
    DELETE FROM queengate.issuers WHERE id = v_issuer.id;
    PERFORM queengate.audit(p_tenant, NULL, 'issuer_deleted', v_issuer.id::text,
        queengate.issuer_facts(v_issuer));
END
$$;

-- cut_off sets an instant, never an earlier one than stands; it returns the one that stands now.
CREATE OR REPLACE FUNCTION queengate.cut_off(
    p_tenant uuid, p_issuer uuid, p_cluster uuid, p_subject text, p_before timestamptz) RETURNS timestamptz
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO queengate.token_cutoffs AS t (tenant_id, issuer_id, cluster_id, subject, not_before)
        VALUES (p_tenant, p_issuer, p_cluster, p_subject, p_before)
        ON CONFLICT (tenant_id, issuer_id, cluster_id, subject)
            DO UPDATE SET not_before = greatest(t.not_before, EXCLUDED.not_before)
        RETURNING not_before
$$;

-- revoke_user_tokens ends every token of ours that a user was given before an instant.
CREATE OR REPLACE FUNCTION queengate.revoke_user_tokens(p_email text, p_before timestamptz DEFAULT clock_timestamp()) RETURNS void
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
    PERFORM queengate.audit(v_user.tenant_id, NULL, 'user_tokens_revoked', v_user.id::text,
        jsonb_build_object('before', queengate.cut_off(v_user.tenant_id, NULL, NULL, v_user.id::text, p_before)));
END
$$;

-- revoke_tenant_tokens ends, on the clusters of a tenant, every token that was issued before an instant, whoever's it is.
-- Keys stay: they are revoked one by one, and a tenant as a whole is suspended.
CREATE OR REPLACE FUNCTION queengate.revoke_tenant_tokens(p_tenant uuid, p_before timestamptz DEFAULT clock_timestamp()) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM queengate.lock_changes();
    IF NOT EXISTS (SELECT FROM queengate.tenants WHERE id = p_tenant) THEN
        RAISE EXCEPTION 'unknown tenant %', p_tenant USING ERRCODE = 'no_data_found';
    END IF;
    PERFORM queengate.audit(p_tenant, NULL, 'tenant_tokens_revoked', NULL,
        jsonb_build_object('before', queengate.cut_off(p_tenant, NULL, NULL, NULL, p_before)));
END
$$;

-- revoke_issuer_tokens ends the tokens that an issuer gave a subject before an instant, or everybody without one. The
-- audit names the subject by its hash: it may be an address.
CREATE OR REPLACE FUNCTION queengate.revoke_issuer_tokens(
    p_tenant uuid, p_name text, p_subject text DEFAULT NULL, p_before timestamptz DEFAULT clock_timestamp()) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_issuer queengate.issuers;
BEGIN
    PERFORM queengate.lock_changes();
    v_issuer := queengate.issuer(p_tenant, p_name);
    PERFORM queengate.audit(p_tenant, NULL, 'issuer_tokens_revoked', v_issuer.id::text, jsonb_build_object(
        'name', p_name, 'subject_sha256', encode(sha256(convert_to(p_subject, 'UTF8')), 'hex'),
        'before', queengate.cut_off(p_tenant, v_issuer.id, NULL, p_subject, p_before)));
END
$$;

-- revoke_issuer_token ends one token of an issuer by its jti. An id is its issuer's: it is stored with the issuer's, hashed,
-- so that another's token of the same id lives on and its length does not matter (gateways: auth.issuedID).
CREATE OR REPLACE FUNCTION queengate.revoke_issuer_token(
    p_tenant uuid, p_name text, p_jti text, p_expires_at timestamptz) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_issuer queengate.issuers;
    v_id     text;
BEGIN
    PERFORM queengate.lock_changes();
    v_issuer := queengate.issuer(p_tenant, p_name);
    IF coalesce(p_jti, '') = '' THEN
        RAISE EXCEPTION 'the token has no id: revoke those of its subject' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_id := v_issuer.id || ' ' || encode(sha256(convert_to(p_jti, 'UTF8')), 'hex');
    INSERT INTO queengate.revoked_tokens (jti, expires_at) VALUES (v_id, p_expires_at) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM queengate.audit(p_tenant, NULL, 'issuer_token_revoked', v_id, jsonb_build_object('name', p_name));
    END IF;
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
