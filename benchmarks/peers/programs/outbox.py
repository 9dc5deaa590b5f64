"""The `faststream_outbox` that is found where this runs: ours, or the original, which has the same name.

Both are used in the same way. Options of a worker: `log`, whether it logs as it does by default, and `subscriber`,
what `broker.subscriber` is given. Publishing goes through an `AsyncSession` a transaction, as applications do it.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from serving import QUEUE, Contestant, Message, Publisher, Work, serve
from sqlalchemy import Connection, MetaData, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from faststream_outbox import ConstantRetry, OutboxBroker, make_outbox_table

# Room for what the original needs with many workers: a connection for each.
_SUBSCRIBER_POOL = 40
_BROKERS_OWN = 2


class Outbox(Contestant):
    """A broker with one subscriber."""

    package = "faststream-outbox"
    module = "faststream_outbox"

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__(dsn, table)
        self._metadata = MetaData()
        self._table = make_outbox_table(self._metadata, table)

    async def create(self) -> None:
        """Create the table anew."""
        async with self._engine(1) as engine, engine.begin() as connection:
            await connection.run_sync(self._metadata.drop_all)
            await connection.run_sync(self._metadata.create_all)

    @asynccontextmanager
    async def working(self, work: Work) -> AsyncIterator[None]:
        """Run a broker."""
        logging: dict[str, Any] = {} if work.options.get("log") else {"logger": None}
        async with self._engine(_SUBSCRIBER_POOL) as engine:
            broker = OutboxBroker(engine, outbox_table=self._table, **logging)
            options: dict[str, Any] = dict(work.options.get("subscriber", {}))
            if work.retry_after:
                options["retry_strategy"] = ConstantRetry(delay_seconds=work.retry_after, max_attempts=None)
            self._subscribe(broker, work, options)
            await broker.start()
            try:
                yield
            finally:
                await broker.stop()

    @staticmethod
    def _subscribe(broker: OutboxBroker, work: Work, options: dict[str, Any]) -> None:
        notes = work.notes
        if work.watched:

            @broker.subscriber(QUEUE, **options)
            async def see(body: Message) -> None:
                notes.see(body["id"])
        else:

            @broker.subscriber(QUEUE, **options)
            async def count(_: Message) -> None:
                notes.count()

    @asynccontextmanager
    async def publishing(self, clients: int) -> AsyncIterator[Publisher]:
        """Make sessions for as many clients."""
        # As an application has it: started, with connections of its own beside those of its sessions.
        async with self._engine(clients + _BROKERS_OWN) as engine:
            broker = OutboxBroker(engine, outbox_table=self._table, logger=None)
            await broker.start()
            try:
                async with asyncpg.create_pool(self.dsn, min_size=clients, max_size=clients) as pool:
                    yield SessionPublisher(broker, engine, pool)
            finally:
                await broker.stop()

    @asynccontextmanager
    async def _engine(self, connections: int) -> AsyncIterator[AsyncEngine]:
        url = make_url(self.dsn).set(drivername="postgresql+asyncpg")
        engine = create_async_engine(url, pool_size=connections, max_overflow=0, pool_use_lifo=True)
        try:
            yield engine
        finally:
            await engine.dispose()


class SessionPublisher(Publisher):
    """Publishes through sessions."""

    def __init__(self, broker: OutboxBroker, engine: AsyncEngine, pool: Any) -> None:
        self._broker = broker
        self._pool = pool
        # The original can neither collect messages nor publish through a driver's connection.
        self._is_ours = hasattr(broker, "collect")
        self._engine = engine
        self._sessions = async_sessionmaker(engine)
        self._committed_at = 0.0

    def _note_commit(self, _connection: Connection) -> None:
        # When the session is done with what it does before, and sends COMMIT.
        self._committed_at = time.monotonic()

    async def one(self, body: Message) -> None:
        """Publish in a session of its own."""
        async with self._sessions.begin() as session:
            await self._broker.publish(body, queue=QUEUE, session=session)

    async def many(self, bodies: Sequence[Message]) -> None:
        """Publish a batch in a session of its own."""
        async with self._sessions.begin() as session:
            await self._broker.publish_batch(*bodies, queue=QUEUE, session=session)

    async def some(self, bodies: Sequence[Message]) -> None:
        """Publish a few in a session of their own: collected, or one by one."""
        async with self._sessions.begin() as session:
            if self._is_ours:
                outbox = self._broker.collect(session)
                for body in bodies:
                    outbox.publish(body, queue=QUEUE)
            else:
                for body in bodies:
                    await self._broker.publish(body, queue=QUEUE, session=session)

    async def bare(self, body: Message) -> None:
        """Publish through a connection of asyncpg, or else in a session."""
        if not self._is_ours:
            await self.one(body)
            return
        async with self._pool.acquire() as connection, connection.transaction():
            await self._broker.publish(body, queue=QUEUE, session=connection)

    async def commit(self, body: Message, delay: float | None) -> float:
        """Publish in a session of its own, perhaps as a timer."""
        # Only where it is needed: an engine with a listener costs more for each statement.
        if not event.contains(self._engine.sync_engine, "commit", self._note_commit):
            event.listen(self._engine.sync_engine, "commit", self._note_commit)
        later = None if delay is None else timedelta(seconds=delay)
        async with self._sessions.begin() as session:
            await self._broker.publish(body, queue=QUEUE, session=session, activate_in=later)
        return self._committed_at


if __name__ == "__main__":
    serve(Outbox)
