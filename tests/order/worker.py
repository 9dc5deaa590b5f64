"""A process with a real broker: its handlers take their time, fail, block the event loop, and are killed."""

import asyncio
import time
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import ConstantRetry, OutboxBroker
from faststream_outbox.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from faststream_outbox.storage import PostgresStore
from tests.order.recording import record
from tests.order.settings import QUEUE, OrderSettings
from tests.soak.history import Ended, Started
from tests.soak.process import SoakProcess
from tests.soak.settings import Settings
from tests.soak.words import uid

WORKERS: Final = 4
MAX_RECORDS: Final = 10
CONNECTIONS: Final = 12
STOP_SECONDS: Final = 5.0
# Of what does not end well, the share that is tried again.
FAILURES: Final = 0.8


class Failure(Exception):
    """What a handler raises that fails."""


class OrderWorker(SoakProcess):
    """One subscriber of the four kinds that there are, by the process's number, on the one driver or the other."""

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
        record(store, self.history)
        self.subscribe(broker)

        async def consume() -> None:
            await broker.start()
            self.worked("consume")
            await self._wait_for_the_end()

        await self.keep("consume", consume, until=lambda: self.over)
        await broker.stop()
        await engine.dispose()

    async def _wait_for_the_end(self) -> None:
        try:
            async with asyncio.timeout(max(0.0, self.settings.until - time.monotonic())):
                await self.stopping.wait()
        except TimeoutError:
            return

    def subscribe(self, broker: OutboxBroker) -> None:
        """Add one of four kinds of handler: for one message or many, with a session or without."""
        options = {
            "max_workers": WORKERS,
            "lease_ttl_seconds": self.settings.lease_seconds,
            "retry_strategy": ConstantRetry(delay_seconds=0.05),
            # Wake-ups come from the producers' processes, and are lost with their connections.
            "min_fetch_interval": 0.05,
            "max_fetch_interval": 0.3,
            **self.settings.ordering,
        }
        kind = self._number % 4
        if kind == 1:
            broker.subscriber(QUEUE, batch=True, max_records=MAX_RECORDS, **options)(self._many)
        elif kind == 2:
            broker.subscriber(QUEUE, **options)(self._one_with_session)
        elif kind == 3:
            broker.subscriber(QUEUE, batch=True, max_records=MAX_RECORDS, **options)(self._many_with_session)
        else:
            broker.subscriber(QUEUE, **options)(self._one)

    async def _one(self, message: OutboxMessage) -> None:
        await self.handle(message)

    async def _many(self, batch: OutboxBatchMessage) -> None:
        for message in batch.messages:
            await self.handle(message)

    async def _one_with_session(self, message: OutboxMessage, session: OutboxSession) -> None:
        await session.execute(select(1))
        await self.handle(message)

    async def _many_with_session(self, batch: OutboxBatchMessage, session: OutboxSession) -> None:
        await session.execute(select(1))
        for message in batch.messages:
            await self.handle(message)

    async def handle(self, message: OutboxMessage) -> None:
        """Pretend to handle a message; one that is rejected is done as well."""
        row = message.raw_message
        name, token = uid(row), row.lease.token.hex
        self.history.write(Started, name, token)
        await self._take_time()
        fate = 1.0 if self.calm.is_set() else self.rng.random() / self.settings.fails
        self.history.write(Ended, name, token, fate >= FAILURES)
        if fate < FAILURES:
            raise Failure
        if fate < 1.0:
            await message.reject()

    async def _take_time(self) -> None:
        slow, draw, lease = self.settings.slow, self.rng.random(), self.settings.lease_seconds
        if self.calm.is_set() or draw > slow:
            await self.pause(self.rng.uniform(0.0, 0.004))
        elif draw > slow * self.settings.blocks:
            await self.pause(lease * self.rng.uniform(1.2, 2.0))  # renewed meanwhile
        else:
            time.sleep(lease * self.rng.uniform(1.1, 1.8))  # noqa: ASYNC251 - nothing is renewed meanwhile
