"""Who listens is told of rows, whatever the store."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from faststream_outbox.storage import NewRow
from tests.backends import Backend
from tests.observers import Ears


async def test_everybody_who_listens_is_told(backend: Backend) -> None:
    one, other = Ears(), Ears()
    async with backend.store.listen(one), backend.store.listen(other):
        await backend.store.notify(["a", "b'\"$1 %s"])
        for ears in (one, other):
            await ears.until("a")
            await ears.until("b'\"$1 %s")
            assert len(ears.heard) == 2


async def test_who_has_stopped_listening_is_not_told(backend: Backend) -> None:
    gone, here = Ears(), Ears()
    async with backend.store.listen(here):
        async with backend.store.listen(gone):
            pass
        await backend.store.notify(["a"])
        await here.until("a")
    assert gone.heard == []


@pytest.mark.parametrize(
    "row",
    [
        NewRow("q", b""),
        NewRow("q", b"", key="k"),
        NewRow("q", b"", timer_id="t"),
        NewRow("q", b"", key="k", timer_id="t"),
        NewRow("q", b"", activate_in=timedelta(hours=1)),
    ],
)
async def test_a_row_can_carry_its_notification(backend: Backend, row: NewRow) -> None:
    ears = Ears()
    async with backend.store.listen(ears):
        async with backend.transaction() as session:
            row_id = await backend.store.insert(session, row, notify=True)
        await ears.until("q")
    assert [stored.id for stored in await backend.rows()] == [row_id]


async def test_a_row_without_one_says_nothing(backend: Backend) -> None:
    ears = Ears()
    async with backend.store.listen(ears):
        async with backend.transaction() as session:
            await backend.store.insert(session, NewRow("q", b""))
            await backend.store.insert_many(session, [NewRow("q", b"")])
        await backend.store.notify(["end"])
        assert await ears.until("end") == ["end"]


async def test_a_timer_that_was_there_says_nothing(backend: Backend) -> None:
    timer, ears = NewRow("q", b"", timer_id="t"), Ears()
    await backend.insert(timer)
    async with backend.store.listen(ears):
        async with backend.transaction() as session:
            assert await backend.store.insert(session, timer, timer_conflict="extend", notify=True) is None
        await backend.store.notify(["end"])
        assert await ears.until("end") == ["end"]


@pytest.mark.parametrize("queues", [["q0", "q1", "q2"], ["q0"]], ids=["three", "one"])
async def test_many_rows_notify_once_for_each_queue(backend: Backend, queues: list[str]) -> None:
    ears = Ears()
    async with backend.store.listen(ears):
        async with backend.transaction() as session:
            rows = [NewRow(queues[n % len(queues)], b"%d" % n) for n in range(1000)]
            ids = await backend.store.insert_many(session, rows, notify=True)
        await backend.store.notify(["end"])
        await ears.until("end")
    assert Counter(ears.heard) == {**dict.fromkeys(queues, 1), "end": 1}
    stored = {row.id: row.payload for row in await backend.rows()}
    assert [stored[row_id] for row_id in ids] == [row.payload for row in rows]


async def test_listening_can_be_tested(backend: Backend) -> None:
    ears = Ears()
    async with backend.store.listen(ears) as listening, asyncio.timeout(30):
        for _ in range(3):
            await listening.test()
        assert listening.can_test()
    assert ears.heard == [], "a test is nobody else's business"


async def test_who_listens_can_notify(backend: Backend) -> None:
    ears, others = Ears(), Ears()
    async with backend.store.listen(ears) as listening, backend.store.listen(others):
        await listening.notify(["q", "r"])
        await others.until("r")
        await ears.until("r")
    assert ears.heard == others.heard == ["q", "r"]


async def test_nothing_is_deferred_without_a_session(backend: Backend) -> None:
    assert not backend.store.after_commit(None, lambda: None, key="k")
