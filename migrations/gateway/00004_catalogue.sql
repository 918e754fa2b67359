-- The four plans. Why: a fresh installation can sell something. Locks: none. Back out: delete the rows no cluster uses.
--
-- A message that is not batched costs three requests (push, pop, ack), so requests per second are at least three times
-- messages per second. A legal batch always fits the message burst. Partitions are a guard against abuse, not a price.
-- +goose Up
INSERT INTO queengate.plans (code, name, cell_class, max_req_per_sec, req_burst, max_msgs_per_sec, msgs_burst,
    max_queues, max_partitions_per_queue, max_parked_pops, max_payload_bytes, max_batch_items, max_retained_bytes,
    max_retention_seconds, features)
VALUES
    ('free', 'Free', 'shared', 60, 120, 20, 100,
        20, 1000, 50, 256 << 10, 100, 1::bigint << 30,
        7 * 86400, '{"kv": true, "timers": true, "ephemeral": true}'),
    ('dev', 'Developer', 'shared', 120, 240, 40, 200,
        50, 2000, 150, 512 << 10, 200, 3 * (1::bigint << 30),
        14 * 86400, '{"kv": true, "timers": true, "ephemeral": true}'),
    ('pro', 'Pro', 'shared', 600, 1200, 200, 800,
        200, 5000, 1000, 1 << 20, 800, 20 * (1::bigint << 30),
        30 * 86400, '{"kv": true, "timers": true, "ephemeral": true, "streams": true, "traces": true}'),
    ('dedicated-s', 'Dedicated S', 'dedicated', 1800, 3600, 600, 2000,
        1000, 10000, 5000, 4 << 20, 2000, 200 * (1::bigint << 30),
        90 * 86400, '{"kv": true, "timers": true, "ephemeral": true, "streams": true, "traces": true}');
