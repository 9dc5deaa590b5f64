"""PgQueuer. Options of a worker are those of its `run`, with seconds where that has a timedelta.

Handlers get bytes, so one that does nothing decodes nothing.
"""

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, Job, PgQueuer, Queries, RetryRequested
from serving import QUEUE, Contestant, FailureOnPurpose, Message, Publisher, Work, serve, task_of

_DURATIONS = ("dequeue_timeout", "heartbeat_timeout", "log_aggregation_interval")


class PgQueuerContestant(Contestant):
    """A PgQueuer with one entry point, on one connection, as its documentation has it."""

    package = "pgqueuer"
    module = "pgqueuer"

    async def create(self) -> None:
        """Install its schema anew."""
        connection = await asyncpg.connect(self.dsn)
        try:
            queries = Queries(AsyncpgDriver(connection))
            if await queries.schema_is_installed():
                await queries.uninstall()
            await queries.install()
        finally:
            await connection.close()

    @asynccontextmanager
    async def working(self, work: Work) -> AsyncIterator[None]:
        """Run a queue manager."""
        options: dict[str, Any] = dict(work.options)
        for name in _DURATIONS:
            if name in options:
                options[name] = timedelta(seconds=options[name])
        connection = await asyncpg.connect(self.dsn)
        try:
            manager = PgQueuer(AsyncpgDriver(connection))
            self._register(manager, work)
            async with task_of(manager.run(**options), manager.shutdown.set):
                yield
        finally:
            await connection.close()

    @staticmethod
    def _register(manager: PgQueuer, work: Work) -> None:
        notes, retry_after = work.notes, timedelta(seconds=work.retry_after)
        if work.watched:

            @manager.entrypoint(QUEUE)
            async def see(job: Job) -> None:
                try:
                    notes.see(json.loads(job.payload or b"")["id"])
                except FailureOnPurpose as error:
                    raise RetryRequested(retry_after) from error
        else:

            @manager.entrypoint(QUEUE)
            async def count(_: Job) -> None:
                notes.count()

    @asynccontextmanager
    async def publishing(self, clients: int) -> AsyncIterator[Publisher]:
        """Make a pool of as many connections."""
        async with asyncpg.create_pool(self.dsn, min_size=clients, max_size=clients) as pool:
            yield PoolPublisher(pool)


class PoolPublisher(Publisher):
    """Publishes through a pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._queries = Queries(AsyncpgPoolDriver(pool))

    async def one(self, body: Message) -> None:
        """Publish with a statement that commits itself."""
        await self._queries.enqueue(QUEUE, json.dumps(body).encode())

    async def many(self, bodies: Sequence[Message]) -> None:
        """Publish a batch with a statement that commits itself."""
        payloads = [json.dumps(body).encode() for body in bodies]
        await self._queries.enqueue([QUEUE] * len(bodies), payloads, [0] * len(bodies))

    async def commit(self, body: Message, delay: float | None) -> float:
        """Publish in a transaction, perhaps to be executed later."""
        later = None if delay is None else timedelta(seconds=delay)
        async with self._pool.acquire() as connection, connection.transaction():
            queries = Queries(AsyncpgDriver(connection))
            await queries.enqueue(QUEUE, json.dumps(body).encode(), execute_after=later)
            return time.monotonic()


if __name__ == "__main__":
    serve(PgQueuerContestant)
