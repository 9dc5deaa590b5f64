"""A broker on Postgres, and a recorder that keeps what it was called with."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from faststream_outbox import ConstantRetry, MetricsRecorder, OutboxBroker
from tests.backends import PostgresBackend

SOON = ConstantRetry(delay_seconds=0.01, max_attempts=2, jitter_factor=0.0)
# The events that close a dispatch.
ENDS = ("acked", "nacked_retried", "nacked_terminal", "lease_lost", "dispatch_abandoned")


class Events:
    """Keeps each event, and passes it on."""

    def __init__(self, *recorders: MetricsRecorder, backlog_interval: float | None = None) -> None:
        self.recorded: list[tuple[str, dict[str, Any]]] = []
        self.backlog_interval = backlog_interval
        self._recorders = recorders
        self._changed = asyncio.Event()

    def __call__(self, event: str, tags: Mapping[str, Any]) -> None:
        self.recorded.append((event, dict(tags)))
        for recorder in self._recorders:
            recorder(event, tags)
        self._changed.set()

    def named(self, event: str) -> list[dict[str, Any]]:
        return [tags for name, tags in self.recorded if name == event]

    async def wait_for(self, event: str, count: int = 1, **tags: Any) -> None:
        def found() -> int:
            return sum(tags.items() <= each.items() for each in self.named(event))

        async with asyncio.timeout(60):
            while found() < count:
                self._changed.clear()
                await self._changed.wait()


def make_broker(postgres: PostgresBackend, recorder: MetricsRecorder | None = None, **options: Any) -> OutboxBroker:
    return OutboxBroker(
        postgres.engine,
        outbox_table=postgres.outbox_table,
        dlq_table=postgres.dlq_table,
        metrics_recorder=recorder,
        **options,
    )


@asynccontextmanager
async def running(broker: OutboxBroker) -> AsyncIterator[None]:
    await broker.start()
    try:
        yield
    finally:
        async with asyncio.timeout(30):
            await broker.stop()


async def publish(
    postgres: PostgresBackend, broker: OutboxBroker, bodies: Iterable[Any], queue: str = "orders"
) -> None:
    async with postgres.transaction() as session:
        for body in bodies:
            await broker.publish(body, queue=queue, session=session)


async def stop_during_a_handler(postgres: PostgresBackend, broker: OutboxBroker) -> None:
    """Stop a broker whose handler of queue `orders` never ends."""
    started = asyncio.Event()

    @broker.subscriber("orders")
    async def handle(_number: int) -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(broker):
        await publish(postgres, broker, [1])
        async with asyncio.timeout(60):
            await started.wait()
