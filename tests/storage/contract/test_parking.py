"""Rows that are parked: kept at the head of their key, with their cause, and delivered by nobody."""

import json
import math
from datetime import UTC, datetime

import pytest

from faststream_outbox.storage import Ack, ClaimCursor, Dead, Lease, NewRow, Outcome, Park, Retry, Settlement
from faststream_outbox.storage.checks import encode_headers
from faststream_outbox.storage.parking import PARKED, cause_in
from tests.backends import Backend, PostgresBackend
from tests.storage.contract.test_runs import begun, claim, fill, payloads, settle, strategy

__all__ = ["strategy"]  # so that every test here runs with each of them, too

POISON = Park(Dead("retry_terminal", "ValueError: no\x00good", 3))


async def test_a_parked_row_stays_where_it_is_and_blocks_its_key(backend: Backend) -> None:
    await fill(backend, *"aaab")
    claimed = await claim(backend, cursor=begun())
    run = next(run for run in claimed.runs if run.key == "a")
    settled = await settle(backend, run, Ack(), POISON)
    assert settled.held == {run.lease}
    second = await claim(backend, cursor=begun())
    assert second.runs == []
    assert not second.suspects
    await fill(backend, *"ac")
    assert payloads(await claim(backend, cursor=begun())) == {"c": [b"1"]}
    await backend.pass_time(10 * 365 * 86_400)
    assert (await claim(backend, cursor=begun())).runs == []
    assert await backend.dead_letters() == []


async def test_what_a_parked_row_keeps(backend: Backend) -> None:
    await fill(backend, "a")
    [run] = (await claim(backend, cursor=begun())).runs
    first, last = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2))
    await settle(backend, run, Park(Dead("rejected", "x" * 20_000, 7, first, last)))
    [row] = await backend.rows()
    assert (row.attempts_count, row.first_attempt_at, row.last_attempt_at) == (7, first, last)
    assert (row.acquired_token, row.acquired_epoch, row.lease_expires_epoch) == (None, None, -math.inf)
    assert row.next_attempt_epoch == math.inf
    cause = cause_in(row.headers_json)
    assert cause.reason == "rejected"
    assert cause.exception is not None
    assert len(cause.exception) <= 8192
    assert cause.parked_at == pytest.approx(run.rows[0].acquired_epoch, abs=30)


async def test_what_is_left_out_stays_as_the_row_has_it(backend: Backend) -> None:
    await fill(backend, "a")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Retry(0.0, 4))
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Park(Dead("max_deliveries")))
    [row] = await backend.rows()
    assert row.attempts_count == 4
    assert row.first_attempt_epoch is not None
    assert cause_in(row.headers_json).exception is None


@pytest.mark.parametrize("headers", [None, {}, {"a": 1, "b": {"c": [1]}}])
async def test_the_cause_is_not_among_the_headers(backend: Backend, headers: dict[str, object] | None) -> None:
    await backend.insert(NewRow("q", b"", headers, key="a"))
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, POISON)
    [row] = await backend.rows()
    assert PARKED in json.loads(row.headers_json or "")
    assert row.headers == headers


async def test_a_single_row_is_parked_by_its_own_lease(backend: Backend) -> None:
    await fill(backend, *"aa")
    [run] = (await claim(backend, rows_per_key=1, cursor=begun())).runs
    async with backend.store.connect() as lane:
        assert (await lane.settle([Settlement(run.lease, POISON)])).held == {run.lease}
        assert (await lane.settle([Settlement(run.lease, POISON)])).lost == {run.lease}
    head, _ = await backend.rows()
    assert head.next_attempt_epoch == math.inf


async def test_whoever_lost_its_lease_parks_nothing(backend: Backend) -> None:
    await fill(backend, *"aa")
    [run] = (await claim(backend, cursor=begun())).runs
    await backend.pass_time(61)
    [thief] = (await claim(backend, suspects=True, cursor=begun())).runs
    assert (await settle(backend, run, Ack(), POISON)).lost == {run.lease}
    assert (await settle(backend, run, POISON)).lost == {run.lease}
    assert all(row.next_attempt_epoch < math.inf for row in await backend.rows())
    assert (await settle(backend, thief, Ack())).held == {thief.lease}


async def test_many_keys_are_settled_together_and_each_in_its_way(backend: Backend) -> None:
    await fill(backend, *"abcdabcd")
    runs = {run.key: run for run in (await claim(backend, cursor=begun())).runs}
    outcomes: dict[str, list[Outcome]] = {
        "a": [POISON],
        "b": [Ack(), POISON],
        "c": [Dead("rejected"), Retry(60.0, 1)],
        "d": [Ack(), Ack()],
    }
    async with backend.store.connect() as lane:
        settled = await lane.settle(
            Settlement.of_run(runs[key].lease, [(row.id, o) for row, o in zip(runs[key].rows, its, strict=False)])
            for key, its in outcomes.items()
        )
    assert settled.held == {run.lease for run in runs.values()}
    left = [(row.entity_key, row.payload, row.next_attempt_epoch == math.inf) for row in await backend.rows()]
    assert left == [("a", b"0", True), ("a", b"4", False), ("b", b"5", True), ("c", b"6", False)]
    assert [dead.entity_key for dead in await backend.dead_letters()] == ["c"]


async def test_a_parked_key_is_never_due(backend: Backend) -> None:
    await fill(backend, "a")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, POISON)
    cursor = begun()
    claimed = await claim(backend, cursor=cursor)
    assert claimed.next_due is None
    assert cursor.next_due is None
    async with backend.store.connect() as lane:
        assert await lane.next_due(ClaimCursor(["q"])) is None


async def test_a_retry_is_due_however_many_keys_are_parked(backend: Backend) -> None:
    await fill(backend, *"abc")
    runs = (await claim(backend, cursor=begun())).runs
    outcomes: list[Outcome] = [POISON, Retry(30.0, 1), POISON]
    for run, outcome in zip(runs, outcomes, strict=True):
        await settle(backend, run, outcome)
    cursor = begun()
    claimed = await claim(backend, cursor=cursor)
    assert claimed.next_due == pytest.approx(30, abs=5)
    assert cursor.next_due == pytest.approx(30, abs=5)


async def test_without_a_dead_letter_table(postgres: PostgresBackend) -> None:
    other = PostgresBackend(postgres.engine, table_name="bare", keep_dead=False)
    await other.create()
    await fill(other, *"aaab")
    a, b = (await claim(other, cursor=begun())).runs
    async with other.store.connect() as lane:
        outcomes: list[tuple[int, Outcome]] = [(a.rows[0].id, Dead("rejected")), (a.rows[1].id, POISON)]
        settled = await lane.settle(
            [Settlement.of_run(a.lease, outcomes), Settlement.of_run(b.lease, [(b.rows[0].id, Ack())])]
        )
    assert settled.held == {a.lease, b.lease}
    head, _ = await other.rows()
    assert (head.id, cause_in(head.headers_json).reason) == (a.rows[1].id, "retry_terminal")


def test_nothing_is_settled_behind_a_parked_row() -> None:
    import uuid  # noqa: PLC0415 - only here

    with pytest.raises(ValueError, match="blocks its key"):
        Settlement.of_run(Lease(1, uuid.uuid4()), [(1, POISON), (2, Ack())])
    with pytest.raises(TypeError, match=r"Park\(Dead"):
        Park("rejected")  # type: ignore[arg-type]  # what is refused


def test_the_name_is_reserved() -> None:
    with pytest.raises(ValueError, match="choose another name"):
        encode_headers({PARKED: "mine"})
