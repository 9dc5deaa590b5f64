from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from faststream_outbox.storage import Ack, ClaimCursor, Lease, NewRow, Retry, Settlement, StoreLane
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.ordering import KeyCursor
from tests.backends import Backend, everywhere


async def test_an_expired_row_is_a_suspect_and_claimed_alone(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"%d" % n) for n in range(3)))
    first = await backend.claim("q", lease_seconds=10)
    async with backend.store.connect() as lane:
        assert (await lane.claim_suspect(everywhere("q"), lease_seconds=10)).rows == []
        await backend.pass_time(11)
        assert (await backend.claim("q")).rows == [], "an ordinary claim leaves suspects alone"
        suspects = [await lane.claim_suspect(everywhere("q"), lease_seconds=10) for _ in range(4)]
    assert [len(claim.rows) for claim in suspects] == [1, 1, 1, 0]
    assert {claim.rows[0].id for claim in suspects[:3]} == {row.id for row in first.rows}
    for claim in suspects[:3]:
        assert claim.rows[0].suspect
        assert claim.rows[0].deliveries_count == 2
        assert claim.rows[0].acquired_token != first.rows[0].acquired_token


async def test_a_suspect_of_another_queue_is_left_alone(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    await backend.claim("q", lease_seconds=1)
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        assert (await lane.claim_suspect(everywhere("other"), lease_seconds=10)).rows == []
        assert len((await lane.claim_suspect(everywhere("other", "q"), lease_seconds=10)).rows) == 1


async def test_a_renewed_lease_lasts(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b""))
    kept, left = (await backend.claim("q", lease_seconds=10)).rows
    async with backend.store.connect() as lane:
        await backend.pass_time(6)
        assert await lane.renew([kept.lease, kept.lease], lease_seconds=10) == {kept.lease}
        await backend.pass_time(6)
        claim = await lane.claim_suspect(everywhere("q"), lease_seconds=10)
    assert [row.id for row in claim.rows] == [left.id]


async def test_a_lost_lease_is_not_renewed(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b""))
    lost, held = (await backend.claim("q", lease_seconds=10)).rows
    async with backend.store.connect() as lane:
        await lane.renew([held.lease], lease_seconds=100)
        await backend.pass_time(11)
        [thief] = (await lane.claim_suspect(everywhere("q"), lease_seconds=100)).rows
        assert thief.id == lost.id
        everything = [lost.lease, held.lease, thief.lease, Lease(lost.id, uuid4()), Lease(10**15, lost.lease.token)]
        assert await lane.renew(everything, lease_seconds=10) == {held.lease, thief.lease}


async def test_an_expired_lease_that_nobody_took_can_be_renewed_and_settled(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b""))
    one, two = (await backend.claim("q", lease_seconds=10)).rows
    await backend.pass_time(11)
    async with backend.store.connect() as lane:
        assert await lane.renew([one.lease], lease_seconds=10) == {one.lease}
        assert (await lane.settle([Settlement(two.lease, Ack())])).held == {two.lease}


async def test_released_rows_are_as_if_never_claimed(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"a"), NewRow("q", b"b"))
    before = await backend.rows()
    claim = await backend.claim("q")
    async with backend.store.connect() as lane:
        assert await lane.release(claim.rows) == {row.lease for row in claim.rows}
        assert await backend.rows() == before
        assert await lane.release(claim.rows) == frozenset(), "a released row is no longer held"
    assert len((await backend.claim("q")).rows) == 2


async def test_rows_may_be_released_for_later(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"a"), NewRow("q", b"b", key="k"))
    claim = await backend.claim("q")
    async with backend.store.connect() as lane:
        runs = await lane.claim_runs(KeyCursor(["q"]), keys=1, rows_per_key=1, lease_seconds=60)
        rows = [*claim.rows, *runs.runs[0].rows]
        assert await lane.release(rows, delay_seconds=30) == {row.lease for row in rows}
        assert {row.deliveries_count for row in await backend.rows()} == {0}
        for due in (0, 1):
            assert len((await backend.claim("q")).rows) == due
            assert len((await lane.claim_runs(KeyCursor(["q"]), keys=1, rows_per_key=1, lease_seconds=60)).runs) == due
            await backend.pass_time(31)


async def claimed_runs(lane: StoreLane, cursor: KeyCursor) -> list[str]:
    """Claim until the cursor is at rest; return the queues of the rows."""
    claimed: list[str] = []
    while not cursor.at_rest:
        runs = await lane.claim_runs(cursor, keys=10, rows_per_key=10, lease_seconds=60)
        claimed += [row.queue for run in runs.runs for row in run.rows]
    return claimed


