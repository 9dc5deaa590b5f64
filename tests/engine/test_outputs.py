"""A chain of handlers: what one puts out is written with the end of its input, and announced."""

import asyncio

from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.storage import Ack, NewRow, OutboxRow, Outcome
from faststream_outbox.wakeup.wakeup import Wakeup
from tests.backends import Backend
from tests.engine.pipelines import Reports, fill, one_by_one


async def test_outputs_are_announced_and_wake_their_own_subscriber(backend: Backend) -> None:
    """A subscriber that cannot be woken is reported, and keeps no other from being woken."""
    woken: list[str] = []
    reports, done = Reports(), asyncio.Event()
    wakeup = Wakeup(backend.store, reports)

    def break_down() -> None:
        woken.append("broken")
        raise OSError("it cannot be woken")

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
        announce=wakeup.announce,
    )
    wakeup.subscribe(["next", "elsewhere"], break_down)
    wakeup.subscribe(["q", "next"], pipeline.wake)
    wakeup.subscribe(["elsewhere"], lambda: woken.append("elsewhere"))
    await fill(backend, 1)
    pipeline.start()
    async with asyncio.timeout(20):
        await done.wait()
    await pipeline.stop(5)
    assert sorted(woken) == ["broken", "elsewhere"]
    assert [row.queue for row in await backend.rows()] == ["elsewhere"]
    assert len(reports.named("announce_failed")) == 1
    assert pipeline.alive is False
