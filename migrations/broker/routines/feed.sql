-- queen.bump_config makes every broker and gateway look again at what it knows of queues, at the latest when its next
-- poll of the change feed sees another sum. Call it last in the transaction that changed something: it takes one row
-- lock of sixteen, held until the commit.
CREATE OR REPLACE FUNCTION queen.bump_config() RETURNS void
LANGUAGE sql AS $$
    UPDATE queen.config_version SET version = version + 1 WHERE shard = pg_backend_pid() % 16;
$$;
