"""Where a broker must behave alike: in the test broker, in the test broker with loops, on Postgres."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import OutboxBroker, TestOutboxBroker, make_dlq_table, make_outbox_table
from faststream_outbox.storage import OutboxRow
from tests.backends import PostgresBackend
from tests.waiting import until

T = TypeVar("T")
PATIENCE = 60.0


async def soon(awaitable: Awaitable[T]) -> T:
    """Wait for what is about to happen; fail rather than hang."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


class Received:
    """What handlers got, in the order in which they did."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, value: Any) -> None:
        self._queue.put_nowait(value)

    async def next(self) -> Any:
        return await soon(self._queue.get())

    async def take(self, count: int) -> list[Any]:
        return [await self.next() for _ in range(count)]

    @property
    def empty(self) -> bool:
        return self._queue.empty()


class Environment(ABC):
    """One way to run a broker in a test."""

    delivers_within_publish = False

    @abstractmethod
    def broker(self, **options: Any) -> OutboxBroker: ...

    @abstractmethod
    def running(self, *brokers: OutboxBroker) -> Any:
        """Run brokers, as an async context manager."""

    @abstractmethod
    async def publish(self, publish: Any, *bodies: Any, **options: Any) -> Any:
        """Call `publish`, a method of a broker or a publisher, in a transaction of its own."""

    @abstractmethod
    async def rows(self) -> Sequence[OutboxRow]: ...

    async def drained(self) -> None:
        """Wait until every row was handled."""
        await until(self.rows, lambda rows: not rows)


class MemoryEnvironment(Environment):
    def __init__(self, *, run_loops: bool, **options: Any) -> None:
        """Run brokers in memory; `options` are more arguments for `TestOutboxBroker`."""
        metadata = MetaData()
        self._tables = {"outbox_table": make_outbox_table(metadata), "dlq_table": make_dlq_table(metadata)}
        self._options = {"run_loops": run_loops, "connect_only": False, **options}
        self.delivers_within_publish = not run_loops
        self._client: Any = None

    def broker(self, **options: Any) -> OutboxBroker:
        return OutboxBroker(**(self._tables | options))

    @asynccontextmanager
    async def running(self, *brokers: OutboxBroker) -> AsyncIterator[None]:
        test_broker: Any = TestOutboxBroker(*brokers, **self._options)
        async with test_broker:
            self._client = test_broker.fake_client
            yield

    async def publish(self, publish: Any, *bodies: Any, **options: Any) -> Any:
        return await publish(*bodies, **options)

    async def rows(self) -> Sequence[OutboxRow]:
        return list(self._client.rows)


class PostgresEnvironment(Environment):
    def __init__(self, engine: AsyncEngine) -> None:
        self.backend = PostgresBackend(engine)
        self.engine = engine

    def broker(self, **options: Any) -> OutboxBroker:
        tables = {"outbox_table": self.backend.outbox_table, "dlq_table": self.backend.dlq_table}
        return OutboxBroker(self.engine, **(tables | options))

    @asynccontextmanager
    async def running(self, *brokers: OutboxBroker) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for broker in brokers:
                await stack.enter_async_context(broker)
                await broker.start()
            yield

    async def publish(self, publish: Any, *bodies: Any, **options: Any) -> Any:
        async with self.backend.transaction() as session:
            return await publish(*bodies, session=session, **options)

    async def rows(self) -> Sequence[OutboxRow]:
        return await self.backend.rows()
