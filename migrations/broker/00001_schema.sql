-- The message schema. Why: everything else of the set lives in it. Locks: none. Back out: drop the empty schema.
-- +goose Up
CREATE SCHEMA IF NOT EXISTS queen;
