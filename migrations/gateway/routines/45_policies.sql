-- What plans and clusters say besides numbers, and where a tenant's months begin.

-- set_plan_policies changes a plan for all its clusters, live. NULL keeps a value.
CREATE OR REPLACE FUNCTION queengate.set_plan_policies(
    p_code text, p_unbounded_retention text DEFAULT NULL, p_monthly_basis text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old queengate.plans;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT * INTO v_old FROM queengate.plans WHERE code = p_code;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown plan %', p_code USING ERRCODE = 'no_data_found';
    END IF;
    UPDATE queengate.plans SET
        unbounded_retention = coalesce(p_unbounded_retention, v_old.unbounded_retention),
        monthly_basis = coalesce(p_monthly_basis, v_old.monthly_basis)
        WHERE code = p_code;
    PERFORM queengate.audit(NULL, NULL, 'plan_policies_set', p_code, jsonb_build_object(
        'from', jsonb_build_object('unbounded_retention', v_old.unbounded_retention, 'monthly_basis', v_old.monthly_basis),
        'to', jsonb_build_object('unbounded_retention', coalesce(p_unbounded_retention, v_old.unbounded_retention),
            'monthly_basis', coalesce(p_monthly_basis, v_old.monthly_basis))));
END
$$;

-- set_cluster_policies replaces both policies of a cluster. NULL follows the plan.
CREATE OR REPLACE FUNCTION queengate.set_cluster_policies(
    p_cluster uuid, p_unbounded_retention text DEFAULT NULL, p_monthly_basis text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    UPDATE queengate.clusters SET unbounded_retention = p_unbounded_retention, monthly_basis = p_monthly_basis
        WHERE id = p_cluster;
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'cluster_policies_set', v_cluster.slug, jsonb_build_object(
        'from', jsonb_build_object('unbounded_retention', v_cluster.unbounded_retention, 'monthly_basis', v_cluster.monthly_basis),
        'to', jsonb_build_object('unbounded_retention', p_unbounded_retention, 'monthly_basis', p_monthly_basis)));
END
$$;

-- set_tenant_time_zone moves where the tenant's months begin and end, the one under way included: what it has used stays.
CREATE OR REPLACE FUNCTION queengate.set_tenant_time_zone(p_tenant uuid, p_time_zone text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old text;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT time_zone INTO v_old FROM queengate.tenants WHERE id = p_tenant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown tenant %', p_tenant USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_timezone_names WHERE name = p_time_zone) THEN
        RAISE EXCEPTION 'time zone % is unknown: want a name of the IANA database, such as Europe/Berlin', p_time_zone
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE queengate.tenants SET time_zone = p_time_zone WHERE id = p_tenant;
    PERFORM queengate.audit(p_tenant, NULL, 'tenant_time_zone_set', p_time_zone, jsonb_build_object('from', v_old));
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
