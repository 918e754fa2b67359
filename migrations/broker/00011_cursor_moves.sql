-- Markers of moved cursors, read by the change feed.
-- Why: a seek or the deletion of a group or a queue changes what is ready without writing a message, so the feed of
-- written partitions does not show it to the other brokers. A marker is not a notification that can be lost: it commits
-- with the move, and every broker reads a minute of them with each round of the feed.
-- Locks: none, milliseconds. Back out: drop the table and the routines that write it; brokers then hear of a move
-- elsewhere when their rings age out.
-- +goose Up
CREATE TABLE queen.cursor_moves (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id      uuid        NOT NULL,
    queue          text        COLLATE "C" NOT NULL,
    consumer_group text        COLLATE "C",          -- NULL: every group of the queue, which was deleted or cleared
    moved_at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (vacuum_truncate = off);

CREATE INDEX cursor_moves_moved_at ON queen.cursor_moves (moved_at);
