-- queen.fold_usage moves the ledger into the tenant rows and returns the number of ledger rows moved. The sum of both
-- is the same before, after and while it runs. Tenants that are being provisioned right now are left for the next fold.
-- Locks: tenant rows ascending, skipping busy ones; then the ledger rows of those tenants. Two folds never share a row.
CREATE OR REPLACE FUNCTION queen.fold_usage() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_tenants uuid[];
    v_moved   bigint;
BEGIN
    SELECT array_agg(l.tenant_id) INTO v_tenants
    FROM (
        SELECT t.tenant_id FROM queen.tenants t
        WHERE t.tenant_id IN (SELECT r.tenant_id FROM queen.retained_ledger r)
        ORDER BY t.tenant_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) l;
    IF v_tenants IS NULL THEN
        RETURN 0;
    END IF;

    WITH moved AS (
        DELETE FROM queen.retained_ledger r WHERE r.tenant_id = ANY (v_tenants) RETURNING r.tenant_id, r.bytes
    ), total AS (
        SELECT m.tenant_id, sum(m.bytes)::bigint AS bytes, count(*) AS moved FROM moved m GROUP BY m.tenant_id
    ), folded AS (
        UPDATE queen.tenants t SET retained_bytes = t.retained_bytes + f.bytes
        FROM total f WHERE t.tenant_id = f.tenant_id
    )
    SELECT coalesce(sum(f.moved), 0)::bigint INTO v_moved FROM total f;
    RETURN v_moved;
END
$$;
