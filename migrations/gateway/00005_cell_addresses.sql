-- A cell has as many addresses as it has brokers: base_url takes several, separated by commas.
-- Why: gateways spread the tenants of a cell over its brokers, and a statement could name one broker only.
-- Locks: ACCESS EXCLUSIVE on cells, which has a row per cell, for milliseconds. Back out: name one address per cell, then
-- put the old constraint back.
-- +goose Up

ALTER TABLE queengate.cells
    DROP CONSTRAINT cells_base_url_check,
    ADD CONSTRAINT cells_base_url_check
        CHECK (base_url ~ '^https?://[^/?#,[:space:][:cntrl:]]+(,https?://[^/?#,[:space:][:cntrl:]]+)*$');
