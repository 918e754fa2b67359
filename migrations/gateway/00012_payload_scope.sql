-- The scope read:payload, of keys and of issuers' rules: who reads without it is told of messages, not what is in them.
-- Why: whoever may not consume could read every payload by listing messages.
-- Locks: ACCESS EXCLUSIVE on api_keys, which is read once, milliseconds. A rule is held against the new text when it is written
-- next; those that are there meet it, since it allows more. Back out: take the scope from keys and rules, then restore both.
-- Gateways of yesterday give the scope no meaning: a key with nothing else may do nothing there.
-- +goose Up

ALTER TABLE queengate.api_keys
    DROP CONSTRAINT api_keys_scopes_check,
    ADD CONSTRAINT api_keys_scopes_check
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['produce', 'consume', 'admin', 'read', 'read:payload']);

-- As it was (00011), but for the list of scopes.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queengate.valid_claim_rule(p_rule jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN jsonb_typeof(p_rule) <> 'object' THEN false ELSE
        p_rule - ARRAY['claim', 'value', 'roles', 'scopes', 'clusters'] = '{}'
        AND CASE jsonb_typeof(p_rule -> 'claim')
            WHEN 'string' THEN length(p_rule ->> 'claim') BETWEEN 1 AND 200
            WHEN 'array' THEN jsonb_array_length(p_rule -> 'claim') BETWEEN 1 AND 8 AND NOT EXISTS (
                SELECT FROM jsonb_array_elements(p_rule -> 'claim') AS e(name)
                WHERE jsonb_typeof(e.name) <> 'string' OR length(e.name #>> '{}') NOT BETWEEN 1 AND 200)
            ELSE false
        END
        AND coalesce(jsonb_typeof(p_rule -> 'value') = 'string' AND length(p_rule ->> 'value') BETWEEN 1 AND 512, false)
        AND CASE jsonb_typeof(p_rule -> 'roles')
            WHEN 'array' THEN p_rule -> 'roles' <@ '["admin", "producer", "consumer", "viewer"]'
            ELSE p_rule -> 'roles' IS NULL
        END
        AND CASE jsonb_typeof(p_rule -> 'scopes')
            WHEN 'array' THEN p_rule -> 'scopes' <@ '["produce", "consume", "admin", "read", "read:payload"]'
            ELSE p_rule -> 'scopes' IS NULL
        END
        AND coalesce(p_rule -> 'roles', '[]') || coalesce(p_rule -> 'scopes', '[]') <> '[]'
        AND CASE jsonb_typeof(p_rule -> 'clusters')
            WHEN 'array' THEN jsonb_array_length(p_rule -> 'clusters') BETWEEN 1 AND 64 AND NOT EXISTS (
                SELECT FROM jsonb_array_elements(p_rule -> 'clusters') AS e(slug)
                WHERE jsonb_typeof(e.slug) <> 'string' OR e.slug #>> '{}' !~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')
            ELSE p_rule -> 'clusters' IS NULL
        END
    END
$$;
-- +goose StatementEnd
