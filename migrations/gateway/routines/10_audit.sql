-- What every function that writes shares: who acts, the audit row, the outbox, the upkeep of the change log.
--
-- The pattern of a writer: lock_changes() first, then validate, write, audit(). Under that lock writers are serial, so
-- a check holds until the commit and no row needs FOR UPDATE. Triggers tell the gateways (00003_changes.sql).
--
-- SQLSTATEs, for callers that must tell refusals apart:
--   P0002 no_data_found                     what was named does not exist
--   23505 unique_violation                  the slug, address, code or key is taken
--   22023 invalid_parameter_value           an argument is malformed or inconsistent; also 23514 check_violation
--   55000 object_not_in_prerequisite_state  it exists, but its state forbids this
--   42501 insufficient_privilege            it belongs to another tenant

-- act_as says who the writers of this transaction act for; without it the actor is "system".
CREATE OR REPLACE FUNCTION queengate.act_as(p_actor text, p_actor_id text DEFAULT NULL) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT set_config('queengate.actor', p_actor, true), set_config('queengate.actor_id', coalesce(p_actor_id, ''), true)
$$;

CREATE OR REPLACE FUNCTION queengate.record_operation(
    p_tenant uuid, p_cluster uuid, p_actor text, p_actor_id text, p_action text, p_target text,
    p_meta jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO queengate.operations (tenant_id, cluster_id, actor, actor_id, action, target, meta)
    VALUES (p_tenant, p_cluster, p_actor, p_actor_id, p_action, p_target, coalesce(p_meta, '{}'))
    RETURNING id
$$;

-- audit is record_operation for the actor of the transaction.
CREATE OR REPLACE FUNCTION queengate.audit(
    p_tenant uuid, p_cluster uuid, p_action text, p_target text, p_meta jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT queengate.record_operation(p_tenant, p_cluster,
        coalesce(nullif(current_setting('queengate.actor', true), ''), 'system'),
        nullif(current_setting('queengate.actor_id', true), ''),
        p_action, p_target, p_meta)
$$;

CREATE OR REPLACE FUNCTION queengate.emit_outbox(p_kind text, p_payload jsonb) RETURNS uuid
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO queengate.outbox (kind, payload) VALUES (p_kind, p_payload) RETURNING id
$$;

-- prune_inval_log drops what is older than p_keep, never the newest row. A follower that slept longer finds its anchor
-- gone and reads everything again.
CREATE OR REPLACE FUNCTION queengate.prune_inval_log(p_keep interval DEFAULT '7 days') RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_count bigint;
BEGIN
    IF p_keep IS NULL OR p_keep < interval '0' THEN
        RAISE EXCEPTION 'keep must not be negative' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM queengate.inval_log
    WHERE at < clock_timestamp() - p_keep AND seq < (SELECT max(seq) FROM queengate.inval_log);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
