-- Gateways that decide without Redis, since they do not reach it.
-- Why: the others cannot tell one that is cut off for long from a dead one, and used its share of every plan beside it.
-- Locks: none that anybody waits for. Back out: drop the table and say_alone. Gateways of yesterday neither write nor read it.
-- +goose Up

CREATE TABLE queengate.gateways_alone (
    gateway text PRIMARY KEY CHECK (length(gateway) <= 64), -- its name in Redis
    said_at timestamptz NOT NULL -- each second, while it is so
);
REVOKE ALL ON queengate.gateways_alone FROM PUBLIC;
