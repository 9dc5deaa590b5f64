"""When outcomes are written: in batches, never later than they may wait, and apart from those that are refused."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.engine.settle import settle_retries, settler
from faststream_outbox.storage import (
    Ack,
    Dead,
    Lease,
    NewRow,
    OutboxRow,
    Outcome,
    Retry,
    Settled,
    Settlement,
    StoreLane,
)
from faststream_outbox.storage.memory.lane import MemoryLane
from faststream_outbox.storage.memory.store import MemoryStore
from tests.backends import MemoryBackend
from tests.engine.pipelines import Reports, fill, running
from tests.waiting import until_empty


class ScribeStore(MemoryStore):
    """Notes each batch that is settled, and refuses what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Outcome]] = []
        self.refuse: Callable[[Outcome], bool] = lambda _outcome: False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        yield ScribeConnection(self)

    def kinds(self, kind: type[Outcome]) -> list[int]:
        """How many outcomes of a kind were in each batch that had any."""
        counts = [sum(isinstance(outcome, kind) for outcome in batch) for batch in self.batches]
        return [count for count in counts if count]

    async def until_settled(self, kind: type[Outcome], count: int) -> None:
        async with asyncio.timeout(20):
            while sum(self.kinds(kind)) < count:
                await asyncio.sleep(0.01)


class ScribeConnection(MemoryLane):
    _store: ScribeStore

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        settlements = list(settlements)
        self._store.batches.append([settlement.outcome for settlement in settlements])
        refused: dict[Lease, Exception] = {
            s.lease: RuntimeError("refused") for s in settlements if self._store.refuse(s.outcome)
        }
        settled = await super().settle(s for s in settlements if s.lease not in refused)
        return Settled(settled.held, settled.lost, refused)


