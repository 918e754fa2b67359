-- Clusters that are spread over several brokers, and names that stand for all brokers of a cell.
-- Why: a tenant can outgrow a broker, and where brokers come and go a resolver knows them better than a statement.
-- Locks: ACCESS EXCLUSIVE on clusters and cells for milliseconds: a constant default rewrites nothing, and the checks
-- read both small tables once. Back out: drop the column and restore the constraint of 00005, once no cell has a name.
-- +goose Up

ALTER TABLE queengate.clusters ADD COLUMN spread integer NOT NULL DEFAULT 1 CHECK (spread BETWEEN 1 AND 256);

ALTER TABLE queengate.cells
    DROP CONSTRAINT cells_base_url_check,
    ADD CONSTRAINT cells_base_url_check CHECK (base_url ~
        '^(dns[+])?https?://[^/?#,[:space:][:cntrl:]]+(,(dns[+])?https?://[^/?#,[:space:][:cntrl:]]+)*$');
