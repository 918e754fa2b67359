-- The change log that gateways follow. Why: a change must be visible everywhere in under two seconds, whoever made it
-- and however it was made. Locks: none, all is new. Back out: drop the triggers, then the table.
--
-- Triggers write the log, not the functions, so that an operator's plain UPDATE is followed too. Each row is announced
-- on the channel queengate_inval; followers read the log and treat a notification as nothing but a reason to look.
--
-- A follower that has seen sequence n must never miss a lower one that commits later. Therefore lock_changes() is
-- taken before a number is drawn and is held until the transaction ends. PostgreSQL releases locks only after the
-- commit is visible, so numbers become visible in rising order. Gaps (rolled back transactions) are harmless.
-- The lock is taken before any row is locked, first thing in every function and in a BEFORE STATEMENT trigger for
-- everybody else: writers of this schema are serial and cannot deadlock. Control writes are rare; gateways only read.
-- +goose Up
CREATE TABLE queengate.inval_log (
    seq  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('all', 'tenant', 'cell', 'plan', 'cluster', 'user', 'role', 'key', 'session')),
    id   text NOT NULL, -- primary key of what changed; the user of a role; "" for all
    at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX inval_log_at ON queengate.inval_log (at);

-- Followers anchor themselves at the row they saw last, so there is always one.
INSERT INTO queengate.inval_log (kind, id) VALUES ('all', '');

-- +goose StatementBegin
CREATE FUNCTION queengate.notify_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_notify('queengate_inval', jsonb_build_object('v', 1, 'k', NEW.kind, 'id', NEW.id, 'seq', NEW.seq)::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER inval_log_notify AFTER INSERT ON queengate.inval_log
    FOR EACH ROW EXECUTE FUNCTION queengate.notify_change();

-- +goose StatementBegin
CREATE FUNCTION queengate.lock_changes() RETURNS void
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT pg_advisory_xact_lock(778120011) $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION queengate.lock_changes_first() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM queengate.lock_changes();
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Arguments: the kind, and the column with the id.
-- +goose StatementBegin
CREATE FUNCTION queengate.log_change() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old text := to_jsonb(OLD) ->> TG_ARGV[1];
    v_new text := to_jsonb(NEW) ->> TG_ARGV[1];
BEGIN
    IF v_old IS NOT NULL THEN
        INSERT INTO queengate.inval_log (kind, id) VALUES (TG_ARGV[0], v_old);
    END IF;
    IF v_new IS NOT NULL AND v_new IS DISTINCT FROM v_old THEN
        INSERT INTO queengate.inval_log (kind, id) VALUES (TG_ARGV[0], v_new);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OR DELETE ON queengate.tenants
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OR DELETE ON queengate.tenants
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('tenant', 'id');

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OR DELETE ON queengate.cells
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OR DELETE ON queengate.cells
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('cell', 'slug');

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OR DELETE ON queengate.plans
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OR DELETE ON queengate.plans
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('plan', 'code');

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OR DELETE ON queengate.clusters
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OR DELETE ON queengate.clusters
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('cluster', 'id');

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OF id, is_operator OR DELETE ON queengate.users
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OF id, is_operator OR DELETE ON queengate.users
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('user', 'id');

CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE OR DELETE ON queengate.cluster_roles
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE OR DELETE ON queengate.cluster_roles
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('role', 'user_id');

-- Not last_used_at: it changes all the time and no gateway asks for it.
CREATE TRIGGER a_lock BEFORE INSERT OR DELETE
    OR UPDATE OF id, cluster_id, name, public_id, hash, scopes, not_before, expires_at, allowed_cidrs, revoked_at
    ON queengate.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR DELETE
    OR UPDATE OF id, cluster_id, name, public_id, hash, scopes, not_before, expires_at, allowed_cidrs, revoked_at
    ON queengate.api_keys
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('key', 'id');

-- Not deletions: only what has expired is swept, and an expired token is refused without the list.
CREATE TRIGGER a_lock BEFORE INSERT OR UPDATE ON queengate.revoked_tokens
    FOR EACH STATEMENT EXECUTE FUNCTION queengate.lock_changes_first();
CREATE TRIGGER z_log AFTER INSERT OR UPDATE ON queengate.revoked_tokens
    FOR EACH ROW EXECUTE FUNCTION queengate.log_change('session', 'jti');
REVOKE ALL ON queengate.inval_log FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
