-- API keys. Functions take the SHA-256 of a key and its public id, never the key.

-- check_scopes returns the scopes without repetition, in one order.
CREATE OR REPLACE FUNCTION queengate.check_scopes(p_scopes text[]) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(cardinality(p_scopes), 0) = 0 OR NOT p_scopes <@ ARRAY['produce', 'consume', 'admin', 'read', 'read:payload'] THEN
        RAISE EXCEPTION 'scopes must be some of produce, consume, admin, read, read:payload, not %', p_scopes
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN ARRAY(SELECT DISTINCT s FROM unnest(p_scopes) s ORDER BY s);
END
$$;

-- issue_api_key registers a key. Without a public id (the older format has none) one is derived from the hash.
CREATE OR REPLACE FUNCTION queengate.issue_api_key(
    p_cluster uuid, p_name text, p_hash bytea, p_public_id text, p_scopes text[],
    p_not_before timestamptz DEFAULT NULL, p_expires_at timestamptz DEFAULT NULL, p_allowed_cidrs cidr[] DEFAULT NULL)
    RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
    v_id      uuid;
    v_public  text := coalesce(p_public_id, substr(translate(encode(p_hash, 'base64'), '+/=', 'xyz'), 1, 8));
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    IF v_cluster.status = 'deleting' THEN
        RAISE EXCEPTION 'cluster % is being deleted', v_cluster.slug USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF p_expires_at <= now() THEN
        RAISE EXCEPTION 'the key would be born expired' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO queengate.api_keys (cluster_id, name, public_id, hash, scopes, not_before, expires_at, allowed_cidrs)
        VALUES (p_cluster, p_name, v_public, p_hash, queengate.check_scopes(p_scopes), p_not_before, p_expires_at, p_allowed_cidrs)
        RETURNING id INTO v_id;
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'api_key_issued', v_id::text, jsonb_build_object(
        'public_id', v_public, 'name', p_name, 'scopes', queengate.check_scopes(p_scopes), 'not_before', p_not_before,
        'expires_at', p_expires_at, 'allowed_cidrs', p_allowed_cidrs));
    RETURN v_id;
END
$$;

-- api_key returns a key of that cluster that is not revoked, or raises: an id alone must not reach another cluster's key.
CREATE OR REPLACE FUNCTION queengate.api_key(p_cluster uuid, p_key uuid) RETURNS queengate.api_keys
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_key queengate.api_keys;
BEGIN
    SELECT * INTO v_key FROM queengate.api_keys WHERE id = p_key AND cluster_id = p_cluster;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown key % on cluster %', p_key, p_cluster USING ERRCODE = 'no_data_found';
    END IF;
    IF v_key.revoked_at IS NOT NULL THEN
        RAISE EXCEPTION 'key % is revoked', v_key.public_id USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN v_key;
END
$$;

CREATE OR REPLACE FUNCTION queengate.revoke_api_key(p_cluster uuid, p_key uuid) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_key queengate.api_keys;
BEGIN
    PERFORM queengate.lock_changes();
    v_key := queengate.api_key(p_cluster, p_key);
    UPDATE queengate.api_keys SET revoked_at = now() WHERE id = p_key;
    PERFORM queengate.audit((queengate.cluster(p_cluster)).tenant_id, p_cluster, 'api_key_revoked', p_key::text,
        jsonb_build_object('public_id', v_key.public_id, 'name', v_key.name));
END
$$;

-- set_api_key_limits gives a key limits of its own, under those of its cluster, live: rates and bursts per second by the
-- names of plans. An absent name keeps its value, null lifts the limit, zero blocks the key. A key that was rotated and its
-- twins have them together, whichever is named.
CREATE OR REPLACE FUNCTION queengate.set_api_key_limits(p_cluster uuid, p_key uuid, p_limits jsonb) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old queengate.api_keys;
    v_new queengate.api_keys;
    v_was jsonb;
    v_is  jsonb;
