-- What months have used. Gateways write here all the time, so nothing takes lock_changes(): every gateway has rows of its
-- own, and writers of one batch go in the order of the key.

-- save_months notes what a gateway has counted so far, and returns what all have, in the order of the question. A count
-- never falls: a batch that comes twice, or late, changes nothing. Clusters that are gone are passed over.
CREATE OR REPLACE FUNCTION queengate.save_months(
    p_gateway text, p_clusters uuid[], p_months date[], p_messages bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO queengate.usage_months AS u (cluster_id, month, gateway, messages)
    SELECT w.cluster_id, w.month, p_gateway, w.messages
    FROM unnest(p_clusters, p_months, p_messages) AS w (cluster_id, month, messages)
    JOIN queengate.clusters c ON c.id = w.cluster_id
    ORDER BY w.cluster_id, w.month
    ON CONFLICT (cluster_id, month, gateway) DO UPDATE SET messages = excluded.messages
        WHERE u.messages < excluded.messages;

    RETURN QUERY SELECT coalesce(s.messages, 0)::bigint
    FROM unnest(p_clusters, p_months) WITH ORDINALITY AS w (cluster_id, month, ordinal)
    LEFT JOIN LATERAL (
        SELECT sum(u.messages) AS messages FROM queengate.usage_months u
        WHERE u.cluster_id = w.cluster_id AND u.month = w.month
    ) s ON true
    ORDER BY w.ordinal;
END
$$;

-- warn_month notes that a month has passed a mark of its allowance, and tells the outbox. It answers true to the first
-- that says so.
CREATE OR REPLACE FUNCTION queengate.warn_month(
    p_cluster uuid, p_month date, p_percent integer, p_messages bigint, p_allowance bigint) RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cluster queengate.clusters;
BEGIN
    SELECT * INTO v_cluster FROM queengate.clusters WHERE id = p_cluster;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO queengate.usage_warnings (cluster_id, month, percent, messages, allowance)
    VALUES (p_cluster, p_month, p_percent, p_messages, p_allowance)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM queengate.emit_outbox('monthly_allowance', jsonb_build_object(
        'tenant_id', v_cluster.tenant_id, 'cluster_id', p_cluster, 'cluster', v_cluster.slug, 'month', to_char(p_month, 'YYYY-MM'),
        'percent', p_percent, 'messages', p_messages, 'allowance', p_allowance));
    RETURN true;
END
$$;

-- fold_months makes one row of what the gateways counted in each month before p_before, which nobody writes to any more.
-- At most p_limit rows go at a time; it returns how many went.
CREATE OR REPLACE FUNCTION queengate.fold_months(p_before date, p_limit integer DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_count bigint;
BEGIN
    WITH old AS (
        SELECT u.cluster_id, u.month, u.gateway FROM queengate.usage_months u
        WHERE u.month < p_before AND u.gateway <> ''
        ORDER BY u.cluster_id, u.month, u.gateway LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM queengate.usage_months u USING old
        WHERE (u.cluster_id, u.month, u.gateway) = (old.cluster_id, old.month, old.gateway)
        RETURNING u.cluster_id, u.month, u.messages
    ), folded AS (
        INSERT INTO queengate.usage_months AS u (cluster_id, month, gateway, messages)
        SELECT g.cluster_id, g.month, '', sum(g.messages) FROM gone g GROUP BY g.cluster_id, g.month
        ORDER BY g.cluster_id, g.month
        ON CONFLICT (cluster_id, month, gateway) DO UPDATE SET messages = u.messages + excluded.messages
    )
    SELECT count(*) INTO v_count FROM gone;
    RETURN v_count;
END
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
