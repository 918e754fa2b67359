-- Quotas over time: policies of plans, the tenant's time zone, and what months have used.
-- Why: a month is the tenant's calendar month, its count outlives every gateway and Redis, and a plan says what becomes of
-- queues without retention and whether deliveries count. Locks: ACCESS EXCLUSIVE on tenants, plans and clusters for
-- milliseconds: constant defaults rewrite nothing, and the checks read small tables once. Back out: drop the columns and
-- the tables; months then begin at zero.
-- +goose Up

-- The name of a zone as IANA has it. That PostgreSQL knows it is checked when it is set; gateways read it by their own
-- copy of the data, and one they do not know counts as UTC.
CREATE DOMAIN queengate.time_zone AS text
    CHECK (length(VALUE) <= 64 AND VALUE ~ '^[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$');

ALTER TABLE queengate.tenants ADD COLUMN time_zone queengate.time_zone NOT NULL DEFAULT 'UTC';

ALTER TABLE queengate.plans
    ADD COLUMN unbounded_retention text NOT NULL DEFAULT 'allow' CHECK (unbounded_retention IN ('allow', 'ceiling', 'refuse')),
    ADD COLUMN monthly_basis text NOT NULL DEFAULT 'push' CHECK (monthly_basis IN ('push', 'push+delivery'));

-- NULL follows the plan.
ALTER TABLE queengate.clusters
    ADD COLUMN unbounded_retention text CHECK (unbounded_retention IN ('allow', 'ceiling', 'refuse')),
    ADD COLUMN monthly_basis text CHECK (monthly_basis IN ('push', 'push+delivery'));

-- What each gateway has counted of a cluster's month, all of it: the rows of a month add up, and writing one again, or an
-- older one late, changes nothing. The gateway is '' for those of the past, folded into one.
CREATE TABLE queengate.usage_months (
    cluster_id uuid NOT NULL REFERENCES queengate.clusters ON DELETE CASCADE,
    month      date NOT NULL CHECK (extract(day FROM month) = 1), -- in the tenant's time zone
    gateway    text NOT NULL CHECK (length(gateway) <= 64),
    messages   bigint NOT NULL CHECK (messages >= 0),
    PRIMARY KEY (cluster_id, month, gateway)
);
CREATE INDEX usage_months_month ON queengate.usage_months (month) WHERE gateway <> '';

-- Which marks of the allowance a month has passed: each once, whichever gateway saw it first.
CREATE TABLE queengate.usage_warnings (
    cluster_id uuid NOT NULL REFERENCES queengate.clusters ON DELETE CASCADE,
    month      date NOT NULL,
    percent    smallint NOT NULL CHECK (percent BETWEEN 1 AND 100),
    messages   bigint NOT NULL,
    allowance  bigint NOT NULL,
    at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (cluster_id, month, percent)
);
REVOKE ALL ON queengate.usage_months, queengate.usage_warnings FROM PUBLIC;
