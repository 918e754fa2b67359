-- queen.lock_tenant makes the tenant known and takes its row: the lock under which queues and partitions are counted,
-- created and deleted, and options rewritten. It conflicts with nothing on the paths of messages. A tenant that was removed
-- for good has no row and gets none.
CREATE OR REPLACE FUNCTION queen.lock_tenant(p_tenant uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM queen.tenants t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO queen.tenants (tenant_id) SELECT p_tenant
        WHERE NOT EXISTS (SELECT FROM queen.closed_tenants c WHERE c.tenant = p_tenant) ON CONFLICT DO NOTHING;
        PERFORM 1 FROM queen.tenants t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
    END IF;
END
$$;

-- queen.partition_uid makes the public id of a partition: a UUID of version 8 whose last two bytes are the share of its
-- queue, by which gateways find the broker for a request that names nothing but the id (wire/spread.go, which must
-- compute the same). Partitions that were made without it have random ids, which tell nothing and stay good.
CREATE OR REPLACE FUNCTION queen.partition_uid(p_queue text) RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT (overlay(substr(gen_random_uuid()::text, 1, 32) PLACING '8' FROM 15 FOR 1)
            || encode(substr(sha256(convert_to(p_queue, 'UTF8')), 1, 2), 'hex'))::uuid
$$;

-- queen.close_tenant has a tenant create nothing any more, for good: what it has is the business of wipe_tenant. Doing it
-- twice is fine. Locks: the tenant's row, so that whoever creates meanwhile has committed before or is refused.
CREATE OR REPLACE FUNCTION queen.close_tenant(p_tenant uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    INSERT INTO queen.closed_tenants (tenant) VALUES (p_tenant) ON CONFLICT DO NOTHING;
END
$$;

-- queen.provision creates what is missing of the pairs (p_queues[i], p_partitions[i]), all or nothing.
--
-- It returns one row. Over a cap (NULL: none), refused is 'queues' or 'partitions' and used what is there already; the
-- caller ends the transaction as it likes, nothing was created. Default partitions are free. A queue born here has the
-- lease of a queue born of a push, takes namespace and task from its dotted name, and has the retention ceiling for its
-- retention (NULL: none). With p_refuse_unbounded it is not born: refused is 'retention', refused_queue the first such.
-- A closed tenant is refused with SQLSTATE QG002: not in the row, which brokers of yesterday would take for a cap.
--
-- Locks: the tenant's row, then config_version if anything was created. Indexes: queues (tenant_id, name),
-- log_partitions (queue_id, name).
CREATE OR REPLACE FUNCTION queen.provision(
    p_tenant uuid, p_queues text[], p_partitions text[], p_max_queues bigint, p_max_partitions bigint,
    p_retention_ceiling integer, p_refuse_unbounded boolean,
    OUT refused text, OUT refused_queue text, OUT used bigint, OUT queues_created bigint, OUT partitions_created bigint
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queen.lock_tenant(p_tenant);
    IF EXISTS (SELECT FROM queen.closed_tenants c WHERE c.tenant = p_tenant) THEN
        RAISE EXCEPTION SQLSTATE 'QG002' USING MESSAGE = 'the tenant was removed';
    END IF;

    SELECT count(DISTINCT w.queue) INTO queues_created
    FROM unnest(p_queues) AS w (queue)
    WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = w.queue);

    IF queues_created > 0 AND p_max_queues IS NOT NULL THEN
        SELECT 'queues', t.queue_count INTO refused, used
        FROM queen.tenants t WHERE t.tenant_id = p_tenant AND t.queue_count + queues_created > p_max_queues;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    IF p_max_partitions IS NOT NULL THEN
        SELECT 'partitions', w.queue, coalesce(q.partition_count, 0) INTO refused, refused_queue, used
        FROM (SELECT DISTINCT u.queue, u.name FROM unnest(p_queues, p_partitions) AS u (queue, name) WHERE u.name <> 'Default') w
        LEFT JOIN queen.queues q ON q.tenant_id = p_tenant AND q.name = w.queue
        WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions p WHERE p.queue_id = q.id AND p.name = w.name)
        GROUP BY w.queue, q.partition_count
        HAVING coalesce(q.partition_count, 0) + count(*) > p_max_partitions
        ORDER BY w.queue LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    IF queues_created > 0 AND p_refuse_unbounded AND p_retention_ceiling IS NOT NULL THEN
        SELECT 'retention', min(w.queue) INTO refused, refused_queue
        FROM unnest(p_queues) AS w (queue)
        WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = w.queue);
        RETURN;
    END IF;

    IF queues_created > 0 THEN
        INSERT INTO queen.queues (tenant_id, name, namespace, task, lease_time, retention_enabled, retention_seconds)
        SELECT DISTINCT p_tenant, w.queue,
            CASE WHEN strpos(w.queue, '.') > 0 THEN split_part(w.queue, '.', 1) ELSE '' END,
            CASE WHEN strpos(w.queue, '.') > 0 THEN split_part(w.queue, '.', 2) ELSE '' END,
            60, p_retention_ceiling IS NOT NULL, coalesce(p_retention_ceiling, 0)
        FROM unnest(p_queues) AS w (queue)
        WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = w.queue);
        UPDATE queen.tenants SET queue_count = queue_count + queues_created WHERE tenant_id = p_tenant;
    END IF;

    WITH born AS (
        -- The flag of encryption cannot change meanwhile: it is set under the tenant's lock too.
        INSERT INTO queen.log_partitions (queue_id, name, uid, encrypted, sealed)
        SELECT q.id, w.name, queen.partition_uid(q.name), q.encryption_enabled, q.encryption_enabled
        FROM (SELECT DISTINCT u.queue, u.name FROM unnest(p_queues, p_partitions) AS u (queue, name)) w
        JOIN queen.queues q ON q.tenant_id = p_tenant AND q.name = w.queue
        WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions p WHERE p.queue_id = q.id AND p.name = w.name)
        RETURNING queue_id, name
    ), counted AS (
        UPDATE queen.queues q SET partition_count = q.partition_count + c.born
        FROM (SELECT b.queue_id, count(*) AS born FROM born b WHERE b.name <> 'Default' GROUP BY b.queue_id) c
        WHERE q.id = c.queue_id
    )
    SELECT count(*) INTO partitions_created FROM born;

    IF queues_created + partitions_created > 0 THEN
        PERFORM queen.bump_config();
    END IF;
END
$$;

-- The form of the release before: without a ceiling.
CREATE OR REPLACE FUNCTION queen.provision(
    p_tenant uuid, p_queues text[], p_partitions text[], p_max_queues bigint, p_max_partitions bigint,
    OUT refused text, OUT refused_queue text, OUT used bigint, OUT queues_created bigint, OUT partitions_created bigint
) LANGUAGE sql AS $$
    SELECT p.refused, p.refused_queue, p.used, p.queues_created, p.partitions_created
    FROM queen.provision(p_tenant, p_queues, p_partitions, p_max_queues, p_max_partitions, NULL, false) AS p
$$;
