-- The catalogue of plans, and the cells.

-- check_plan refuses a plan that contradicts itself.
CREATE OR REPLACE FUNCTION queengate.check_plan(p queengate.plans) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p.max_req_per_sec > 0 AND p.req_burst < 1 THEN
        RAISE EXCEPTION 'req_burst % is below 1: no request could ever pass', p.req_burst
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p.max_msgs_per_sec > 0 AND p.msgs_burst < 1 THEN
        RAISE EXCEPTION 'msgs_burst % is below 1: no message could ever pass', p.msgs_burst
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p.max_delivery_per_sec > 0 AND p.delivery_burst < 1 THEN
        RAISE EXCEPTION 'delivery_burst % is below 1: no message could ever be delivered', p.delivery_burst
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p.max_msgs_per_sec > 0 AND p.max_batch_items > coalesce(p.msgs_burst, greatest(1, 2 * p.max_msgs_per_sec)) THEN
        RAISE EXCEPTION 'max_batch_items % exceeds msgs_burst %: a legal batch could never pass',
            p.max_batch_items, coalesce(p.msgs_burst, greatest(1, 2 * p.max_msgs_per_sec)) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p.max_payload_bytes > p.max_body_bytes THEN
        RAISE EXCEPTION 'max_payload_bytes % exceeds max_body_bytes %', p.max_payload_bytes, p.max_body_bytes
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION queengate.check_limits(p_limits jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT coalesce(queengate.valid_limits(p_limits), false) THEN
        RAISE EXCEPTION 'limits must be an object of known names with numbers in range or null, not %', p_limits
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION queengate.check_modes(p_modes jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT coalesce(queengate.valid_modes(p_modes), false) THEN
        RAISE EXCEPTION 'modes must be an object of limit names with enforce, shadow or off, not %', p_modes
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- In p_limits an absent name and null both mean unlimited.
CREATE OR REPLACE FUNCTION queengate.create_plan(
    p_code text, p_name text, p_limits jsonb DEFAULT '{}', p_features jsonb DEFAULT '{}', p_modes jsonb DEFAULT '{}',
    p_cell_class text DEFAULT 'shared') RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_plan queengate.plans;
BEGIN
    PERFORM queengate.lock_changes();
    PERFORM queengate.check_limits(p_limits);
    PERFORM queengate.check_modes(p_modes);
    IF EXISTS (SELECT FROM queengate.plans WHERE code = p_code) THEN
        RAISE EXCEPTION 'plan % exists', p_code USING ERRCODE = 'unique_violation';
    END IF;
    v_plan := jsonb_populate_record(NULL::queengate.plans, p_limits);
    v_plan.code := p_code;
    v_plan.name := p_name;
    v_plan.cell_class := p_cell_class;
    v_plan.active := true;
    v_plan.features := p_features;
    v_plan.modes := p_modes;
    v_plan.unbounded_retention := 'allow'; -- set_plan_policies says otherwise
    v_plan.monthly_basis := 'push';
    v_plan.created_at := now();
    PERFORM queengate.check_plan(v_plan);
    INSERT INTO queengate.plans SELECT v_plan.*;
    PERFORM queengate.audit(NULL, NULL, 'plan_created', p_code, jsonb_build_object('plan', to_jsonb(v_plan)));
END
$$;

-- set_plan changes a plan for all its clusters, live. In p_limits an absent name keeps its value, null lifts the limit.
-- The other arguments replace what they name; NULL keeps it. The audit row holds what changed, before and after.
CREATE OR REPLACE FUNCTION queengate.set_plan(
    p_code text, p_limits jsonb DEFAULT '{}', p_features jsonb DEFAULT NULL, p_modes jsonb DEFAULT NULL,
    p_name text DEFAULT NULL, p_active boolean DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old queengate.plans;
    v_new queengate.plans;
BEGIN
    PERFORM queengate.lock_changes();
    PERFORM queengate.check_limits(p_limits);
    SELECT * INTO v_old FROM queengate.plans WHERE code = p_code;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown plan %', p_code USING ERRCODE = 'no_data_found';
    END IF;
    v_new := jsonb_populate_record(v_old, p_limits);
    v_new.features := coalesce(p_features, v_old.features);
    v_new.modes := coalesce(p_modes, v_old.modes);
    v_new.name := coalesce(p_name, v_old.name);
    v_new.active := coalesce(p_active, v_old.active);
    PERFORM queengate.check_modes(v_new.modes);
    PERFORM queengate.check_plan(v_new);
    -- A row's columns in one assignment would re-key it; the key and the birth are left out.
    UPDATE queengate.plans SET
        (name, active, max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst, max_delivery_per_sec, delivery_burst,
            max_queues, max_partitions_per_queue, max_parked_pops, max_payload_bytes, max_batch_items, max_body_bytes, max_retained_bytes,
            max_retention_seconds, monthly_msgs_quota, features, modes)
        = (v_new.name, v_new.active, v_new.max_req_per_sec, v_new.req_burst, v_new.max_msgs_per_sec, v_new.msgs_burst,
            v_new.max_delivery_per_sec, v_new.delivery_burst, v_new.max_queues, v_new.max_partitions_per_queue, v_new.max_parked_pops, v_new.max_payload_bytes,
            v_new.max_batch_items, v_new.max_body_bytes, v_new.max_retained_bytes, v_new.max_retention_seconds,
            v_new.monthly_msgs_quota, v_new.features, v_new.modes)
        WHERE code = p_code;
    PERFORM queengate.audit(NULL, NULL, 'plan_changed', p_code, (
        SELECT jsonb_build_object('from', coalesce(jsonb_object_agg(o.key, o.value), '{}'),
                                  'to', coalesce(jsonb_object_agg(n.key, n.value), '{}'))
        FROM jsonb_each(to_jsonb(v_old)) o JOIN jsonb_each(to_jsonb(v_new)) n USING (key)
        WHERE o.value IS DISTINCT FROM n.value));
END
$$;

CREATE OR REPLACE FUNCTION queengate.create_cell(
    p_slug text, p_base_url text, p_class text DEFAULT 'shared', p_region text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM queengate.lock_changes();
    IF EXISTS (SELECT FROM queengate.cells WHERE slug = p_slug) THEN
        RAISE EXCEPTION 'cell % exists', p_slug USING ERRCODE = 'unique_violation';
    END IF;
    INSERT INTO queengate.cells (slug, base_url, class, region) VALUES (p_slug, p_base_url, p_class, p_region);
    PERFORM queengate.audit(NULL, NULL, 'cell_created', p_slug,
        jsonb_build_object('base_url', p_base_url, 'class', p_class, 'region', p_region));
END
$$;

-- NULL keeps a value.
CREATE OR REPLACE FUNCTION queengate.set_cell(p_slug text, p_base_url text DEFAULT NULL, p_status text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old queengate.cells;
BEGIN
    PERFORM queengate.lock_changes();
    SELECT * INTO v_old FROM queengate.cells WHERE slug = p_slug;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown cell %', p_slug USING ERRCODE = 'no_data_found';
    END IF;
    UPDATE queengate.cells SET base_url = coalesce(p_base_url, v_old.base_url), status = coalesce(p_status, v_old.status)
        WHERE slug = p_slug;
    PERFORM queengate.audit(NULL, NULL, 'cell_changed', p_slug, jsonb_build_object(
        'from', jsonb_build_object('base_url', v_old.base_url, 'status', v_old.status),
        'to', jsonb_build_object('base_url', coalesce(p_base_url, v_old.base_url), 'status', coalesce(p_status, v_old.status))));
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
