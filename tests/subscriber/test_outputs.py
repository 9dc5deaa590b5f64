"""A chain of handlers: what one puts out is written with the end of its input, and announced."""

import asyncio
from collections.abc import Iterable

from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.storage import Ack, NewRow, OutboxRow, Outcome
from tests.backends import Backend
from tests.subscriber.pipelines import Reports, fill, one_by_one


async def test_outputs_are_announced_and_wake_their_own_subscriber(backend: Backend) -> None:
    announced: list[set[str]] = []
    reports, done = Reports(), asyncio.Event()

    def announce(queues: Iterable[str]) -> None:
        announced.append(set(queues))
        raise OSError("nobody hears this")

    async def handle(row: OutboxRow) -> Outcome:
        if row.queue == "q":
            return Ack((NewRow("next", row.payload), NewRow("elsewhere", row.payload)))
        done.set()
        return Ack()

    pipeline = Pipeline(
        backend.store,
        ["q", "next"],
        one_by_one(handle),
        options=SubscriberOptions(min_fetch_interval=30, max_fetch_interval=30),
        monitor=reports,
        announce=announce,
    )
    await fill(backend, 1)
    pipeline.start()
    async with asyncio.timeout(5):
        await done.wait()
    await pipeline.stop(5)
    assert announced == [{"next", "elsewhere"}]
    assert [row.queue for row in await backend.rows()] == ["elsewhere"]
    assert len(reports.named("announce_failed")) == 1
    assert pipeline.alive is False
