from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from faststream_outbox.storage import Ack, ClaimCursor, Dead, Lease, NewRow, OutboxRow, Retry, Settlement
from faststream_outbox.storage.outcomes import MAX_EXCEPTION_BYTES
from tests.backends import Backend, everywhere

FIRST = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
LAST = datetime(2026, 1, 1, 13, 0, 0, 999999, tzinfo=UTC)


async def claimed(backend: Backend, count: int) -> list[OutboxRow]:
    await backend.insert(*(NewRow("q", b"%d" % n, {"n": n}) for n in range(count)))
    return (await backend.claim("q")).rows


async def test_acked_rows_are_gone(backend: Backend) -> None:
    rows = await claimed(backend, 3)
    async with backend.store.connect() as lane:
        settled = await lane.settle(Settlement(row.lease, Ack()) for row in rows[:2])
    assert settled.held == {rows[0].lease, rows[1].lease}
    assert not settled.failed
    assert [row.id for row in await backend.rows()] == [rows[2].id]
    assert await backend.dead_letters() == []


async def test_each_retry_has_its_own_delay_attempts_and_times(backend: Backend) -> None:
    one, two = await claimed(backend, 2)
    async with backend.store.connect() as lane:
        settled = await lane.settle(
            [
                Settlement(one.lease, Retry(30.5, 1, FIRST, LAST)),
                Settlement(two.lease, Retry(7200.0, 9, LAST, LAST)),
            ]
        )
        assert settled.held == {one.lease, two.lease}
        assert await lane.next_due(ClaimCursor(["q"])) == pytest.approx(30.5, abs=5)
    first, second = await backend.rows()
    for row in (first, second):
        assert (row.acquired_token, row.acquired_at) == (None, None)
        assert row.deliveries_count == 1
    assert (first.attempts_count, second.attempts_count) == (1, 9)
    assert (first.first_attempt_at, first.last_attempt_at) == (FIRST, LAST)
    assert (second.first_attempt_at, second.last_attempt_at) == (LAST, LAST)
    wait = second.next_attempt_at - first.next_attempt_at
    assert wait == pytest.approx(timedelta(seconds=7200 - 30.5), abs=timedelta(seconds=1))


async def test_times_that_are_left_out_are_the_stores_now(backend: Backend) -> None:
    [row] = await claimed(backend, 1)
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, Retry(0, 1))])
        [failed_once] = await backend.rows()
        assert failed_once.first_attempt_at == failed_once.last_attempt_at
        assert failed_once.last_attempt_at is not None
        await backend.pass_time(60)
        [again] = (await backend.claim("q")).rows
        await lane.settle([Settlement(again.lease, Retry(0, 2))])
    [failed_twice] = await backend.rows()
    assert failed_twice.first_attempt_at is not None
    assert failed_twice.last_attempt_at is not None
    gap = failed_twice.last_attempt_at - failed_twice.first_attempt_at
    assert gap == pytest.approx(timedelta(seconds=60), abs=timedelta(seconds=5))


@pytest.mark.parametrize("delay", [-5.0, 0.0, float("nan")])
async def test_no_delay_or_less_is_now(backend: Backend, delay: float) -> None:
    [row] = await claimed(backend, 1)
    async with backend.store.connect() as lane:
        assert (await lane.settle([Settlement(row.lease, Retry(delay, 1))])).held == {row.lease}
    assert len((await backend.claim("q")).rows) == 1


async def test_an_endless_delay_is_bounded(backend: Backend) -> None:
    [row] = await claimed(backend, 1)
    async with backend.store.connect() as lane:
        assert (await lane.settle([Settlement(row.lease, Retry(float("inf"), 1))])).held == {row.lease}
    [stored] = await backend.rows()
    assert stored.next_attempt_at.year > 2100


async def test_a_dead_row_moves_to_the_dead_letters(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"body", {"h": "1"}, timer_id="t"))
    [row] = (await backend.claim("q")).rows
    async with backend.store.connect() as lane:
        dead = Dead("retry_terminal", "ValueError('x')", 10, FIRST, LAST)
        settled = await lane.settle([Settlement(row.lease, dead)])
    assert settled.held == {row.lease}
    assert await backend.rows() == []
    [letter] = await backend.dead_letters()
    assert (letter.original_id, letter.queue, letter.payload, letter.timer_id) == (row.id, "q", b"body", "t")
    assert (letter.failure_reason, letter.last_exception) == ("retry_terminal", "ValueError('x')")
    assert (letter.attempts_count, letter.deliveries_count) == (10, 1)
    assert (letter.first_attempt_at, letter.last_attempt_at) == (FIRST, LAST)


