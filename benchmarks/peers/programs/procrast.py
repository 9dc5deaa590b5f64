"""Procrastinate, on psycopg. Options of a worker are those of `run_worker_async`, and `pool`: its connections at most.

It counts delays in whole seconds, so shorter ones are none.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector, RetryStrategy
from serving import QUEUE, Contestant, Message, Publisher, Work, serve, task_of

_DROP = "DROP SCHEMA IF EXISTS procrastinate_bench CASCADE; CREATE SCHEMA procrastinate_bench"
# A schema of its own, because that is what can be dropped at once.
_SEARCH_PATH = "-c search_path=procrastinate_bench"


class Procrastinate(Contestant):
    """An app with one task."""

    package = "procrastinate"
    module = "procrastinate"

    async def create(self) -> None:
        """Apply its schema anew."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute(_DROP)
        async with self._app(1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def working(self, work: Work) -> AsyncIterator[None]:
        """Run a worker."""
        options: dict[str, Any] = {"install_signal_handlers": False, **work.options}
        async with self._app(options.pop("pool", 4)).open_async() as app:
            self._register(app, work)
            worker = app._worker(**options)  # noqa: SLF001 - `run_worker_async` is stopped by signals only
            async with task_of(worker.run(), worker.stop):
                yield

    @staticmethod
    def _register(app: App, work: Work) -> None:
        notes = work.notes
        retry = RetryStrategy(wait=round(work.retry_after), max_attempts=None) if work.watched else False

        @app.task(name=QUEUE, queue=QUEUE, retry=retry)
        async def handle(**body: Any) -> None:
            if work.watched:
                notes.see(body["id"])
            else:
                notes.count()

    @asynccontextmanager
    async def publishing(self, clients: int) -> AsyncIterator[Publisher]:
        """Make a pool of as many connections."""
        async with self._app(clients).open_async() as app:
            yield AppPublisher(app)

    def _app(self, connections: int) -> App:
        logging.disable(logging.INFO)  # as quick as it can be
        connector = PsycopgConnector(
            conninfo=self.dsn, min_size=connections, max_size=connections, kwargs={"options": _SEARCH_PATH}
        )
        return App(connector=connector)


class AppPublisher(Publisher):
    """Defers jobs."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._deferrer = app.configure_task(QUEUE, queue=QUEUE)

    async def one(self, body: Message) -> None:
        """Defer with a statement that commits itself."""
        await self._deferrer.defer_async(**body)

    async def many(self, bodies: Sequence[Message]) -> None:
        """Defer a batch with a statement that commits itself."""
        await self._deferrer.batch_defer_async(*bodies)

    async def commit(self, body: Message, delay: float | None) -> float:
        """Defer in a transaction, perhaps for later."""
        schedule: Any = None if delay is None else {"seconds": delay}
        connector: Any = self._app.connector
        async with connector.pool.connection() as connection, connection.transaction():
            later = self._app.configure_task(QUEUE, queue=QUEUE, schedule_in=schedule, connection=connection)
            await later.defer_async(**body)
            return time.monotonic()


if __name__ == "__main__":
    serve(Procrastinate)
