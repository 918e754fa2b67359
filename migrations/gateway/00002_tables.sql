-- The tables of the control database. Why: who exists, what they bought, what they may do. Locks: none, all is new.
-- Back out: DROP SCHEMA queengate CASCADE while it holds no tenant.
--
-- Only the functions of routines/ write here: each validates, writes, and leaves one row in operations.
-- +goose Up

CREATE TABLE queengate.tenants (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    slug       queengate.slug NOT NULL UNIQUE,
    name       queengate.label NOT NULL,
    status     text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'grace', 'suspended', 'deleting')),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE queengate.cells (
    slug       queengate.slug PRIMARY KEY,
    base_url   text NOT NULL CHECK (base_url ~ '^https?://[^/?#[:space:][:cntrl:]]+$'),
    class      text NOT NULL DEFAULT 'shared' CHECK (class IN ('shared', 'dedicated')),
    region     queengate.slug,
    status     text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'draining', 'dead')),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- In limits NULL means unlimited and zero means blocked, except that an absent burst is twice its rate.
CREATE TABLE queengate.plans (
    code                     queengate.plan_code PRIMARY KEY,
    name                     queengate.label NOT NULL,
    cell_class               text NOT NULL DEFAULT 'shared' CHECK (cell_class IN ('shared', 'dedicated')),
    active                   boolean NOT NULL DEFAULT true, -- may be assigned
    max_req_per_sec          queengate.rate,
    req_burst                queengate.rate,
    max_msgs_per_sec         queengate.rate,
    msgs_burst               queengate.rate,
    max_queues               queengate.amount,
    max_partitions_per_queue queengate.amount, -- Default is not counted
    max_parked_pops          queengate.amount,
    max_payload_bytes        queengate.amount, -- raw JSON text of one payload
    max_batch_items          queengate.amount,
    max_body_bytes           queengate.amount,
    max_retained_bytes       queengate.amount, -- raw payload bytes
    max_retention_seconds    queengate.amount,
    monthly_msgs_quota       queengate.amount, -- per calendar month, UTC
    features                 jsonb NOT NULL DEFAULT '{}' CHECK (queengate.valid_features(features)),
    modes                    jsonb NOT NULL DEFAULT '{}' CHECK (queengate.valid_modes(modes)),
    created_at               timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE queengate.clusters (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id          uuid NOT NULL REFERENCES queengate.tenants,
    slug               queengate.slug NOT NULL UNIQUE,
    broker_tenant_uuid uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(), -- random, so that it reveals no tenant
    cell               queengate.slug NOT NULL REFERENCES queengate.cells ON DELETE RESTRICT,
    plan_code          queengate.plan_code NOT NULL REFERENCES queengate.plans ON DELETE RESTRICT,
    overrides          jsonb NOT NULL DEFAULT '{}' CHECK (queengate.valid_limits(overrides)),
    modes              jsonb NOT NULL DEFAULT '{}' CHECK (queengate.valid_modes(modes)), -- win over the plan's
    status             text NOT NULL DEFAULT 'active'
        CHECK (status IN ('active', 'push_blocked', 'paused', 'suspended', 'deleting')),
    created_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, id) -- what cluster_roles refers to
);
CREATE INDEX clusters_plan ON queengate.clusters (plan_code);
CREATE INDEX clusters_cell ON queengate.clusters (cell);

CREATE TABLE queengate.users (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id     uuid NOT NULL REFERENCES queengate.tenants,
    email         queengate.email NOT NULL UNIQUE,
    name          queengate.label,
    password_hash text CHECK (length(password_hash) BETWEEN 20 AND 200),
    is_operator   boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, id) -- what cluster_roles refers to
);

CREATE TABLE queengate.identities (
    provider    text NOT NULL CHECK (provider ~ '^[a-z][a-z0-9-]{0,31}$'),
    provider_id text NOT NULL CHECK (length(provider_id) BETWEEN 1 AND 255),
    user_id     uuid NOT NULL REFERENCES queengate.users,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, provider_id)
);
CREATE INDEX identities_user ON queengate.identities (user_id);

-- A user may hold several roles on a cluster. Both references carry the tenant, so a grant across tenants cannot
-- even be stored.
CREATE TABLE queengate.cluster_roles (
    tenant_id  uuid NOT NULL,
    user_id    uuid NOT NULL,
    cluster_id uuid NOT NULL,
    role       text NOT NULL CHECK (role IN ('admin', 'producer', 'consumer', 'viewer')),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, cluster_id, role),
    FOREIGN KEY (tenant_id, user_id) REFERENCES queengate.users (tenant_id, id),
    FOREIGN KEY (tenant_id, cluster_id) REFERENCES queengate.clusters (tenant_id, id)
);
CREATE INDEX cluster_roles_cluster ON queengate.cluster_roles (cluster_id);

-- A key is bound to its cluster for life. Its plaintext never reaches the database; an unsalted SHA-256 is enough for
-- a secret of 256 random bits.
CREATE TABLE queengate.api_keys (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    cluster_id    uuid NOT NULL REFERENCES queengate.clusters,
    name          queengate.label NOT NULL,
    public_id     text NOT NULL UNIQUE CHECK (public_id ~ '^[0-9A-Za-z]{8}$'), -- shown in lists and logs
    hash          bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    scopes        text[] NOT NULL
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['produce', 'consume', 'admin', 'read']),
    not_before    timestamptz,
    expires_at    timestamptz,
    allowed_cidrs cidr[] CHECK (cardinality(allowed_cidrs) > 0 AND array_position(allowed_cidrs, NULL) IS NULL),
    rotated_from  uuid REFERENCES queengate.api_keys ON DELETE SET NULL,
    revoked_at    timestamptz,
    last_used_at  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (expires_at >= not_before)
);
CREATE INDEX api_keys_cluster ON queengate.api_keys (cluster_id);
CREATE INDEX api_keys_rotated ON queengate.api_keys (rotated_from) WHERE rotated_from IS NOT NULL;

CREATE TABLE queengate.revoked_tokens (
    jti        text PRIMARY KEY CHECK (length(jti) BETWEEN 1 AND 255),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX revoked_tokens_expiry ON queengate.revoked_tokens (expires_at);

-- The audit. It refers to nothing, because it outlives what it tells of, and it names people by id only, so that
-- deleting a tenant leaves no address behind.
CREATE TABLE queengate.operations (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant_id  uuid,
    cluster_id uuid,
    actor      text NOT NULL CHECK (actor IN ('user', 'api_key', 'control_plane', 'system')),
    actor_id   text CHECK (length(actor_id) BETWEEN 1 AND 255),
    action     text NOT NULL CHECK (action ~ '^[a-z][a-z_]{0,62}$'),
    target     text,
    meta       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(meta) = 'object')
);
CREATE INDEX operations_tenant ON queengate.operations (tenant_id, at, id);
CREATE INDEX operations_at ON queengate.operations (at, id);

-- +goose StatementBegin
CREATE FUNCTION queengate.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% is append only', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER operations_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON queengate.operations
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.refuse_change();

-- What others (mail, billing) are to be told. Written with the change it tells of, drained by its consumer.
CREATE TABLE queengate.outbox (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind        text NOT NULL CHECK (kind ~ '^[a-z][a-z_]{0,62}$'),
    payload     jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),
    created_at  timestamptz NOT NULL DEFAULT now(),
    consumed_at timestamptz
);
CREATE INDEX outbox_pending ON queengate.outbox (created_at) WHERE consumed_at IS NULL;
REVOKE ALL ON ALL TABLES IN SCHEMA queengate FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
