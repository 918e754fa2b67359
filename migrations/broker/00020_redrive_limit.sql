-- A bound on what a redrive moves.
-- Why: an operator who wants to see a few letters go well before the rest must be able to say how many, and that must
-- survive the broker that began. Locks: redrives, for a moment; the column has no default, so nothing is rewritten. Back
-- out: drop the column; redrives that run then move all that their filter chooses.
-- +goose Up
ALTER TABLE queen.redrives ADD COLUMN max_letters bigint CHECK (max_letters > 0); -- NULL: all
