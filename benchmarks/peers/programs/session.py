"""An `AsyncSession` alone: a transaction with one plain INSERT and no notification; nothing of ours.

What ours adds to SQLAlchemy is left out, so nothing that publishes through a session can be much quicker.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Never

from bare import Bare
from serving import QUEUE, Message, Publisher, serve
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

_INSERT = "INSERT INTO {table} (queue, payload) VALUES ($1, $2) RETURNING id"
_INSERT_MANY = "INSERT INTO {table} (queue, payload) SELECT $1, unnest($2::bytea[]) RETURNING id"


class SessionAlone(Bare):
    """The table of the bare loop."""

    package = "sqlalchemy"
    module = "sqlalchemy"

    @asynccontextmanager
    async def publishing(self, clients: int) -> AsyncIterator[Publisher]:
        """Make sessions for as many clients."""
        url = make_url(self.dsn).set(drivername="postgresql+asyncpg")
        engine = create_async_engine(url, pool_size=clients, max_overflow=0)
        try:
            yield PlainPublisher(self.table, engine)
        finally:
            await engine.dispose()


class PlainPublisher(Publisher):
    """Inserts rows, and announces none."""

    def __init__(self, table: str, engine: AsyncEngine) -> None:
        self._sessions = async_sessionmaker(engine)
        self._insert = _INSERT.format(table=table)
        self._insert_many = _INSERT_MANY.format(table=table)

    async def one(self, body: Message) -> None:
        """Insert in a session of its own."""
        await self._run(self._insert, json.dumps(body).encode())

    async def many(self, bodies: Sequence[Message]) -> None:
        """Insert a batch in a session of its own."""
        await self._run(self._insert_many, [json.dumps(body).encode() for body in bodies])

    async def _run(self, statement: str, payload: bytes | list[bytes]) -> None:
        async with self._sessions.begin() as session:
            connection = await session.connection()
            (await connection.exec_driver_sql(statement, (QUEUE, payload))).all()

    async def commit(self, body: Message, delay: float | None) -> Never:
        """Refuse: nobody would be woken."""
        raise NotImplementedError


if __name__ == "__main__":
    serve(SessionAlone)
