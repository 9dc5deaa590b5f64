"""Rows of a key that are done are settled while the handler of the next one runs."""

import asyncio

import pytest

from faststream_outbox.engine.dispatch import dispatcher
from faststream_outbox.engine.settle.settler import Settler
from faststream_outbox.storage import Ack, NewRow, OutboxRow, Outcome, Retry, Settlement
from tests.backends import Backend
from tests.engine.pipelines import Reports, running
from tests.waiting import until, until_empty

QUICK = 20


async def _insert(backend: Backend) -> list[int]:
    """Insert quick rows of a key, a slow one, and one behind it."""
    return await backend.insert(*(NewRow("q", b"%d" % n, key="k") for n in range(QUICK + 2)))


class Slow:
    """A handler that answers every quick row, and waits in the slow one."""

    def __init__(self) -> None:
        self.handled = list[int]()
        self.running = asyncio.Event()
        self.free = asyncio.Event()
        self.outcome: Outcome = Ack()

    async def __call__(self, row: OutboxRow) -> Outcome:
        number = int(row.payload)
        self.handled.append(number)
        if number == QUICK:
            self.running.set()
            await self.free.wait()
            return self.outcome
        return Ack((NewRow("answers", b"%d" % number),) if number < QUICK else ())


async def test_what_is_done_is_settled_while_the_next_one_runs(backend: Backend) -> None:
    ids, handle, reports = await _insert(backend), Slow(), Reports()
    async with running(backend, handle, reports=reports) as pipeline:
        # The answers too: a crash from here on would repeat nothing but the slow one.
        left = await until(backend.rows, lambda rows: len(rows) == QUICK + 2 and rows[0].id == ids[QUICK])
        assert [row.queue for row in left] == ["q", "q"] + ["answers"] * QUICK
        head, behind = left[:2]
        assert head.acquired_token is not None, "the key is still held by its running handler"
        assert head.deliveries_count == 1
        assert behind.acquired_token is None
        assert len(reports.counted("acked")) == QUICK
        await pipeline._lease_renewer.renew()
        [renewed] = [row for row in await backend.rows() if row.id == head.id]
        assert renewed.lease_expires_epoch > head.lease_expires_epoch
        handle.free.set()
        await until(backend.rows, lambda rows: {row.queue for row in rows} == {"answers"})
        await until(lambda: not len(pipeline._ledger))
        assert (pipeline._ledger.occupied, pipeline._ledger.finished, pipeline._ledger.bytes) == (0, 0, 0)
    assert handle.handled == list(range(QUICK + 2))
    assert len(reports.counted("acked")) == QUICK + 2


async def test_the_slow_one_may_fail(backend: Backend) -> None:
    ids, handle = await _insert(backend), Slow()
    handle.outcome = Retry(60.0, 1)
    async with running(backend, handle):
        await until(backend.rows, lambda rows: rows[0].id == ids[QUICK])
        handle.free.set()
        head = (await until(backend.rows, lambda rows: rows[0].acquired_token is None))[0]
    assert (head.id, head.attempts_count, head.deliveries_count) == (ids[QUICK], 1, 1)
    assert handle.handled == list(range(QUICK + 1))


async def test_a_lost_lease_is_noticed(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is free again meanwhile: nothing is written under the lost lease, and all of it is handled again."""
    monkeypatch.setattr(dispatcher, "LONGEST_RUN", 2.0)  # time to take the lease away
    ids, handle, reports = await _insert(backend), Slow(), Reports()
    async with running(backend, handle, reports=reports, lease_ttl_seconds=30.0):
        await handle.running.wait()
        async with backend.store.connect() as lane:
            [head] = [row for row in await backend.rows() if row.id == ids[0]]
            await lane.release([head])
        await asyncio.sleep(2.5)  # until the early settle has found the lease lost
        handle.free.set()
        await until(lambda: len(reports.counted("lease_lost")) == QUICK + 1)
        rows = await until(backend.rows, lambda rows: {row.queue for row in rows} == {"answers"})
    assert handle.handled == [*range(QUICK + 1), *range(QUICK + 2)]
    assert len(rows) == QUICK


@pytest.mark.parametrize("failure", ["raised", "refused"])
async def test_what_cannot_be_settled_early_is_settled_at_the_end(
    backend: Backend, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ids, handle, reports = await _insert(backend), Slow(), Reports()
    tried = asyncio.Event()

    async def refuse(_settler: Settler, _head: OutboxRow, _run: Settlement) -> None:
        tried.set()

    async def raise_once(self: Settler, head: OutboxRow, run: Settlement) -> OutboxRow | None:
        real, self._lane = self._lane, Broken()  # type: ignore[assignment]
        try:
            return await original(self, head, run)
        finally:
            self._lane = real
            tried.set()

    original = Settler.pass_lease
    monkeypatch.setattr(Settler, "pass_lease", refuse if failure == "refused" else raise_once)
    async with running(backend, handle, reports=reports):
        await tried.wait()
        handle.free.set()
        await until(backend.rows, lambda rows: {row.queue for row in rows} == {"answers"})
    assert handle.handled == list(range(QUICK + 2))
    assert len(await backend.rows()) == QUICK


class Broken:
    async def run(self, _operation: object) -> None:
        raise ConnectionError("gone")


async def test_quick_rows_are_settled_together(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"0", key="k") for _ in range(50)))
    passed = list[int]()

    async def handle(row: OutboxRow) -> Outcome:
        passed.append(row.id)
        return Ack()

    async with running(backend, handle):
        await until_empty(backend)
    assert passed == sorted(passed)
