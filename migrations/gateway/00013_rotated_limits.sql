-- A rotated key and its twin have one set of limits, and are counted together.
-- Why: each counted by itself, so the holder of both had twice its limits for the time of the overlap.
-- Locks: ACCESS EXCLUSIVE on api_keys for milliseconds (a new column without a default rewrites nothing). Back out: drop the
-- column, and apply the routines of before. Gateways of yesterday count each key by itself.
-- +goose Up

-- The first of the keys it was rotated from; NULL: it was rotated from none. No foreign key: the first may be gone.
ALTER TABLE queengate.api_keys ADD COLUMN limited_as uuid;
UPDATE queengate.api_keys AS twin SET limited_as = first.id
    FROM (WITH RECURSIVE line(id, first) AS (
            SELECT id, id FROM queengate.api_keys WHERE rotated_from IS NULL
            UNION ALL
            SELECT k.id, line.first FROM queengate.api_keys AS k JOIN line ON k.rotated_from = line.id)
        SELECT line.id AS of, line.first AS id FROM line) AS first
    WHERE first.of = twin.id AND twin.rotated_from IS NOT NULL;