class ScribeBackend(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.store = self.memory = self.scribe = ScribeStore()


@pytest.fixture
def backend() -> ScribeBackend:
    return ScribeBackend()


async def test_a_batch_size_of_one_settles_row_by_row(backend: ScribeBackend) -> None:
    await fill(backend, 20)

    async def handle(row: OutboxRow) -> Outcome:
        if row.id % 4 == 0:
            return Dead("rejected")
        return Ack() if row.attempts_count else Retry(0, 1)

    async with running(backend, handle, max_workers=8, terminal_batch_size=1, retry_batch_size=1):
        await until_empty(backend)
    for batch in backend.scribe.batches:
        assert sum(isinstance(outcome, Retry) for outcome in batch) <= 1
        assert sum(not isinstance(outcome, Retry) for outcome in batch) <= 1
    assert sum(backend.scribe.kinds(Retry)) == 15


async def test_the_interval_is_a_maximum_age_and_no_quiet_period(backend: ScribeBackend) -> None:
    await fill(backend, 40)
    returned = 0
    first_written_after = 0

    async def handle(_row: OutboxRow) -> Outcome:
        nonlocal returned, first_written_after
        await asyncio.sleep(0.02)
        if not first_written_after and backend.scribe.kinds(Retry):
            first_written_after = returned
        returned += 1
        return Retry(60, 1)

    async with running(backend, handle, retry_flush_interval_ms=200):
        await backend.scribe.until_settled(Retry, 40)
    assert 0 < first_written_after < 40, "written though more kept coming"
    assert max(backend.scribe.kinds(Retry)) > 1, "and many at a time"


async def test_when_every_row_in_hand_has_its_outcome_nothing_is_waited_for(backend: ScribeBackend) -> None:
    await fill(backend, 3)

    async def handle(row: OutboxRow) -> Outcome:
        return Ack() if row.payload == b"0" else Retry(60, 1)

    async with running(backend, handle, retry_flush_interval_ms=30_000, terminal_flush_interval_ms=30_000):
        await backend.scribe.until_settled(Retry, 2)
    assert backend.scribe.kinds(Retry) == [2]


@pytest.mark.parametrize("kind", ["terminal", "retry"])
async def test_a_full_batch_waits_for_nobody(backend: ScribeBackend, kind: str) -> None:
    await fill(backend, 6)
    last = asyncio.Event()
    outcome: Outcome = Ack() if kind == "terminal" else Retry(60, 1)

    async def handle(row: OutboxRow) -> Outcome:
        if row.payload == b"5":
            await last.wait()
        return outcome

    options: dict[str, Any] = {f"{kind}_batch_size": 2, f"{kind}_flush_interval_ms": 30_000}
    async with running(backend, handle, **options):
        await backend.scribe.until_settled(type(outcome), 4)
        assert backend.scribe.kinds(type(outcome)) == [2, 2]
        last.set()
        await backend.scribe.until_settled(type(outcome), 6)


async def test_nothing_is_waited_for_while_draining(backend: ScribeBackend) -> None:
    await fill(backend, 2)
    started, last = asyncio.Event(), asyncio.Event()

    async def handle(row: OutboxRow) -> Outcome:
        if row.payload == b"1":
            started.set()
            await last.wait()
        return Retry(60, 1)

    async with running(backend, handle, retry_flush_interval_ms=30_000) as pipeline:
        await started.wait()
        assert not backend.scribe.batches
        stopping = asyncio.create_task(pipeline.stop(10))
        await backend.scribe.until_settled(Retry, 1)
        last.set()
        await stopping
    assert sum(backend.scribe.kinds(Retry)) == 2


async def test_what_is_refused_does_not_hold_up_the_others(
    backend: ScribeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused ones stand first, one row a statement: the others are written all the same."""
    monkeypatch.setattr(settle_retries, "_PAUSE_SECONDS", 0.01)
    backend.scribe.refuse = lambda outcome: isinstance(outcome, Dead)
    await fill(backend, 10)
    reports, handled = Reports(), Counter[int]()

    async def handle(row: OutboxRow) -> Outcome:
        handled[row.id] += 1
        return Dead("rejected") if row.id <= 3 else Ack()

    async with running(backend, handle, terminal_batch_size=1, reports=reports):
        async with asyncio.timeout(20):
            while len(reports.counted("nacked_retried")) < 3:
                await asyncio.sleep(0.01)
    assert sum(backend.scribe.kinds(Ack)) == 7
    assert [row.id for row in await backend.rows()] == [1, 2, 3], "kept"
    assert {row.acquired_token for row in await backend.rows()} == {None}
    assert {tags["exception_type"] for tags in reports.counted("nacked_retried")} == {"RuntimeError"}
    assert set(handled.values()) == {1}
    assert len(reports.named("settle_failed")) == 15, "five tries each, and each of them heard"


async def test_what_is_refused_for_good_is_written_when_it_is_no_longer(
    backend: ScribeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_retries, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(settler, "_DELAY_AFTER_REFUSAL", 0.05)
    backend.scribe.refuse = lambda outcome: isinstance(outcome, Dead)
    await fill(backend, 1)
    reports = Reports()

    async def handle(_row: OutboxRow) -> Outcome:
        return Dead("rejected")

    async with running(backend, handle, reports=reports):
        async with asyncio.timeout(20):
            while len(reports.counted("dispatched")) < 3:
                await asyncio.sleep(0.01)
        backend.scribe.refuse = lambda _outcome: False
        await until_empty(backend)
    assert len(await backend.dead_letters()) == 1


async def test_a_row_of_which_everything_is_refused_is_left_to_its_lease(
    backend: ScribeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_retries, "_PAUSE_SECONDS", 0.01)
    backend.scribe.refuse = lambda _outcome: True
    await fill(backend, 1)
    reports = Reports()

    async def handle(_row: OutboxRow) -> Outcome:
        return Ack()

    async with running(backend, handle, reports=reports):
        async with asyncio.timeout(20):
            while not reports.counted("dispatch_abandoned"):
                await asyncio.sleep(0.01)
    [abandoned] = reports.counted("dispatch_abandoned")
    assert abandoned["duration_seconds"] >= 0
    assert len(await backend.rows()) == 1


async def test_a_group_is_not_torn_by_the_end_of_one_of_its_leases(backend: ScribeBackend) -> None:
    """What is left of it would be deleted as if it were all of it, without the answer that the other one carries."""

    async def handle(rows: Sequence[OutboxRow]) -> list[Settlement]:
        answers = (NewRow("answers", b"to all of them"),)
        return [Settlement(row.lease, Ack(() if n else answers), group=1) for n, row in enumerate(rows)]

    pipeline = Pipeline(
        backend.store,
        ["q"],
        handle,
        options=SubscriberOptions(batch=True, max_records=3, min_fetch_interval=0.1, max_fetch_interval=0.1),
        monitor=Reports(),
    )
    await fill(backend, 3)

    def fail_once(_outcome: Outcome) -> bool:
        backend.scribe.refuse = lambda _outcome: False
        next(iter(pipeline._ledger._held.values())).held_until = 0.0  # the first lease ends meanwhile
        raise ConnectionError

    backend.scribe.refuse = fail_once
    pipeline.start()
    async with asyncio.timeout(20):
        while len(backend.scribe.batches) < 2:
            await asyncio.sleep(0.01)
    await pipeline.stop(5)
    assert [row.queue for row in await backend.rows()] == ["answers"]
