"""What one would write without a framework: leases on bare asyncpg, a few lines, statements of its own."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import asyncpg

from benchmarks.measure import Usage
from benchmarks.scenario import Bench

BATCH: Final = 500
# Batches that wait between the two connections: one is deleted, one waits, one is claimed.
_PREFETCHED: Final = 1

# A table as outboxes with leases usually have it: what is free and what is leased each have an index of their own, so a
# claim moves a row from one to the other and touches every index.
USUAL_TABLE: Final = """
CREATE TABLE {table} (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, payload bytea NOT NULL, headers jsonb,
  attempts_count bigint NOT NULL DEFAULT 0, deliveries_count bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT now(), next_attempt_at timestamptz NOT NULL DEFAULT now(),
  first_attempt_at timestamptz, last_attempt_at timestamptz, acquired_at timestamptz, acquired_token uuid,
  timer_id text);
CREATE INDEX ON {table} (queue, next_attempt_at, id) WHERE acquired_token IS NULL;
CREATE INDEX ON {table} (queue, next_attempt_at, id) WHERE acquired_token IS NOT NULL;
CREATE UNIQUE INDEX ON {table} (queue, timer_id) WHERE timer_id IS NOT NULL"""
_USUAL_CLAIM: Final = """
UPDATE {table} SET acquired_token = $2, acquired_at = now(), deliveries_count = deliveries_count + 1
 WHERE id = ANY (ARRAY(
   SELECT id FROM {table} WHERE queue = $1 AND next_attempt_at <= now() AND acquired_token IS NULL
    ORDER BY next_attempt_at, id LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING """
# The same on our table, whose claims touch no index (HOT); with no more than a handler needs, or with whole rows.
_OUR_CLAIM: Final = """
UPDATE {table} SET acquired_token = $2, acquired_at = now(), deliveries_count = deliveries_count + 1,
       lease_expires_at = now() + interval '1 minute'
 WHERE id = ANY (ARRAY(
   SELECT id FROM {table}
    WHERE queue = $1 AND entity_key IS NULL AND next_attempt_at <= now() AND lease_expires_at <= now()
    ORDER BY next_attempt_at, id LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING """
_DELETE: Final = "DELETE FROM {table} WHERE id = ANY ($1::bigint[]) AND acquired_token = $2"
# The same for rows whose claims need not be one and the same, and telling which of them still were held.
_DELETE_EACH: Final = """
DELETE FROM {table} o USING unnest($1::bigint[], $2::uuid[]) AS l(id, token)
 WHERE o.id = ANY ($1::bigint[]) AND o.id = l.id AND o.acquired_token = l.token RETURNING o.id"""


@dataclass(frozen=True, slots=True)
class Way:
    """How a loop is written: on which table, what of a row it asks for, whether it decodes bodies."""

    usual_table: bool = False
    whole_rows: bool = False
    decode: bool = False

    @property
    def claim(self) -> str:
        """The statement that claims."""
        claim = _USUAL_CLAIM if self.usual_table else _OUR_CLAIM
        return claim + ("*" if self.whole_rows else "id, payload, headers")

    @property
    def delete(self) -> str:
        """The statement that deletes."""
        return _DELETE_EACH if self.whole_rows else _DELETE


class BareLoop:
    """Drains a queue: claims under a token, does nothing with the rows, deletes those that still have the token."""

    def __init__(self, bench: Bench, table: str, queue: str, way: Way) -> None:
        self._bench = bench
        self._queue = queue
        self._way = way
        self._claim_text = way.claim.format(table=table)
        self._delete_text = way.delete.format(table=table)

    async def in_turn(self) -> Usage:
        """Claim, handle and delete, one after the other on one connection."""
        return await self._drain(self._in_turn)

    async def side_by_side(self) -> Usage:
        """Claim on one connection while another deletes what was claimed before."""
        return await self._drain(self._side_by_side)

    async def _drain(self, loop: Callable[[Any, Any], Awaitable[None]]) -> Usage:
        dsn = self._bench.database.dsn
        connections = [await asyncpg.connect(dsn), await asyncpg.connect(dsn)]
        try:
            before = await self._bench.meter.read()
            await loop(*connections)
            return await self._bench.meter.since(before)
        finally:
            for connection in connections:
                await connection.close()

    async def _in_turn(self, connection: Any, _: Any) -> None:
        while batch := await self._claim(connection):
            await self._finish(connection, *batch)

    async def _side_by_side(self, claims: Any, deletes: Any) -> None:
        waiting: asyncio.Queue[tuple[Any, list[Any]] | None] = asyncio.Queue(_PREFETCHED)

        async def claim_all() -> None:
            while batch := await self._claim(claims):
                await waiting.put(batch)
            await waiting.put(None)

        async def finish_all() -> None:
            while batch := await waiting.get():
                await self._finish(deletes, *batch)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(claim_all())
            tasks.create_task(finish_all())

    async def _claim(self, connection: Any) -> tuple[Any, list[Any]] | None:
        token = uuid4()
        self._bench.meter.statements += 1
        records = await connection.fetch(self._claim_text, self._queue, token, BATCH)
        return (token, records) if records else None

    async def _finish(self, connection: Any, token: Any, records: list[Any]) -> None:
        if self._way.decode:
            [json.loads(record["payload"]) for record in records]
        self._bench.meter.statements += 1
        ids = [record["id"] for record in records]
        tokens = [record["acquired_token"] for record in records] if self._way.whole_rows else token
        await connection.fetch(self._delete_text, ids, tokens)
