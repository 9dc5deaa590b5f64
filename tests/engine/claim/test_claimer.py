"""When a claimer wakes: at a call, or when a row is due that nobody else will tell it of."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from faststream_outbox.engine.claim.idle_wait import IdleWait
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.storage import (
    Ack,
    Claim,
    ClaimCursor,
    MemoryStore,
    NewRow,
    OutboxRow,
    Outcome,
    Retry,
    Settled,
    Settlement,
    StoreLane,
)
from faststream_outbox.storage.memory.lane import MemoryLane
from faststream_outbox.storage.ordering import RunClaim
from tests.backends import Backend, MemoryBackend
from tests.engine.pipelines import fill, one_by_one, running
from tests.engine.slow_store import SlowBackend
from tests.waiting import until, until_empty


async def test_a_retry_comes_when_it_is_due_however_long_the_claimer_meant_to_sleep(backend: Backend) -> None:
    await fill(backend, 1)
    again = asyncio.Event()

    async def handle(row: OutboxRow) -> Outcome:
        if row.attempts_count == 0:
            return Retry(0.2, 1)
        again.set()
        return Ack()

    async with running(backend, handle, min_fetch_interval=30, max_fetch_interval=30), asyncio.timeout(20):
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

    async with running(backend, handle, min_fetch_interval=30, max_fetch_interval=30), asyncio.timeout(20):
        await all_again.wait()
    assert set(seen.values()) == {2}


async def test_rows_without_a_key_leave_room_for_those_with_one(backend: Backend) -> None:
    await fill(backend, 500)
    await backend.insert(NewRow("q", b"ordered", key="a"))
    handled: list[bytes] = []

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.payload)
        return Ack()

    async with running(backend, handle, fetch_batch_size=10):
        await until_empty(backend)
    assert handled.index(b"ordered") < 300, "it was handled when there were no others left"


async def test_a_row_without_a_key_does_not_wait_for_all_those_with_one(backend: Backend) -> None:
    for number in range(300):
        await backend.insert(NewRow("q", b"ordered", key=str(number)))
    handled: list[bytes] = []

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.payload)
        if len(handled) == 20:
            await backend.insert(NewRow("q", b"keyless"))
        await asyncio.sleep(0.003)
        return Ack()

    async with running(backend, handle, fetch_batch_size=10):
        await until_empty(backend)
    assert handled.index(b"keyless") < 200, "it was handled when there were hardly any others left"


class WatchedStore(MemoryStore):
    """Tells of each claim and each question for what is next, and takes its time to tell that outcomes are written."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.claims: list[str] = []
        self.on_claim: Callable[[], object] = lambda: None
        self.settling = 0.0

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        yield WatchedConnection(self)


class WatchedConnection(MemoryLane):
    _store: WatchedStore

    async def claim(self, *args: Any, **options: Any) -> Claim:
        claim = await super().claim(*args, **options)
        self._store.asked.append("claim")
        self._store.claims.append("keyless")
        self._store.on_claim()
        return claim

    async def claim_runs(self, *args: Any, **kwargs: Any) -> RunClaim:
        claim = await super().claim_runs(*args, **kwargs)
        self._store.claims.append("keys")
        return claim

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        settled = await super().settle(settlements)
        await asyncio.sleep(self._store.settling)
        return settled

    async def next_due(self, cursor: ClaimCursor) -> float | None:
        self._store.asked.append("next due")
        return await super().next_due(cursor)


async def no_rows(_row: OutboxRow) -> Outcome:
    raise AssertionError("there are none")


async def test_keys_are_claimed_without_a_question_for_rows_without_one_each_time() -> None:
    backend = MemoryBackend()
    backend.store = backend.memory = store = WatchedStore()
    for number in range(300):
        await backend.insert(NewRow("q", b"ordered", key=str(number)))

    async def handle(_row: OutboxRow) -> Outcome:
        return Ack()

    async with running(backend, handle, fetch_batch_size=10):
        await until_empty(backend)
    claims = Counter(store.claims)
    assert claims["keys"] >= 30
    assert claims["keyless"] <= claims["keys"] / 2


async def test_who_wakes_asks_for_rows_without_a_key_first() -> None:
    """Though there were none a moment ago: most messages have no key, and would wait for an empty claim."""
    backend = MemoryBackend()
    backend.store = backend.memory = store = WatchedStore()

    async def handle(_row: OutboxRow) -> Outcome:
        return Ack()

    async with running(backend, handle, min_fetch_interval=30, max_fetch_interval=30) as pipeline:
        for _ in range(5):
            await until(lambda: store.asked and store.asked[-1] == "next due")
            store.claims.clear()
            await backend.insert(NewRow("q", b""))
            pipeline.wake()
            await until(lambda: store.claims)
            assert store.claims[0] == "keyless"
            await until_empty(backend)


async def test_who_is_called_during_a_claim_asks_for_nothing_else_before_the_next() -> None:
    store = WatchedStore()
    pipeline = Pipeline(
        store, ["q"], one_by_one(no_rows), options=SubscriberOptions(min_fetch_interval=30, max_fetch_interval=30)
    )

    def call_once() -> None:
        if store.asked.count("claim") == 2:  # the first one is followed by a look for suspects
            pipeline.wake()

    store.on_claim = call_once
    pipeline.start()
    await until(lambda: "next due" in store.asked)
    await pipeline.stop(1)
    assert store.asked[:4] == ["claim", "claim", "claim", "next due"]


async def test_a_retry_is_due_from_when_its_outcome_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from when the answer came, which a disk or a busy process may hold up."""
    expected: list[float] = []
    monkeypatch.setattr(IdleWait, "expect", lambda _idle_wait, seconds: expected.append(seconds))
    backend = MemoryBackend()
    backend.store = backend.memory = store = WatchedStore()
    store.settling = 0.2
    await fill(backend, 1)

    async def fail(_row: OutboxRow) -> Outcome:
        return Retry(0.1, 1)

    async with running(backend, fail, min_fetch_interval=30, max_fetch_interval=30):
        await until(lambda: expected)
    assert expected[0] == 0


async def test_who_is_stopped_during_a_claim_takes_what_it_brings_and_claims_no_more() -> None:
    backend = SlowBackend()
    await fill(backend, 1)
    await backend.insert(NewRow("q", b"ordered", key="a"))
    handled: list[bytes] = []

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.payload)
        return Ack()

    async with running(backend, handle) as pipeline, asyncio.timeout(30):
        await backend.slow.claiming.wait()
        stopping = asyncio.create_task(pipeline.stop(10))
        await until(lambda: pipeline._claimer._stopping)
        backend.slow.let.set()
        await stopping
    assert handled == [b"0"]
    assert [row.payload for row in await backend.rows()] == [b"ordered"]
