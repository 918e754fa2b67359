-- Issuers of a tenant's own, and instants before which tokens do not count (docs/design/credentials.md).
-- Why: jobs and people come with tokens of their tenant's identity provider, and a revocation must reach tokens that
-- nobody can list. Locks: ACCESS EXCLUSIVE on inval_log for milliseconds, its rows are read once for the new check; the
-- rest is new. Back out: drop both tables; rows of the log with their kinds have gateways read everything once.
-- +goose Up

-- The kinds are a matter of triggers and followers: one that does not know a kind reads everything. A list here would
-- have to be repeated by whatever adds another.
ALTER TABLE queengate.inval_log
    DROP CONSTRAINT inval_log_kind_check,
    ADD CONSTRAINT inval_log_kind_check CHECK (kind ~ '^[a-z][a-z_]{0,31}$');

-- A rule: whoever holds a claim with this value gets these roles and scopes, on these clusters of the tenant (absent: on
-- all). The claim is a name at the top of the token, or a list of names that leads into objects: a name may hold dots.
-- +goose StatementBegin
CREATE FUNCTION queengate.valid_claim_rule(p_rule jsonb) RETURNS boolean
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
            WHEN 'array' THEN p_rule -> 'scopes' <@ '["produce", "consume", "admin", "read"]'
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

-- +goose StatementBegin
CREATE FUNCTION queengate.valid_claim_rules(p_rules jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN jsonb_typeof(p_rules) <> 'array' THEN false ELSE
        jsonb_array_length(p_rules) <= 64 AND NOT EXISTS (
            SELECT FROM jsonb_array_elements(p_rules) AS e(rule) WHERE NOT queengate.valid_claim_rule(e.rule))
    END
$$;
-- +goose StatementEnd

-- Whose tokens count on the clusters of a tenant, beside our own. An issuer is believed there and nowhere else. The
-- audience is required: providers sign for everybody, and a token that was meant for another service must not pass here.
-- http:// is for networks that the operator lists (gateway.issuer_networks); a gateway refuses it elsewhere.
CREATE TABLE queengate.issuers (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id  uuid NOT NULL REFERENCES queengate.tenants ON DELETE CASCADE,
    name       queengate.slug NOT NULL, -- begins the producer of its bearers' messages
    issuer     text NOT NULL
        CHECK (length(issuer) <= 512 AND issuer ~ '^https?://[^/?#@[:space:][:cntrl:]]+(/[^?#[:space:][:cntrl:]]*)?$'),
    jwks_url   text -- NULL: where the issuer's discovery document says
        CHECK (length(jwks_url) <= 512 AND jwks_url ~ '^https?://[^/?#@[:space:][:cntrl:]]+(/[^#[:space:][:cntrl:]]*)?$'),
    audience   text NOT NULL CHECK (length(audience) BETWEEN 1 AND 512 AND audience !~ '[[:cntrl:]]'),
    algorithms text[] NOT NULL DEFAULT '{RS256,ES256,EdDSA}'
        CHECK (cardinality(algorithms) > 0 AND algorithms <@ ARRAY['RS256', 'ES256', 'EdDSA']),
    rules      jsonb NOT NULL CHECK (queengate.valid_claim_rules(rules)),
    active     boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, name),
    UNIQUE (tenant_id, issuer)
);

-- Tokens that were issued before an instant do not count:
--   all of them on a tenant's clusters         tenant
--   our own of a user                          tenant, subject (the user's id)
--   an issuer's, or those of one subject       tenant, issuer, perhaps subject
--   the roles that tokens of a user state      tenant, cluster, subject (the user's id); the tokens themselves do
-- A row stays: nobody knows how long others let their tokens live. There is one per subject at most.
CREATE TABLE queengate.token_cutoffs (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id  uuid NOT NULL REFERENCES queengate.tenants ON DELETE CASCADE,
    issuer_id  uuid REFERENCES queengate.issuers ON DELETE CASCADE,
    cluster_id uuid REFERENCES queengate.clusters ON DELETE CASCADE,
    subject    text CHECK (length(subject) BETWEEN 1 AND 512),
    not_before timestamptz NOT NULL,
    CHECK (cluster_id IS NULL OR issuer_id IS NULL AND subject IS NOT NULL),
    CHECK (issuer_id IS NOT NULL OR subject ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'),
    UNIQUE NULLS NOT DISTINCT (tenant_id, issuer_id, cluster_id, subject)
);
CREATE INDEX token_cutoffs_issuer ON queengate.token_cutoffs (issuer_id) WHERE issuer_id IS NOT NULL;
CREATE INDEX token_cutoffs_cluster ON queengate.token_cutoffs (cluster_id) WHERE cluster_id IS NOT NULL;

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OR DELETE ON queengate.issuers
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OR DELETE ON queengate.issuers
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('issuer', 'id');

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OR DELETE ON queengate.token_cutoffs
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OR DELETE ON queengate.token_cutoffs
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('cutoff', 'id');
REVOKE ALL ON queengate.issuers, queengate.token_cutoffs FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
