from datetime import UTC, datetime, timedelta

import pytest

from faststream_outbox.storage import Ack, NewRow, Settlement
from tests.backends import Backend

HOUR = timedelta(hours=1)


def timer(timer_id: str = "t", queue: str = "q", **arguments: object) -> NewRow:
    return NewRow(queue, b"payload", timer_id=timer_id, **arguments)  # type: ignore[arg-type]  # passed through


async def test_a_waiting_timer_is_not_set_twice(backend: Backend) -> None:
    async with backend.transaction() as session:
        first = await backend.store.insert(session, timer(activate_in=HOUR))
        again = await backend.store.insert(session, timer(activate_in=2 * HOUR))
    assert first is not None
    assert again is None
    [row] = await backend.rows()
    assert row.next_attempt_at - row.created_at == HOUR


async def test_a_timer_is_one_per_queue_and_id(backend: Backend) -> None:
    assert len(await backend.insert(timer("a"), timer("b"), timer("a", queue="other"))) == 3


async def test_rows_without_a_timer_never_conflict(backend: Backend) -> None:
    assert len(await backend.insert(NewRow("q", b""), NewRow("q", b""))) == 2


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("second", "expected"), [(2 * HOUR, 2 * HOUR), (HOUR / 2, HOUR)])
async def test_extending_moves_to_the_later_deadline(
    backend: Backend, second: timedelta, expected: timedelta, key: str | None
) -> None:
    async with backend.transaction() as session:
        await backend.store.insert(session, timer(activate_in=HOUR, key=key))
        moved = await backend.store.insert(session, timer(activate_in=second, key=key), timer_conflict="extend")
    assert moved is None
    [row] = await backend.rows()
    assert row.next_attempt_at - row.created_at == pytest.approx(expected, abs=timedelta(seconds=5))


async def test_extending_what_is_not_there_sets_it(backend: Backend) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    async with backend.transaction() as session:
        assert await backend.store.insert(session, timer(activate_at=at), timer_conflict="extend") is not None
    [row] = await backend.rows()
    assert row.next_attempt_at == at


async def test_a_timer_in_flight_is_neither_moved_nor_cancelled(backend: Backend) -> None:
    await backend.insert(timer())
    claim = await backend.claim("q")
    async with backend.transaction() as session:
        assert await backend.store.insert(session, timer(activate_in=HOUR), timer_conflict="extend") is None
        assert not await backend.store.cancel_timer(session, queue="q", timer_id="t")
    [row] = await backend.rows()
    assert row.next_attempt_epoch == claim.rows[0].next_attempt_epoch
    assert row.acquired_token == claim.rows[0].acquired_token


async def test_a_timer_that_was_handled_can_be_set_again(backend: Backend) -> None:
    await backend.insert(timer())
    claim = await backend.claim("q")
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(claim.rows[0].lease, Ack())])
    assert len(await backend.insert(timer())) == 1


async def test_cancelling(backend: Backend) -> None:
    await backend.insert(timer("a", activate_in=HOUR), timer("b", activate_in=HOUR))
    async with backend.transaction() as session:
        assert await backend.store.cancel_timer(session, queue="q", timer_id="a")
        assert not await backend.store.cancel_timer(session, queue="q", timer_id="a")
        assert not await backend.store.cancel_timer(session, queue="other", timer_id="b")
    assert [row.timer_id for row in await backend.rows()] == ["b"]


async def test_a_timer_whose_lease_ran_out_can_be_cancelled(backend: Backend) -> None:
    await backend.insert(timer())
    await backend.claim("q", lease_seconds=10)
    await backend.pass_time(11)
    async with backend.transaction() as session:
        assert await backend.store.cancel_timer(session, queue="q", timer_id="t")
    assert await backend.rows() == []


async def test_wrong_words_are_refused(backend: Backend) -> None:
    async with backend.transaction() as session:
        with pytest.raises(ValueError, match="timer_conflict"):
            await backend.store.insert(session, timer(), timer_conflict="replace")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timer_id is empty"):
            await backend.store.cancel_timer(session, queue="q", timer_id="")
        with pytest.raises(TypeError, match="queue is a str"):
            await backend.store.cancel_timer(session, queue=1, timer_id="t")  # type: ignore[arg-type]
    assert await backend.rows() == []