async def test_a_dead_row_keeps_what_is_left_out(backend: Backend) -> None:
    [row] = await claimed(backend, 1)
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, Retry(0, 4, FIRST, LAST))])
        [again] = (await backend.claim("q")).rows
        await lane.settle([Settlement(again.lease, Dead("max_deliveries"))])
    [letter] = await backend.dead_letters()
    assert (letter.attempts_count, letter.deliveries_count) == (4, 2)
    assert (letter.first_attempt_at, letter.last_attempt_at) == (FIRST, LAST)
    assert letter.last_exception is None


@pytest.mark.parametrize(
    "text",
    ["NUL \x00 in it", "lone \ud800 surrogate", "x" * 50_000_000, "é" * MAX_EXCEPTION_BYTES, ""],
    ids=["nul", "surrogate", "50 MB", "two bytes each", "empty"],
)
async def test_any_exception_text_can_be_stored(backend: Backend, text: str) -> None:
    [row] = await claimed(backend, 1)
    async with backend.store.connect() as lane:
        settled = await lane.settle([Settlement(row.lease, Dead("rejected", text))])
    assert settled.held == {row.lease}
    assert not settled.failed
    [letter] = await backend.dead_letters()
    assert letter.last_exception is not None
    assert len(letter.last_exception.encode()) <= MAX_EXCEPTION_BYTES
    assert letter.last_exception[:4] in (text[:4], "")


async def test_one_batch_takes_every_kind(backend: Backend) -> None:
    acked, retried, dead, waiting = await claimed(backend, 4)
    async with backend.store.connect() as lane:
        settled = await lane.settle(
            [
                Settlement(dead.lease, Dead("rejected")),
                Settlement(acked.lease, Ack()),
                Settlement(retried.lease, Retry(60, 1)),
            ]
        )
    assert settled.held == {acked.lease, retried.lease, dead.lease}
    assert [row.id for row in await backend.rows()] == [retried.id, waiting.id]
    assert [letter.original_id for letter in await backend.dead_letters()] == [dead.id]


@pytest.mark.parametrize("outcome", [Ack(), Retry(0, 1), Dead("rejected")], ids=lambda o: type(o).__name__)
async def test_a_lost_lease_settles_nothing(backend: Backend, outcome: Ack | Retry | Dead) -> None:
    await backend.insert(NewRow("q", b""))
    [lost] = (await backend.claim("q", lease_seconds=1)).rows
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        [thief] = (await lane.claim_suspect(everywhere("q"), lease_seconds=60)).rows
        before = await backend.rows()
        stranger = Lease(lost.id, uuid4())
        settled = await lane.settle([Settlement(lost.lease, outcome), Settlement(stranger, outcome)])
        assert settled.held == frozenset()
        assert settled.lost == {lost.lease, stranger}
        assert not settled.failed
        assert await backend.rows() == before
        assert await backend.dead_letters() == []
        assert (await lane.settle([Settlement(thief.lease, outcome)])).held == {thief.lease}


@pytest.mark.parametrize("outcome", [Ack(), Retry(0, 1), Dead("rejected")], ids=lambda o: type(o).__name__)
async def test_some_lost_leases_do_not_harm_the_others(backend: Backend, outcome: Ack | Retry | Dead) -> None:
    rows = await claimed(backend, 10)
    leases = [Lease(row.id, uuid4()) if row.id % 3 == 0 else row.lease for row in rows]
    async with backend.store.connect() as lane:
        settled = await lane.settle([Settlement(lease, outcome) for lease in reversed(leases)])
    assert settled.held == {row.lease for row in rows if row.id % 3}
    assert settled.lost == {lease for lease in leases if lease.row_id % 3 == 0}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dead("ValueError: no"), "retry_terminal"),  # type: ignore[arg-type]
        (lambda: Dead("rejected", last_attempt_at=datetime(2026, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda: Retry(1.0, 1, first_attempt_at=datetime(2026, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda: Retry(timedelta(seconds=1), 1), "delay_seconds"),  # type: ignore[arg-type]
        (lambda: Retry(1.0, None), "attempts_count"),  # type: ignore[arg-type]
        (lambda: Settlement(Lease(1, uuid4()), "done"), "An outcome is"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_outcome_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        make()


async def test_the_first_verdict_on_a_lease_stands(backend: Backend) -> None:
    [row] = await claimed(backend, 1)
    async with backend.store.connect() as lane:
        settled = await lane.settle([Settlement(row.lease, Retry(60, 1)), Settlement(row.lease, Ack())])
    assert settled.held == {row.lease}
    assert settled.lost == frozenset()
    [stored] = await backend.rows()
    assert stored.attempts_count == 1
