-- Clusters: one host name, one plan, one namespace of queues.

CREATE OR REPLACE FUNCTION queengate.create_cluster(p_tenant uuid, p_slug text, p_plan text, p_cell text) RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_id     uuid;
    v_status text;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT status INTO v_status FROM queengate.tenants WHERE id = p_tenant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown tenant %', p_tenant USING ERRCODE = 'no_data_found';
    END IF;
    IF v_status = 'deleting' THEN
        RAISE EXCEPTION 'tenant % is being deleted', p_tenant USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM queengate.check_assignable(p_plan);
    SELECT status INTO v_status FROM queengate.cells WHERE slug = p_cell;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown cell %', p_cell USING ERRCODE = 'no_data_found';
    END IF;
    IF v_status <> 'active' THEN
        RAISE EXCEPTION 'cell % is % and takes no new cluster', p_cell, v_status
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF EXISTS (SELECT FROM queengate.clusters WHERE slug = p_slug) THEN
        RAISE EXCEPTION 'cluster % exists', p_slug USING ERRCODE = 'unique_violation';
    END IF;
    INSERT INTO queengate.clusters (tenant_id, slug, plan_code, cell) VALUES (p_tenant, p_slug, p_plan, p_cell)
        RETURNING id INTO v_id;
    PERFORM queengate.audit(p_tenant, v_id, 'cluster_created', p_slug, jsonb_build_object('plan', p_plan, 'cell', p_cell));
    RETURN v_id;
END
$$;

CREATE OR REPLACE FUNCTION queengate.check_assignable(p_plan text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_active boolean;
BEGIN
    SELECT active INTO v_active FROM queengate.plans WHERE code = p_plan;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown plan %', p_plan USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT v_active THEN
        RAISE EXCEPTION 'plan % is no longer offered', p_plan USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;

-- cluster returns the row, or raises. The caller holds lock_changes().
CREATE OR REPLACE FUNCTION queengate.cluster(p_cluster uuid) RETURNS queengate.clusters
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
BEGIN
    SELECT * INTO v_cluster FROM queengate.clusters WHERE id = p_cluster;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown cluster %', p_cluster USING ERRCODE = 'no_data_found';
    END IF;
    RETURN v_cluster;
END
$$;

CREATE OR REPLACE FUNCTION queengate.assign_plan(p_cluster uuid, p_plan text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    PERFORM queengate.check_assignable(p_plan);
    UPDATE queengate.clusters SET plan_code = p_plan WHERE id = p_cluster;
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'plan_assigned', p_plan,
        jsonb_build_object('from', v_cluster.plan_code));
END
$$;

-- set_limit_override replaces all overrides of a cluster: an absent name follows the plan, null is unlimited, a number
-- is that number. NULL or {} clears them.
CREATE OR REPLACE FUNCTION queengate.set_limit_override(p_cluster uuid, p_overrides jsonb) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
    v_new     jsonb := coalesce(nullif(p_overrides, 'null'), '{}');
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    PERFORM queengate.check_limits(v_new);
    UPDATE queengate.clusters SET overrides = v_new WHERE id = p_cluster;
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'limit_override_set', v_cluster.slug,
        jsonb_build_object('from', v_cluster.overrides, 'to', v_new));
END
$$;

-- set_limit_modes replaces all modes of a cluster, which win over its plan's. NULL or {} clears them.
CREATE OR REPLACE FUNCTION queengate.set_limit_modes(p_cluster uuid, p_modes jsonb) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
    v_new     jsonb := coalesce(nullif(p_modes, 'null'), '{}');
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    PERFORM queengate.check_modes(v_new);
    UPDATE queengate.clusters SET modes = v_new WHERE id = p_cluster;
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'limit_modes_set', v_cluster.slug,
        jsonb_build_object('from', v_cluster.modes, 'to', v_new));
END
$$;

-- set_cluster_spread spreads a cluster that is too much for one broker over several: its queues fall into so many
-- shares, and each share has a broker of its own. Shares outnumbering the brokers a few times lie evenly.
CREATE OR REPLACE FUNCTION queengate.set_cluster_spread(p_cluster uuid, p_spread integer) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    UPDATE queengate.clusters SET spread = p_spread WHERE id = p_cluster;
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'cluster_spread_set', v_cluster.slug,
        jsonb_build_object('from', v_cluster.spread, 'to', p_spread));
END
$$;

-- set_cluster_status moves a cluster to a state of the life cycle; what counts is the worse of its own and its tenant's.
-- Deleting is one way, as for tenants.
CREATE OR REPLACE FUNCTION queengate.set_cluster_status(p_cluster uuid, p_status text) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
BEGIN
    PERFORM queengate.lock_changes();
    v_cluster := queengate.cluster(p_cluster);
    IF NOT queengate.change_status('cluster ' || v_cluster.slug, v_cluster.status, p_status) THEN
        RETURN;
    END IF;
    UPDATE queengate.clusters SET status = p_status WHERE id = p_cluster;
    PERFORM queengate.audit(v_cluster.tenant_id, p_cluster, 'cluster_status_changed', p_status,
        jsonb_build_object('from', v_cluster.status));
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