async def test_paused_queues_are_left_out(backend: Backend) -> None:
    await backend.insert(*(NewRow(queue, b"", key=key) for queue in ("q", "r") for key in (None, "k")))
    rows, keys = ClaimCursor(["q", "r"]), KeyCursor(["q", "r"])
    rows.paused = keys.paused = frozenset({"q"})
    async with backend.store.connect() as lane:
        claim = await lane.claim(rows, limit=10, lease_seconds=60)
        assert [row.queue for row in claim.rows] == ["r"]
        assert await lane.next_due(rows) is None
        assert await claimed_runs(lane, keys) == ["r"]
        rows.paused = keys.paused = frozenset()
        assert await lane.next_due(rows) == 0.0
        assert [row.queue for row in (await lane.claim(rows, limit=10, lease_seconds=60)).rows] == ["q"]
        assert await claimed_runs(lane, keys) == ["q"]


async def test_a_released_suspect_stays_a_suspect(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    await backend.claim("q", lease_seconds=1)
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        suspect = await lane.claim_suspect(everywhere("q"), lease_seconds=60)
        assert await lane.release(suspect.rows) == {suspect.rows[0].lease}
        assert (await backend.claim("q")).rows == []
        [again] = (await lane.claim_suspect(everywhere("q"), lease_seconds=60)).rows
    assert again.suspect
    assert again.deliveries_count == 2, "the delivery of the released claim is not counted"


async def test_what_others_hold_is_not_released(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    [lost] = (await backend.claim("q", lease_seconds=1)).rows
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        [thief] = (await lane.claim_suspect(everywhere("q"), lease_seconds=60)).rows
        assert await lane.release([lost]) == frozenset()
    [row] = await backend.rows()
    assert row.acquired_token == thief.acquired_token
    assert row.deliveries_count == 2


async def test_a_retried_suspect_is_free_again(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    await backend.claim("q", lease_seconds=1)
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        [suspect] = (await lane.claim_suspect(everywhere("q"), lease_seconds=60)).rows
        await lane.settle([Settlement(suspect.lease, Retry(0.0, 1))])
    [row] = (await backend.claim("q")).rows
    assert not row.suspect


async def test_nothing_is_no_work(backend: Backend) -> None:
    async with backend.store.connect() as lane:
        assert await lane.renew([], lease_seconds=10) == frozenset()
        assert await lane.release([]) == frozenset()
        assert (await lane.settle([])).held == frozenset()


async def test_whoever_released_a_suspect_has_let_go_of_it(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    await backend.claim("q", lease_seconds=1)
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        suspect = await lane.claim_suspect(everywhere("q"), lease_seconds=60)
        [row] = suspect.rows
        assert await lane.release([row]) == {row.lease}
        assert await lane.release([row]) == frozenset()
        assert await lane.renew([row.lease], lease_seconds=60) == frozenset()
        assert (await lane.settle([Settlement(row.lease, Ack())])).lost == {row.lease}
    assert [row.deliveries_count for row in await backend.rows()] == [1]


async def test_suspects_take_turns(backend: Backend) -> None:
    """One that brings its process down every time does not keep the others from being tried."""
    await backend.insert(*(NewRow("q", b"") for _ in range(3)))
    await backend.claim("q", lease_seconds=1)
    tried = []
    async with backend.store.connect() as lane:
        for _ in range(6):
            await backend.pass_time(2)
            tried += (await lane.claim_suspect(everywhere("q"), lease_seconds=1)).rows
    assert len({row.id for row in tried[:3]}) == 3
    assert len({row.id for row in tried[3:]}) == 3


async def test_a_suspect_is_found_among_many_that_are_in_flight(backend: Backend) -> None:
    async with backend.transaction() as session:
        await backend.store.insert_many(session, [NewRow("q", b"") for _ in range(1501)])
    [expired] = (await backend.claim("q", limit=1, lease_seconds=1)).rows
    await backend.pass_time(2)
    cursor = ClaimCursor(["q"])
    async with backend.store.connect() as lane:
        assert (await lane.claim_suspect(cursor, lease_seconds=60)).rows == [], "nothing was claimed yet"
        await lane.claim(cursor, limit=1400, lease_seconds=600)
        [found] = (await lane.claim_suspect(cursor, lease_seconds=60)).rows
    assert found.id == expired.id


async def test_a_claimed_row_tells_the_databases_time(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    before = lease_now()
    [row] = (await backend.claim("q", lease_seconds=10)).rows
    assert before <= row.claimed_at <= lease_now()
    await backend.pass_time(11)
    async with backend.store.connect() as lane:
        [suspect] = (await lane.claim_suspect(everywhere("q"), lease_seconds=10)).rows
    assert row.claimed_at <= suspect.claimed_at <= lease_now()
    for claimed in (row, suspect):
        assert claimed.acquired_at is not None
        elapsed = timedelta(seconds=lease_now() - claimed.claimed_at)
        assert claimed.database_now() - claimed.acquired_at == pytest.approx(elapsed, abs=timedelta(seconds=1))
        later = replace(claimed, claimed_at=claimed.claimed_at - 3600)
        assert later.database_now() - claimed.database_now() == pytest.approx(
            timedelta(hours=1), abs=timedelta(seconds=1)
        )
    with pytest.raises(ValueError, match="not claimed by this process"):
        (await backend.rows())[0].database_now()
