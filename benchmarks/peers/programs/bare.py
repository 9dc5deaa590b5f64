"""No framework: leases on bare asyncpg, batches of 500, claims beside deletes, LISTEN and NOTIFY; nothing retries."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
from serving import QUEUE, Contestant, Message, Publisher, Work, serve

from benchmarks.bare import BATCH, USUAL_TABLE, Way

_INSERT = """
WITH row AS (INSERT INTO {table} (queue, payload, next_attempt_at)
             VALUES ($1, $2, now() + make_interval(secs => $3)) RETURNING id)
SELECT pg_notify('{table}', '') FROM row"""
_INSERT_MANY = """
WITH rows AS (INSERT INTO {table} (queue, payload) SELECT $1, unnest($2::bytea[]) RETURNING id)
SELECT pg_notify('{table}', '') FROM (SELECT count(*) FROM rows) AS one"""
_INSERT_ALL = """
INSERT INTO {table} (queue, payload, headers, timer_id, next_attempt_at)
VALUES ($1, $2, $3::text::jsonb, $4, coalesce($5::timestamptz, now())) RETURNING id"""
_HEADERS = '{"content-type": "application/json"}'
_PREFETCHED = 1


class Bare(Contestant):
    """A loop of a few lines."""

    package = "asyncpg"
    module = "asyncpg"

    async def create(self) -> None:
        """Create the table anew."""
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(f"DROP TABLE IF EXISTS {self.table}; {USUAL_TABLE.format(table=self.table)}")
        await connection.close()

    @asynccontextmanager
    async def working(self, work: Work) -> AsyncIterator[None]:
        """Claim on one connection, which also listens, while another deletes."""
        connections = [await asyncpg.connect(self.dsn) for _ in range(2)]
        loop = Loop(self.table, work, *connections)
        tasks = [asyncio.create_task(part) for part in (loop.claim(), loop.handle())]
        try:
            yield
        finally:
            loop.news.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for connection in connections:
                await connection.close()

    @asynccontextmanager
    async def publishing(self, clients: int) -> AsyncIterator[Publisher]:
        """Make a pool of as many connections."""
        async with asyncpg.create_pool(self.dsn, min_size=clients, max_size=clients) as pool:
            yield BarePublisher(self.table, pool)


class Loop:
    """Claims, handles and deletes."""

    def __init__(self, table: str, work: Work, claims: Any, deletes: Any) -> None:
        way = Way(usual_table=True)
        self._table = table
        self._claim_text = way.claim.format(table=table)
        self._delete_text = way.delete.format(table=table)
        self._work = work
        self._claims = claims
        self._deletes = deletes
        self._waiting: asyncio.Queue[tuple[Any, list[Any]]] = asyncio.Queue(_PREFETCHED)
        self.news = asyncio.Event()

    async def claim(self) -> None:
        """Claim until there is nothing, then wait for news."""
        await self._claims.add_listener(self._table, lambda *_: self.news.set())
        while True:
            self.news.clear()
            token = uuid4()
            while records := await self._claims.fetch(self._claim_text, QUEUE, token, BATCH):
                await self._waiting.put((token, records))
                token = uuid4()
            await self.news.wait()

    async def handle(self) -> None:
        """Handle what was claimed, and delete it."""
        notes = self._work.notes
        while True:
            token, records = await self._waiting.get()
            for record in records:
                if self._work.watched:
                    notes.see(json.loads(record["payload"])["id"])
                else:
                    notes.count()
            await self._deletes.fetch(self._delete_text, [record["id"] for record in records], token)


class BarePublisher(Publisher):
    """Inserts rows and announces them."""

    def __init__(self, table: str, pool: Any) -> None:
        self._pool = pool
        self._insert = _INSERT.format(table=table)
        self._insert_many = _INSERT_MANY.format(table=table)
        self._insert_all = _INSERT_ALL.format(table=table)

    async def one(self, body: Message) -> None:
        """Insert with a statement that commits itself."""
        await self._pool.fetch(self._insert, QUEUE, json.dumps(body).encode(), 0.0)

    async def many(self, bodies: Sequence[Message]) -> None:
        """Insert a batch with a statement that commits itself."""
        await self._pool.fetch(self._insert_many, QUEUE, [json.dumps(body).encode() for body in bodies])

    async def bare(self, body: Message) -> None:
        """Insert in a transaction, with the columns that ours has, and announce nothing."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.fetch(self._insert_all, QUEUE, json.dumps(body).encode(), _HEADERS, None, None)

    async def commit(self, body: Message, delay: float | None) -> float:
        """Insert in a transaction."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.fetch(self._insert, QUEUE, json.dumps(body).encode(), delay or 0.0)
            return time.monotonic()


if __name__ == "__main__":
    serve(Bare)
