-- The control schema and its vocabulary. Why: everything else of the set lives in it. Locks: none, all is new.
-- Back out: DROP SCHEMA queengate CASCADE while it holds no tenant.
--
-- Domains say a rule once for every column that follows it. The valid_ functions stand here and not in routines/
-- because CHECK constraints use them: a check must not change its mind under rows that exist.
-- +goose Up
CREATE SCHEMA IF NOT EXISTS queengate;
REVOKE ALL ON SCHEMA queengate FROM PUBLIC;

-- One DNS label: a cluster's slug is the first label of its host name.
CREATE DOMAIN queengate.slug AS text
    CHECK (VALUE ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$');

CREATE DOMAIN queengate.plan_code AS text
    CHECK (VALUE ~ '^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$');

-- A rate or a burst, per second or in tokens. NULL is unlimited, zero is blocked. The upper bound also keeps NaN and
-- infinity out, which PostgreSQL sorts above every number.
CREATE DOMAIN queengate.rate AS double precision
    CHECK (VALUE BETWEEN 0 AND 1e9);

-- A count, a size or a number of seconds. NULL is unlimited, zero is blocked. A JSON number holds the bound exactly.
CREATE DOMAIN queengate.amount AS bigint
    CHECK (VALUE BETWEEN 0 AND 1000000000000000);

CREATE DOMAIN queengate.email AS text
    CHECK (VALUE = lower(VALUE) AND length(VALUE) <= 254 AND VALUE ~ '^[^@[:space:][:cntrl:]]+@[^@[:space:][:cntrl:]]+$');

-- A name that people read.
CREATE DOMAIN queengate.label AS text
    CHECK (length(VALUE) BETWEEN 1 AND 200 AND VALUE !~ '[[:cntrl:]]');

-- Limits as JSON, of a plan patch or of a cluster's overrides: known columns of queengate.plans, each a number in the
-- range of its domain or null (unlimited).
-- +goose StatementBegin
CREATE FUNCTION queengate.valid_limits(p_limits jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_typeof(p_limits) = 'object' AND NOT EXISTS (
        SELECT FROM jsonb_each(CASE WHEN jsonb_typeof(p_limits) = 'object' THEN p_limits ELSE '{}' END) AS e(key, value)
        WHERE NOT CASE
            WHEN e.key IN ('max_req_per_sec', 'req_burst', 'max_msgs_per_sec', 'msgs_burst') THEN
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

-- Modes by limit name: {"req":"shadow"}. The names are those of plans.Limit… in Go, of error bodies and of metrics.
-- +goose StatementBegin
CREATE FUNCTION queengate.valid_modes(p_modes jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_typeof(p_modes) = 'object' AND NOT EXISTS (
        SELECT FROM jsonb_each(CASE WHEN jsonb_typeof(p_modes) = 'object' THEN p_modes ELSE '{}' END) AS e(key, value)
        WHERE e.key NOT IN ('req', 'msgs', 'queues', 'partitions', 'payload', 'batch', 'body', 'retention', 'parked',
                'storage', 'month')
           OR e.value NOT IN ('"enforce"', '"shadow"', '"off"'))
$$;
-- +goose StatementEnd

-- Features of a plan: {"streams":true}. Absent means not included.
-- +goose StatementBegin
CREATE FUNCTION queengate.valid_features(p_features jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_typeof(p_features) = 'object' AND NOT EXISTS (
        SELECT FROM jsonb_each(CASE WHEN jsonb_typeof(p_features) = 'object' THEN p_features ELSE '{}' END) AS e(key, value)
        WHERE e.key !~ '^[a-z][a-z_]{0,62}$' OR jsonb_typeof(e.value) <> 'boolean')
$$;
-- +goose StatementEnd
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
