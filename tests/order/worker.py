"""A process with a real broker: its handlers take their time, fail, block the event loop, and are killed."""

import asyncio
import time
from typing import Any, Final

import psycopg
from sqlalchemy import make_url, select
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import ConstantRetry, OutboxBroker
from faststream_outbox.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from faststream_outbox.storage import PostgresStore
from faststream_outbox.storage.nodes import GRACE
from tests.order.recording import record
from tests.order.settings import QUEUE, START_SLACK, OrderSettings
from tests.soak.encoding import uid
from tests.soak.history import Ended, Started
from tests.soak.process import SoakProcess
from tests.soak.settings import Settings

WORKERS: Final = 4
MAX_RECORDS: Final = 10
CONNECTIONS: Final = 12
STOP_SECONDS: Final = 5.0
# Of what does not end well, the share that is tried again.
FAILURES: Final = 0.8


class FailedError(Exception):
    """What a handler raises that fails."""


class OrderWorker(SoakProcess):
    """One subscriber, whose handler and driver depend on the number of the process."""

    settings: OrderSettings

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        assert isinstance(settings, OrderSettings)
        self.settings = settings
        self._number = int(name.removeprefix("worker"))

    async def work(self) -> None:
        """Consume until told to stop."""
        url = self.settings.url if self._number % 3 else self.settings.url.replace("asyncpg", "psycopg")
        engine = create_async_engine(url, pool_size=CONNECTIONS)
        broker = self.settings.broker(engine, graceful_timeout=STOP_SECONDS)
        store = broker.client.store
        assert isinstance(store, PostgresStore)
        self.node = store.nodes.own
        record(store, self.history)
        self.subscribe(broker)

        async def consume() -> None:
            await self.begin(broker)
            self.worked("consume")
            await self._wait_for_the_end()

        await self.keep("consume", consume, until=lambda: self.over)
        await self.end(broker)
        await engine.dispose()

    async def begin(self, broker: OutboxBroker) -> None:
        """Start to consume."""
        await broker.start()

    async def end(self, broker: OutboxBroker) -> None:
        """Stop to consume."""
        await broker.stop()

    async def _wait_for_the_end(self) -> None:
        try:
            async with asyncio.timeout(max(0.0, self.settings.until - time.monotonic())):
                await self.stopping.wait()
        except TimeoutError:
            return

    def subscribe(self, broker: OutboxBroker) -> None:
        """Add the handler that is this process's."""
        options: dict[str, Any] = {
            "max_workers": WORKERS,
            "lease_ttl_seconds": self.settings.lease_seconds,
            "retry_strategy": ConstantRetry(delay_seconds=0.05),
            # Wake-ups come from the producers' processes, and are lost with their connections.
            "min_fetch_interval": 0.05,
            "max_fetch_interval": 0.3,
            "ordering": self.settings.ordering(self._number),
        }
        name = self.settings.handlers[self._number % len(self.settings.handlers)]
        if name.startswith("many"):
            options |= {"batch": True, "max_records": MAX_RECORDS}
        broker.subscriber(QUEUE, **options)(getattr(self, name))

    async def one(self, message: OutboxMessage) -> None:
        """Handle a message."""
        await self.handle(message)

    async def many(self, batch: OutboxBatchMessage) -> None:
        """Handle messages one after the other, in one call."""
        await self.handle_all(batch)

    async def one_with_session(self, message: OutboxMessage, session: OutboxSession) -> None:
        """Handle a message in the transaction that deletes it."""
        await session.execute(select(1))
        await self.handle(message)

    async def many_with_session(self, batch: OutboxBatchMessage, session: OutboxSession) -> None:
        """Handle messages in the transaction that deletes them."""
        await session.execute(select(1))
        await self.handle_all(batch)

    async def handle_all(self, batch: OutboxBatchMessage) -> None:
        """Handle the messages of a call."""
        for number, message in enumerate(batch.messages):
            await self.handle(message, behind=number > 0)

    async def handle(self, message: OutboxMessage, *, behind: bool = False) -> None:
        """Pretend to handle a message; one that is rejected is done as well."""
        row = message.raw_message
        name, token = uid(row), row.lease.token.hex
        self.history.write(Started, name, token, behind)
        await self.take_time()
        draw, fails = 1.0 if self.calm.is_set() else self.rng.random(), self.settings.fails
        self.history.write(Ended, name, token, draw >= fails * FAILURES)
        if draw < fails * FAILURES:
            raise FailedError
        if draw < fails:
            await message.reject()

    async def take_time(self) -> None:
        """Take a moment, or longer than a lease."""
        slow, draw, lease = self.settings.slow, self.rng.random(), self.settings.lease_seconds
        if self.calm.is_set() or draw > slow:
            await self.pause(self.rng.uniform(0.0, self.settings.handler_seconds))
        elif draw > slow * self.settings.blocks:
            await self.pause(lease * self.rng.uniform(1.2, 2.0))  # renewed meanwhile
        else:
            time.sleep(lease * self.rng.uniform(1.2, 2.5))  # noqa: ASYNC251 - nothing is renewed meanwhile


class StallingWorker(OrderWorker):
    """Stalls when all messages of a call are handled, until somebody else has got the key and is busy with its head."""

    async def many(self, batch: OutboxBatchMessage) -> None:
        """Handle messages, and stall; or take long, with one that somebody else has stalled with."""
        await super().many(batch)
        lease = self.settings.lease_seconds
        if len(batch.messages) > 1 and not self.calm.is_set() and self.rng.random() < self.settings.slow:
            time.sleep(lease * 2.5)  # noqa: ASYNC251 - nothing is renewed meanwhile
        elif batch.messages[0].raw_message.suspect:
            await self.pause(lease * 2.5)

    async def take_time(self) -> None:
        """Take a moment: it is calls that are slow here."""
        await self.pause(self.rng.uniform(0.0, self.settings.handler_seconds))


# Others take a process for dead after GRACE seconds, and what it starts is excused for START_SLACK seconds more.
_BLOCKED_SECONDS: Final = GRACE + START_SLACK + 1.0
# In messages: how many to handle before the first time, so that the process has its lock and rows in hand, and between.
_BLOCKED_AT_FIRST: Final = 30
_BLOCKED_EVERY: Final = 150
_CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE %s"


class BlockedWorker(OrderWorker):
    """Loses its lock while its event loop is blocked, with rows in hand; every second process only.

    When the loop runs again, the worker of the handler that blocked it comes first, before anything gives rows back.
    """

    _handled = 0

    async def take_time(self) -> None:
        """Take a moment; or lose the lock, and block the event loop until others have taken this process for dead."""
        self._handled += 1
        due = self._number % 2 and self._handled % _BLOCKED_EVERY == _BLOCKED_AT_FIRST
        if not due or self.calm.is_set() or not self._lose_lock():
            await super().take_time()
        else:
            time.sleep(_BLOCKED_SECONDS)  # noqa: ASYNC251 - as a handler would that computes

    def _lose_lock(self) -> bool:
        """Cut the connection that holds the lock; return whether there was one."""
        url = make_url(self.settings.url).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            [cut] = connection.execute(_CUT, [f"% {self.node.name} %"]).fetchone() or [0]
        return bool(cut)
