-- What the database itself must know of encryption at rest: docs/design/encryption.md.
-- Why: a flag on the queue alone would be read by brokers at different times, and a push that is under way while the flag
-- is set would store plaintext afterwards. On the partition row, which every push locks and reads anyway, the flag is seen
-- by the very next push and costs no look-up: queen.push_bundle refuses a plaintext segment under the lock.
-- Locks: ACCESS EXCLUSIVE on log_partitions for milliseconds (the defaults are constants), then row locks on the
-- partitions of queues whose encryptionEnabled is set already. Back out: set both columns to false; brokers then encrypt
-- nothing new and still read what is encrypted.
-- +goose Up
ALTER TABLE queen.log_partitions
    -- Plaintext is refused. Always equal to the queue's encryption_enabled: queen.set_encryption moves both at once.
    ADD COLUMN encrypted boolean NOT NULL DEFAULT false,
    -- Encrypted messages may be in the log: encrypted is or was true, or one was moved here. Claims do not commit for such a partition
    -- under auto ack, since a message that cannot be decrypted must not be passed over.
    ADD COLUMN sealed boolean NOT NULL DEFAULT false;

UPDATE queen.log_partitions p SET encrypted = true, sealed = true
FROM queen.queues q WHERE q.id = p.queue_id AND q.encryption_enabled;

-- These get a last parameter with a default; their new text is among the routines. A broker of the version before calls
-- them without it, which means plaintext: it goes on working for queues that are not encrypted, and is refused by others.
DROP FUNCTION IF EXISTS queen.push_bundle(bool, bigint[], integer[], bigint[], bigint[], bigint[], uuid[], bytea[], bytea[]);
DROP FUNCTION IF EXISTS queen.move_letters(uuid, uuid, bigint, bigint, uuid[], bigint, bigint, bigint, bigint, bytea, bytea);
DROP FUNCTION IF EXISTS queen.transact(
    uuid, boolean, uuid[], bigint[], integer[], bigint[], bigint[], bigint[], uuid[], bytea[], bytea[], boolean[],
    uuid[], uuid[], text[], boolean[], uuid[], bigint[], bigint[], bigint[], bigint[], integer[],
    integer[], integer[], bytea[], integer[], bigint, integer[], bigint[], uuid[], uuid[], text[], bytea[],
    text[], timestamptz[]);
