"""What one would write without a framework: leases on bare asyncpg, a few lines, statements of its own."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import asyncpg

from benchmarks.measure import Usage
from benchmarks.scenario import Bench

BATCH: Final = 500
# Batches that wait between the two connections: one is deleted, one waits, one is claimed.
_PREFETCHED: Final = 1

# A table as it is usually made: what is free and what is leased each have an index of their own, so a claim moves a row
# from one to the other and touches every index.
USUAL_TABLE: Final = """
CREATE TABLE {table} (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, payload bytea NOT NULL, headers jsonb,
  next_attempt_at timestamptz NOT NULL DEFAULT now(), acquired_at timestamptz, acquired_token uuid,
  deliveries_count bigint NOT NULL DEFAULT 0);
CREATE INDEX ON {table} (queue, next_attempt_at) WHERE acquired_token IS NULL;
CREATE INDEX ON {table} (queue, acquired_at) WHERE acquired_token IS NOT NULL"""
_USUAL_CLAIM: Final = """
UPDATE {table} SET acquired_token = $2, acquired_at = now(), deliveries_count = deliveries_count + 1
 WHERE id = ANY (ARRAY(
   SELECT id FROM {table} WHERE queue = $1 AND next_attempt_at <= now() AND acquired_token IS NULL
    ORDER BY next_attempt_at LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING id, payload, headers"""
# The same on our table, whose claims touch no index (HOT).
_OUR_CLAIM: Final = """
UPDATE {table} SET acquired_token = $2, acquired_at = now(), deliveries_count = deliveries_count + 1,
       lease_expires_at = now() + interval '1 minute'
 WHERE id = ANY (ARRAY(
   SELECT id FROM {table}
    WHERE queue = $1 AND entity_key IS NULL AND next_attempt_at <= now() AND lease_expires_at <= now()
    ORDER BY next_attempt_at, id LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING id, payload, headers"""
_DELETE: Final = "DELETE FROM {table} WHERE id = ANY ($1::bigint[]) AND acquired_token = $2"


class BareLoop:
    """Drains a queue: claims under a token, does nothing with the rows, deletes those that still have the token."""

    def __init__(self, bench: Bench, table: str, queue: str, *, usual: bool = False, decode: bool = False) -> None:
        self._bench = bench
        self._queue = queue
        self._claim_text = (_USUAL_CLAIM if usual else _OUR_CLAIM).format(table=table)
        self._delete_text = _DELETE.format(table=table)
        self._handle: Callable[[list[Any]], object] = _decode if decode else len

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
        self._handle(records)
        self._bench.meter.statements += 1
        await connection.execute(self._delete_text, [record["id"] for record in records], token)


def _decode(records: list[Any]) -> object:
    return [json.loads(record["payload"]) for record in records]
