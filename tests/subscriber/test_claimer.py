"""When a claimer wakes: at a call, or when a row is due that nobody else will tell it of."""

import asyncio
from collections import Counter

from faststream_outbox.storage import Ack, NewRow, OutboxRow, Outcome, Retry
from tests.backends import Backend
from tests.subscriber.pipelines import fill, running, until_empty


async def test_a_retry_comes_when_it_is_due_however_long_the_claimer_meant_to_sleep(backend: Backend) -> None:
    await fill(backend, 1)
    again = asyncio.Event()

    async def handle(row: OutboxRow) -> Outcome:
        if row.attempts_count == 0:
            return Retry(0.2, 1)
        again.set()
        return Ack()

    async with running(backend, handle, min_interval=30, max_interval=30), asyncio.timeout(5):
        await again.wait()


async def test_the_earliest_of_many_retries_hides_none_of_the_others(backend: Backend) -> None:
    await fill(backend, 5)
    seen: Counter[bytes] = Counter()
    all_again = asyncio.Event()

    async def handle(row: OutboxRow) -> Outcome:
        seen[row.payload] += 1
        if row.attempts_count == 0:
            return Retry(0.5 - int(row.payload) / 10, 1)
        if seen.total() == 10:
            all_again.set()
        return Ack()

    async with running(backend, handle, min_interval=30, max_interval=30), asyncio.timeout(5):
        await all_again.wait()
    assert set(seen.values()) == {2}


async def test_rows_without_a_key_leave_room_for_those_with_one(backend: Backend) -> None:
    await fill(backend, 500)
    await backend.insert(NewRow("q", b"ordered", key="a"))
    handled: list[bytes] = []

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.payload)
        return Ack()

    async with running(backend, handle, claim_batch_size=10):
        await until_empty(backend)
    assert handled.index(b"ordered") < 300, "it was handled when there were no others left"
