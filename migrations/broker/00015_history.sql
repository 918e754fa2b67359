-- What operators look back at: trace events, minutes of queues and brokers, and the totals of the cell.
-- Why: gauges say how it is, these say how it was. Rows are written once a minute by each broker, in one statement, and
-- only for queues with activity: an idle queue costs nothing, however many there are.
-- Locks: none on a new database, milliseconds. Back out: drop the tables; nothing else reads them.
-- +goose Up

-- Trace events outlive their queue, so they refer to nothing and carry the names of the day.
CREATE TABLE queen.message_traces (
    id               uuid        PRIMARY KEY,
    tenant_id        uuid        NOT NULL,
    partition_id     uuid        NOT NULL, -- uid of the partition
    transaction_hash bytea       NOT NULL, -- 16 bytes: the id itself may be longer than an index takes
    transaction_id   text        COLLATE "C" NOT NULL,
    queue            text        COLLATE "C" NOT NULL,
    partition_name   text        COLLATE "C" NOT NULL,
    consumer_group   text        COLLATE "C" NOT NULL,
    event_type       text        COLLATE "C" NOT NULL,
    worker           text        NOT NULL, -- the broker that took it
    data             text        NOT NULL, -- the JSON text exactly as sent
    names            text[]      COLLATE "C" NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX message_traces_message ON queen.message_traces (tenant_id, partition_id, transaction_hash, created_at);

-- One row per name of an event, in the order in which a name is read.
CREATE TABLE queen.message_trace_names (
    tenant_id        uuid        NOT NULL,
    name             text        COLLATE "C" NOT NULL,
    created_at       timestamptz NOT NULL,
    trace_id         uuid        NOT NULL,
    partition_id     uuid        NOT NULL,
    transaction_hash bytea       NOT NULL,
    PRIMARY KEY (tenant_id, name, created_at, trace_id)
);

-- Processes that wrote history. A row is made by the first flush of a process and touched while it has anything to say.
CREATE TABLE queen.brokers (
    id         uuid        PRIMARY KEY,
    hostname   text        NOT NULL,
    port       integer     NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Minutes of a queue as one broker saw them. The numbers of a minute never change once they are written, so a flush
-- whose outcome is unknown is simply repeated.
CREATE TABLE queen.queue_metrics (
    tenant_id     uuid        NOT NULL,
    bucket        timestamptz NOT NULL, -- beginning of the minute
    queue         text        COLLATE "C" NOT NULL,
    broker_id     uuid        NOT NULL,
    push_requests bigint      NOT NULL,
    push_messages bigint      NOT NULL, -- stored: duplicates are not among them
    pop_requests  bigint      NOT NULL, -- that delivered
    pop_messages  bigint      NOT NULL,
    pop_empty     bigint      NOT NULL,
    ack_requests  bigint      NOT NULL,
    ack_success   bigint      NOT NULL,
    ack_failed    bigint      NOT NULL,
    dead_letters  bigint      NOT NULL,
    transactions  bigint      NOT NULL,
    lag_ms        bigint      NOT NULL, -- sum over pop_messages of their age when they were delivered
    lag_max_ms    bigint      NOT NULL,
    parked        integer,              -- waiting pops at the end of the minute; NULL: as before
    PRIMARY KEY (tenant_id, bucket, queue, broker_id)
);

-- The readers of a whole cell, and the purge, go by time alone. Rows come in the order of time, so a few bytes do.
CREATE INDEX queue_metrics_bucket ON queen.queue_metrics USING brin (bucket) WITH (pages_per_range = 32, autosummarize = on);

-- Minutes of a process, written together with those of its queues.
CREATE TABLE queen.broker_metrics (
    bucket        timestamptz      NOT NULL,
    broker_id     uuid             NOT NULL,
    requests      bigint           NOT NULL,
    messages      bigint           NOT NULL, -- pushed, popped and acknowledged
    db_errors     bigint           NOT NULL,
    cpu_user_pct  double precision NOT NULL, -- of one processor
    cpu_sys_pct   double precision NOT NULL,
    rss_bytes     bigint           NOT NULL,
    heap_bytes    bigint           NOT NULL,
    goroutines    integer          NOT NULL,
    parked        integer          NOT NULL,
    pool_size     integer          NOT NULL,
    pool_idle     integer          NOT NULL,
    pool_active   integer          NOT NULL,
    sched_lag_ms  double precision NOT NULL, -- mean wait of a goroutine for a processor
    sched_lag_max_ms double precision NOT NULL,
    PRIMARY KEY (bucket, broker_id)
);

-- Totals since the cell was made, of minutes that were written: they survive the purge and every restart.
CREATE TABLE queen.cell_totals (
    singleton     boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    push_requests bigint NOT NULL DEFAULT 0,
    push_messages bigint NOT NULL DEFAULT 0,
    pop_requests  bigint NOT NULL DEFAULT 0,
    pop_messages  bigint NOT NULL DEFAULT 0,
    pop_empty     bigint NOT NULL DEFAULT 0,
    ack_requests  bigint NOT NULL DEFAULT 0,
    ack_success   bigint NOT NULL DEFAULT 0,
    ack_failed    bigint NOT NULL DEFAULT 0,
    dead_letters  bigint NOT NULL DEFAULT 0,
    transactions  bigint NOT NULL DEFAULT 0,
    db_errors     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

INSERT INTO queen.cell_totals DEFAULT VALUES;