BEGIN
    PERFORM queengate.lock_changes();
    v_old := queengate.api_key(p_cluster, p_key);
    PERFORM queengate.check_limits(p_limits);
    IF p_limits - ARRAY['max_req_per_sec', 'req_burst', 'max_msgs_per_sec', 'msgs_burst'] <> '{}' THEN
        RAISE EXCEPTION 'a key can have only max_req_per_sec, req_burst, max_msgs_per_sec and msgs_burst, not %', p_limits
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_new := jsonb_populate_record(v_old, p_limits);
    IF v_new.max_req_per_sec > 0 AND v_new.req_burst < 1 OR v_new.max_msgs_per_sec > 0 AND v_new.msgs_burst < 1 THEN
        RAISE EXCEPTION 'a burst below 1 would let nothing through: %', p_limits USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE queengate.api_keys SET (max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst)
        = (v_new.max_req_per_sec, v_new.req_burst, v_new.max_msgs_per_sec, v_new.msgs_burst)
        WHERE cluster_id = p_cluster AND revoked_at IS NULL
          AND coalesce(limited_as, id) = coalesce(v_old.limited_as, v_old.id);
    v_was := jsonb_build_object('max_req_per_sec', v_old.max_req_per_sec, 'req_burst', v_old.req_burst,
        'max_msgs_per_sec', v_old.max_msgs_per_sec, 'msgs_burst', v_old.msgs_burst);
    v_is := jsonb_build_object('max_req_per_sec', v_new.max_req_per_sec, 'req_burst', v_new.req_burst,
        'max_msgs_per_sec', v_new.max_msgs_per_sec, 'msgs_burst', v_new.msgs_burst);
    PERFORM queengate.audit((queengate.cluster(p_cluster)).tenant_id, p_cluster, 'api_key_limited', p_key::text,
        jsonb_build_object('public_id', v_old.public_id, 'from', jsonb_strip_nulls(v_was), 'to', jsonb_strip_nulls(v_is)));
END
$$;

-- rotate_api_key mints a twin with the same name, scopes, addresses and limits, which both have together, and lets the old key
-- live for p_overlap more (never longer than it would have). Without p_expires_at the twin lives as long as the old key was meant to.
CREATE OR REPLACE FUNCTION queengate.rotate_api_key(
    p_cluster uuid, p_key uuid, p_hash bytea, p_public_id text, p_overlap interval DEFAULT '1 day',
    p_expires_at timestamptz DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old     queengate.api_keys;
    v_id      uuid;
    v_expires timestamptz;
BEGIN
    PERFORM queengate.lock_changes();
    v_old := queengate.api_key(p_cluster, p_key);
    IF v_old.expires_at <= now() THEN
        RAISE EXCEPTION 'key % has expired', v_old.public_id USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF v_old.not_before > now() THEN
        RAISE EXCEPTION 'key % is not valid yet: revoke it instead', v_old.public_id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF p_overlap IS NULL OR p_overlap < interval '0' OR p_overlap > interval '90 days' THEN
        RAISE EXCEPTION 'the overlap must be within 0 and 90 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_expires := coalesce(p_expires_at, now() + (v_old.expires_at - greatest(v_old.created_at, v_old.not_before)));
    v_id := queengate.issue_api_key(p_cluster, v_old.name, p_hash, p_public_id, v_old.scopes, NULL, v_expires, v_old.allowed_cidrs);
    UPDATE queengate.api_keys SET (rotated_from, limited_as, max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst)
        = (p_key, coalesce(v_old.limited_as, p_key), v_old.max_req_per_sec, v_old.req_burst, v_old.max_msgs_per_sec, v_old.msgs_burst) WHERE id = v_id;
    UPDATE queengate.api_keys SET expires_at = least(expires_at, now() + p_overlap) WHERE id = p_key;
    PERFORM queengate.audit((queengate.cluster(p_cluster)).tenant_id, p_cluster, 'api_key_rotated', p_key::text,
        jsonb_build_object('public_id', v_old.public_id, 'twin', v_id, 'twin_public_id', p_public_id, 'overlap', p_overlap));
    RETURN v_id;
END
$$;

-- touch_api_keys records use, in batches. It is no change anybody follows and leaves no audit row.
CREATE OR REPLACE FUNCTION queengate.touch_api_keys(p_keys uuid[], p_at timestamptz) RETURNS void
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE queengate.api_keys SET last_used_at = p_at
    WHERE id IN (SELECT id FROM queengate.api_keys WHERE id = ANY (p_keys) ORDER BY id FOR UPDATE)
      AND (last_used_at IS NULL OR last_used_at < p_at)
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
