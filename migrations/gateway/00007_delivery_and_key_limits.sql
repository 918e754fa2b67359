-- A rate of deliveries apart from that of pushes, and limits of single keys under those of their cluster.
-- Why: consumers of a backlog should not have to spend what producers need, and one key of a cluster should not be able to
-- spend what the others need. Locks: ACCESS EXCLUSIVE on plans and api_keys for milliseconds (new columns without a
-- default rewrite nothing; the triggers are replaced). Back out: the triggers and functions of 00001 and 00003, then drop
-- the columns.
-- +goose Up

-- NULL: deliveries share the message rate. An absent burst is twice the rate.
ALTER TABLE queengate.plans
    ADD COLUMN max_delivery_per_sec queengate.rate,
    ADD COLUMN delivery_burst       queengate.rate;

-- NULL: the key has no limit of its own. Zero blocks it. An absent burst is twice the rate.
ALTER TABLE queengate.api_keys
    ADD COLUMN max_req_per_sec  queengate.rate,
    ADD COLUMN req_burst        queengate.rate,
    ADD COLUMN max_msgs_per_sec queengate.rate,
    ADD COLUMN msgs_burst       queengate.rate,
    ADD CONSTRAINT api_keys_burst_check CHECK (
        NOT (max_req_per_sec > 0 AND req_burst < 1) AND NOT (max_msgs_per_sec > 0 AND msgs_burst < 1));

-- The two checks accept more than before, so that no row which exists fails them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queengate.valid_limits(p_limits jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_typeof(p_limits) = 'object' AND NOT EXISTS (
        SELECT FROM jsonb_each(CASE WHEN jsonb_typeof(p_limits) = 'object' THEN p_limits ELSE '{}' END) AS e(key, value)
        WHERE NOT CASE
            WHEN e.key IN ('max_req_per_sec', 'req_burst', 'max_msgs_per_sec', 'msgs_burst', 'max_delivery_per_sec',
                'delivery_burst') THEN
                CASE jsonb_typeof(e.value)
                    WHEN 'null' THEN true
                    WHEN 'number' THEN e.value::numeric BETWEEN 0 AND 1e9
                    ELSE false
                END
            WHEN e.key IN ('max_queues', 'max_partitions_per_queue', 'max_parked_pops', 'max_payload_bytes',
                'max_batch_items', 'max_body_bytes', 'max_retained_bytes', 'max_retention_seconds',
                'monthly_msgs_quota') THEN
                CASE jsonb_typeof(e.value)
                    WHEN 'null' THEN true
                    WHEN 'number' THEN e.value::numeric BETWEEN 0 AND 1e15 AND trunc(e.value::numeric) = e.value::numeric
                    ELSE false
                END
            ELSE false
        END)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queengate.valid_modes(p_modes jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_typeof(p_modes) = 'object' AND NOT EXISTS (
        SELECT FROM jsonb_each(CASE WHEN jsonb_typeof(p_modes) = 'object' THEN p_modes ELSE '{}' END) AS e(key, value)
        WHERE e.key NOT IN ('req', 'msgs', 'delivery', 'key_req', 'key_msgs', 'queues', 'partitions', 'payload', 'batch',
                'body', 'retention', 'parked', 'storage', 'month')
           OR e.value NOT IN ('"enforce"', '"shadow"', '"off"'))
$$;
-- +goose StatementEnd

-- Gateways follow the limits of a key like everything else of it.
DROP TRIGGER a_lock ON queengate.api_keys;
DROP TRIGGER z_log ON queengate.api_keys;
CREATE TRIGGER a_lock BEFORE INSERT OR DELETE
    OR UPDATE OF id, cluster_id, name, public_id, hash, scopes, not_before, expires_at, allowed_cidrs, revoked_at,
        max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst
    ON queengate.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR DELETE
    OR UPDATE OF id, cluster_id, name, public_id, hash, scopes, not_before, expires_at, allowed_cidrs, revoked_at,
        max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst
    ON queengate.api_keys
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('key', 'id');
