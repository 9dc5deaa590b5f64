"""How a subscriber stops: at once for new rows, in its time for those in hand, whoever asks and however often."""

import asyncio
from contextlib import suppress

import pytest

from faststream_outbox.engine import context
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.storage import Ack, MemoryStore, OutboxRow, Outcome
from tests.backends import Backend, MemoryBackend
from tests.engine.pipelines import Reports, fill, one_by_one, running
from tests.engine.slow_store import SlowBackend
from tests.waiting import until


async def ack(_row: OutboxRow) -> Outcome:
    return Ack()


async def test_stopping_twice_at_the_same_time_and_again_is_stopping_once(backend: Backend) -> None:
    await fill(backend, 20)
    started, handled = asyncio.Event(), []

    async def handle(row: OutboxRow) -> Outcome:
        started.set()
        await asyncio.sleep(0.01)
        handled.append(row.id)
        return Ack()

    async with running(backend, handle) as pipeline:
        await started.wait()
        await asyncio.gather(*(pipeline.stop(10) for _ in range(3)))
        await pipeline.stop(0)
        assert not pipeline.alive
    assert len(handled) == 20
    assert await backend.rows() == []


async def test_whoever_gives_up_waiting_does_not_end_the_drain() -> None:
    backend = MemoryBackend()
    await fill(backend, 5)
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_row: OutboxRow) -> Outcome:
        started.set()
        await go_on.wait()
        return Ack()

    async with running(backend, handle) as pipeline:
        await started.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pipeline.stop(10), 0.05)
        go_on.set()
        await pipeline.stop(10)
    assert await backend.rows() == []


async def test_stopping_before_the_start_and_starting_after_the_stop() -> None:
    pipeline = Pipeline(MemoryStore(), ["q"], one_by_one(ack))
    await pipeline.stop(5)
    with pytest.raises(RuntimeError, match="make a new one"):
        pipeline.start()


async def test_starting_twice() -> None:
    pipeline = Pipeline(MemoryStore(), ["q"], one_by_one(ack))
    pipeline.start()
    with pytest.raises(RuntimeError, match="started already"):
        pipeline.start()
    await pipeline.stop(5)
    with pytest.raises(RuntimeError, match="make a new one"):
        pipeline.start()


async def test_rows_of_a_claim_under_way_are_run() -> None:
    backend = SlowBackend()
    await fill(backend, 5)
    async with running(backend, ack) as pipeline:
        await backend.slow.claiming.wait()
        stopping = asyncio.create_task(pipeline.stop(10))
        await asyncio.sleep(0)
        backend.slow.let.set()
        await stopping
    assert await backend.rows() == []


async def test_rows_of_a_claim_that_comes_too_late_are_given_back() -> None:
    backend, reports = SlowBackend(), Reports()
    await fill(backend, 5)
    async with running(backend, ack, reports=reports) as pipeline:
        await backend.slow.claiming.wait()
        stopping = asyncio.create_task(pipeline.stop(0.05))
        await until(lambda: reports.named("drain_timeout"))
        backend.slow.let.set()
        await stopping
    rows = await backend.rows()
    assert len(rows) == 5
    assert {row.acquired_token for row in rows} == {None}
    assert {row.deliveries_count for row in rows} == {0}
    assert reports.counted("dispatched") == []


async def test_a_claim_that_fails_while_stopping_is_the_last_one() -> None:
    backend = SlowBackend()
    await fill(backend, 5)
    backend.slow.fails = True
    async with running(backend, ack) as pipeline:
        await backend.slow.claiming.wait()
        stopping = asyncio.create_task(pipeline.stop(None))
        await asyncio.sleep(0)
        backend.slow.claiming.clear()
        backend.slow.let.set()
        async with asyncio.timeout(5):
            await stopping
    assert not backend.slow.claiming.is_set()


async def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_subscriber(backend: Backend) -> None:
    await fill(backend, 3)
    started = asyncio.Event()

    async def handle(_row: OutboxRow) -> Outcome:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Ack()

    async with running(backend, handle) as pipeline:
        await started.wait()
        async with asyncio.timeout(5):
            await pipeline.stop(0.05)
    assert len(await backend.rows()) == 2, "what it said all the same was written"


async def test_a_handler_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LAST_STEP_LIMIT", 0.1)
    backend, reports = MemoryBackend(), Reports()
    await fill(backend, 1)
    started, end = asyncio.Event(), asyncio.Event()

    async def handle(_row: OutboxRow) -> Outcome:
        started.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return Ack()

    async with running(backend, handle, reports=reports) as pipeline:
        await started.wait()
        async with asyncio.timeout(5):
            await pipeline.stop(0.05)
        end.set()
        await asyncio.sleep(0)
    assert len(reports.counted("dispatch_abandoned")) == 1
    assert len(await backend.rows()) == 1, "its late outcome is not written"
