"""Replays of dead letters: together by keys, in slices, at a rate, with patience for busy keys; and edited ones."""

import asyncio

import pytest
from sqlalchemy import text

from faststream_outbox.operations import DeadLetterFilter, Progress
from faststream_outbox.operations.acting import replays as runner
from faststream_outbox.storage import Ack, NewRow
from tests.backends import Backend, PostgresBackend
from tests.operations.letters import bury, operations_of
from tests.storage.contract.test_replay import bury as bury_head
from tests.storage.contract.test_replay import run_of
from tests.storage.contract.test_runs import begun, claim, fill, payloads, settle
from tests.waiting import until


def _rows(count: int, queue: str = "orders") -> list[NewRow]:
    return [NewRow(queue, b"%d" % n) for n in range(count)]


async def test_a_replay_runs_in_slices_with_progress_and_one_audit(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SLICE", 2)
    await bury(backend, *_rows(5))
    operations, seen = await operations_of(backend), list[Progress]()
    selection = await operations.select(DeadLetterFilter(queue="orders"))
    result = await operations.replay(selection, reason="mended", by="ann", progress=seen.append)
    assert (result.action, result.done, result.skipped) == ("replay", 5, {})
    assert [each.done for each in seen] == [2, 4, 5]
    assert await backend.dead_letters() == []
    assert len((await backend.claim("orders")).rows) == 5
    [entry] = (await operations.audit()).items
    assert (entry.id, entry.by, entry.action, entry.count) == (result.audit_id, "ann", "replay", 5)


async def test_letters_of_a_key_go_back_in_one_slice(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLICE", 2)
    await fill(backend, *"abababab")
    for _ in range(3):
        await bury_head(backend, key="a")
        await bury_head(backend, key="b")
    operations, seen = await operations_of(backend), list[Progress]()
    result = await operations.replay(range(1, 7), reason="mended", progress=seen.append)
    assert (result.done, [each.done for each in seen]) == (6, [3, 6])
    assert payloads(await claim(backend, cursor=begun())) == {
        "a": [b"0", b"2", b"4", b"6"],
        "b": [b"1", b"3", b"5", b"7"],
    }


async def test_letters_that_come_later_are_not_caught(backend: Backend) -> None:
    await bury(backend, *_rows(2))
    operations = await operations_of(backend)
    selection = await operations.select(DeadLetterFilter(queue="orders"))
    await bury(backend, *_rows(3))
    assert (await operations.replay(selection, reason="mended")).done == 2
    again = await operations.replay(selection, reason="mended")
    assert (again.done, again.audit_id) == (0, None)


async def test_a_key_in_flight_is_tried_again_until_it_is_free(backend: Backend) -> None:
    await fill(backend, *"aa")
    await bury_head(backend)
    run = await run_of(backend)
    operations = await operations_of(backend)
    replaying = asyncio.create_task(operations.replay(1, reason="mended", patience=60))
    done, _ = await asyncio.wait([replaying], timeout=0.2)
    assert not done
    await settle(backend, run, Ack())
    assert (await replaying).done == 1
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0"]}


async def test_a_key_that_stays_in_flight_is_reported(backend: Backend) -> None:
    await fill(backend, *"aa")
    await bury_head(backend)
    await run_of(backend)
    operations = await operations_of(backend)
    result = await operations.replay([1, 99], reason="mended", patience=0.1)
    assert result.done == 0
    assert "is being handled" in result.skipped[1]
    assert "not in the dead-letter table" in result.skipped[99]
    assert len(await backend.dead_letters()) == 1


async def test_a_rate_makes_slices_small(backend: Backend) -> None:
    await bury(backend, *_rows(6))
    operations, seen = await operations_of(backend), list[Progress]()
    result = await operations.replay(range(1, 7), reason="mended", rate=10, progress=seen.append)
    assert (result.done, [each.done for each in seen]) == (6, [2, 4, 6])


async def test_a_replay_that_is_cancelled_leaves_whole_slices(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SLICE", 2)
    await bury(backend, *_rows(5))
    operations, seen = await operations_of(backend), list[Progress]()
    selection = await operations.select(DeadLetterFilter(queue="orders"))
    replaying = asyncio.create_task(operations.replay(selection, reason="mended", rate=0.01, progress=seen.append))
    await until(lambda: seen)
    replaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replaying
    assert len(await backend.dead_letters()) == 4
    assert (await operations.replay(selection, reason="mended")).done == 4
    assert [entry.count for entry in (await operations.audit()).items] == [4, 1]


@pytest.mark.parametrize(
    ("content_type", "body", "payload"),
    [
        ("application/json", {"a": "ä"}, '{"a": "ä"}'.encode()),
        ("application/json", "text", b'"text"'),
        ("text/plain", "text", b"text"),
        (None, b"\xff", b"\xff"),
        (None, [1], b"[1]"),
    ],
)
async def test_a_body_is_replaced(backend: Backend, content_type: str | None, body: object, payload: bytes) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    await bury(backend, NewRow("orders", b"old", headers))
    operations = await operations_of(backend)
    result = await operations.edit_and_replay(1, body=body, reason="a wrong amount", by="ann")
    assert (result.done, result.skipped) == (1, {})
    [row] = (await backend.claim("orders")).rows
    assert (row.payload, row.headers or {}) == (payload, headers)
    [entry] = (await operations.audit()).items
    assert (entry.action, entry.target["ids"], entry.target["edited"]) == ("edit_and_replay", [1], ["body"])


async def test_headers_are_set_beside_the_others_and_removed_by_none(backend: Backend) -> None:
    await bury(backend, NewRow("orders", b"old", {"a": "1", "b": "2", "c": "3"}))
    operations = await operations_of(backend)
    await operations.edit_and_replay(1, headers={"b": "new", "c": None, "d": "4"}, reason="a wrong tenant")
    [row] = (await backend.claim("orders")).rows
    assert (row.payload, row.headers) == (b"old", {"a": "1", "b": "new", "d": "4"})


async def test_a_letter_that_is_skipped_is_not_edited(backend: Backend) -> None:
    await fill(backend, *"aa")
    await bury_head(backend)
    await run_of(backend)
    operations = await operations_of(backend)
    result = await operations.edit_and_replay(1, body=b"new", reason="a wrong amount", patience=0.1)
    assert result.done == 0
    assert "is being handled" in result.skipped[1]
    assert [letter.payload for letter in await backend.dead_letters()] == [b"0"]
    assert (await operations.edit_and_replay(99, body=b"new", reason="a wrong amount")).done == 0


async def test_an_edit_changes_something(backend: Backend) -> None:
    operations = await operations_of(backend)
    with pytest.raises(ValueError, match="give one of them"):
        await operations.edit_and_replay(1, reason="nothing")


async def test_a_replay_in_the_callers_transaction_ends_with_it(postgres: PostgresBackend) -> None:
    await bury(postgres, *_rows(3))
    operations = await operations_of(postgres)
    async with postgres.sessions() as session:
        assert (await operations.replay([1, 2], reason="mended", session=session)).done == 2
        await session.rollback()
    assert len(await postgres.dead_letters()) == 3
    assert (await operations.audit()).items == []
    async with postgres.transaction() as session:
        await operations.replay([1, 2], reason="mended", session=session)
        with pytest.raises(ValueError, match="leave out the session"):
            await operations.replay(3, reason="mended", session=session, rate=1)
    assert len(await postgres.dead_letters()) == 1


async def test_a_timer_that_is_being_published_does_not_hold_up_the_others(postgres: PostgresBackend) -> None:
    await bury(postgres, *_rows(3), NewRow("orders", b"timer", timer_id="t"))
    operations = await operations_of(postgres)
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("orders", b"new", timer_id="t"))
        result = await operations.replay(range(1, 5), reason="mended")
        assert (result.done, list(result.skipped)) == (3, [4])
        edited = await operations.edit_and_replay(4, body=b"x", reason="mended")
        assert "timer" in edited.skipped[4]
        await session.execute(text("SELECT 1"))
    assert len(await postgres.dead_letters()) == 1


async def test_two_replays_at_once_put_each_letter_back_once(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SLICE", 3)
    await fill(postgres, *"aabbccddee" * 2)
    for _ in range(10):
        await bury_head(postgres, key="a" if _ < 2 else "bcde"[(_ - 2) % 4])
    operations = await operations_of(postgres)
    results = await asyncio.gather(*(operations.replay(range(1, 11), reason="mended", patience=10) for _ in range(3)))
    assert sum(result.done for result in results) == 10
    assert await postgres.dead_letters() == []
    claimed = payloads(await claim(postgres, cursor=begun()))
    assert {key: sorted(rows, key=int) for key, rows in claimed.items()} == claimed
    assert sum(map(len, claimed.values())) == 20
