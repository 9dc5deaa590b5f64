"""The three approaches to order as they were first written down, and what they need of the table."""

from typing import Final

# The table of those days, but for the names of its columns: rows are deleted when they are done.
COLUMNS: Final = (
    "ALTER TABLE outbox ADD status text NOT NULL DEFAULT 'NEW', ADD locked_at timestamptz, ADD worker_id text",
    "CREATE INDEX idx_outbox_new_entity_id ON outbox (entity_key, id) WHERE status = 'NEW'",
)
SHARDS: Final = (
    *COLUMNS,
    "ALTER TABLE outbox ADD shard_id smallint GENERATED ALWAYS AS (abs(hashtext(entity_key)) % 16) STORED",
    "CREATE INDEX idx_outbox_shard_new ON outbox (shard_id, entity_key) WHERE status = 'NEW'",
)

ADVISORY_LOCKS: Final = """
WITH candidate_entities AS (
    SELECT DISTINCT entity_key
    FROM outbox
    WHERE status = 'NEW'
    ORDER BY entity_key  -- Deterministic, allows index scan
    LIMIT 200            -- Over-fetch to account for lock failures
),
locked_entities AS (
    SELECT entity_key
    FROM candidate_entities
    WHERE pg_try_advisory_xact_lock(1, hashtext(entity_key))  -- namespace=1
    LIMIT 50             -- Actual batch size
)
UPDATE outbox o
SET status = 'PROCESSING',
    locked_at = NOW(),
    worker_id = $1  -- Optional: for debugging
FROM locked_entities le
WHERE o.entity_key = le.entity_key
  AND o.status = 'NEW'
RETURNING o.*
"""

SKIP_LOCKED: Final = """
WITH locked_first_rows AS (
    -- Lock ONE row per entity (the one with lowest id)
    SELECT DISTINCT ON (entity_key) id, entity_key
    FROM outbox
    WHERE status = 'NEW'
    ORDER BY entity_key, id
    FOR UPDATE SKIP LOCKED
),
batch_entities AS (
    SELECT entity_key
    FROM locked_first_rows
    LIMIT 50
)
UPDATE outbox o
SET status = 'PROCESSING',
    locked_at = NOW()
FROM batch_entities be
WHERE o.entity_key = be.entity_key
  AND o.status = 'NEW'
RETURNING o.*
"""

# Postgres refuses to lock what is distinct: the least that it accepts is to choose first, and to lock what was chosen.
SKIP_LOCKED_ACCEPTED: Final = SKIP_LOCKED.replace(
    """    SELECT DISTINCT ON (entity_key) id, entity_key
    FROM outbox
    WHERE status = 'NEW'
    ORDER BY entity_key, id
    FOR UPDATE SKIP LOCKED""",
    """    SELECT id, entity_key FROM outbox WHERE id IN (
        SELECT DISTINCT ON (entity_key) id
        FROM outbox
        WHERE status = 'NEW'
        ORDER BY entity_key, id)
    FOR UPDATE SKIP LOCKED""",
)

HASH_SHARDS: Final = """
UPDATE outbox
SET status = 'PROCESSING',
    locked_at = NOW()
WHERE id IN (
    SELECT id
    FROM outbox
    WHERE status = 'NEW'
      AND shard_id = $1
    ORDER BY entity_key, id
    LIMIT 500
    FOR UPDATE SKIP LOCKED  -- Only needed if multiple goroutines per worker
)
RETURNING *
"""

# What the design adds: another place to begin, and a job that frees rows of workers that died.
RANDOM_START: Final = ADVISORY_LOCKS.replace(
    "    LIMIT 200 ",
    "    OFFSET (random() * 100)::int  -- Random starting point, still uses index\n    LIMIT 200 ",
)
RESET_STALE: Final = """
UPDATE outbox
SET status = 'NEW', locked_at = NULL
WHERE status = 'PROCESSING'
  AND locked_at < NOW() - INTERVAL '5 minutes'
"""
