"""A running pipeline, and a monitor that keeps what is reported to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from faststream_outbox.engine.dispatch.dispatcher import Handle as HandleRows
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import NewRow, OutboxRow, Outcome, Settlement
from tests.backends import Backend

Handle = Callable[[OutboxRow], Awaitable[Outcome]]


class Reports(Monitor):
    """Keeps logs and metrics."""

    def __init__(self) -> None:
        super().__init__(get_logger=lambda: self, recorder=self._keep)
        self.logs: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, dict[str, Any]]] = []

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Mapping[str, Any] | None = None) -> None:
        self.logs.append({"message": msg, "level": level, "error": exc_info, **(extra or {})})

    def _keep(self, event: str, tags: Mapping[str, Any]) -> None:
        self.metrics.append((event, dict(tags)))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [found for found in self.logs if found["event"] == event]

    def counted(self, event: str) -> list[dict[str, Any]]:
        return [tags for name, tags in self.metrics if name == event]


def one_by_one(handle: Handle) -> HandleRows:
    """Make what a pipeline takes of something that handles one row."""

    async def handle_rows(rows: Sequence[OutboxRow]) -> list[Settlement]:
        [row] = rows
        return [Settlement(row.lease, await handle(row))]

    return handle_rows


@asynccontextmanager
async def running(
    backend: Backend, handle: Handle, *queues: str, reports: Monitor | None = None, **options: Any
) -> AsyncIterator[Pipeline]:
    options = {"min_fetch_interval": 0.01, "max_fetch_interval": 0.1, **options}
    pipeline = Pipeline(
        backend.store,
        queues or ("q",),
        one_by_one(handle),
        options=SubscriberOptions(**options),
        monitor=reports or Reports(),
    )
    pipeline.start()
    try:
        async with asyncio.timeout(120):
            yield pipeline
    finally:
        await pipeline.stop(10)


async def fill(backend: Backend, count: int, queue: str = "q") -> list[int]:
    async with backend.transaction() as session:
        return await backend.store.insert_many(session, [NewRow(queue, b"%d" % n) for n in range(count)])
