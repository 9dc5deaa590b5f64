import math
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from faststream_outbox.storage import Claim, ClaimCursor, NewRow
from faststream_outbox.storage.clock import lease_now
from tests.backends import Backend


async def test_due_rows_are_leased_in_order(backend: Backend) -> None:
    early = datetime(2020, 1, 1, tzinfo=UTC)
    ids = await backend.insert(NewRow("q", b"1"), NewRow("q", b"2"), NewRow("q", b"0", activate_at=early))

    before = lease_now()
    claim = await backend.claim("q", lease_seconds=30)

    assert [row.payload for row in claim.rows] == [b"0", b"1", b"2"]
    assert [row.id for row in claim.rows] == [ids[2], ids[0], ids[1]]
    assert not claim.more
    assert before + 30 <= claim.expires_at <= lease_now() + 30
    stored = {row.id: row for row in await backend.rows()}
    for row in claim.rows:
        assert row == stored[row.id]
        assert row.deliveries_count == 1
        assert row.attempts_count == 0
        assert not row.suspect
        assert row.acquired_at is not None
        assert row.lease_expires_at - row.acquired_at == timedelta(seconds=30)
    assert len({row.acquired_token for row in claim.rows}) == 1


async def test_a_claimed_row_is_not_claimed_again(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    assert len((await backend.claim("q")).rows) == 1
    assert (await backend.claim("q")).rows == []


async def test_two_claims_have_two_tokens(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b""))
    first, second = await backend.claim("q", limit=1), await backend.claim("q", limit=1)
    assert first.rows[0].acquired_token != second.rows[0].acquired_token


async def test_what_is_not_due_waits(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", activate_in=timedelta(seconds=30)))
    assert (await backend.claim("q")).rows == []
    await backend.pass_time(31)
    assert len((await backend.claim("q")).rows) == 1


async def test_other_queues_and_keyed_rows_are_left_alone(backend: Backend) -> None:
    await backend.insert(NewRow("other", b""), NewRow("q", b"", key="k"), NewRow("Q", b""))
    assert (await backend.claim("q")).rows == []


async def test_the_limit_is_kept_and_more_is_told(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"") for _ in range(5)))
    async with backend.store.connect() as lane:
        cursor = ClaimCursor(["q"])
        claims = [await lane.claim(cursor, limit=2, lease_seconds=60) for _ in range(4)]
    assert [len(claim.rows) for claim in claims] == [2, 2, 1, 0]
    assert [claim.more for claim in claims] == [True, True, False, False]


async def test_a_bulk_queue_does_not_starve_the_others(backend: Backend) -> None:
    async with backend.transaction() as session:
        await backend.store.insert_many(session, [NewRow("bulk", b"") for _ in range(500)])
        await backend.store.insert_many(session, [NewRow(f"small-{n}", b"") for n in range(9)])
    async with backend.store.connect() as lane:
        cursor = ClaimCursor(["bulk", *(f"small-{n}" for n in range(9))])
        first = await lane.claim(cursor, limit=50, lease_seconds=60)
        rest = [await lane.claim(cursor, limit=50, lease_seconds=60) for _ in range(3)]
    taken = Counter(row.queue for row in first.rows)
    assert taken == {"bulk": 5, **{f"small-{n}": 1 for n in range(9)}}
    assert first.more
    # What the others leave, the bulk queue gets.
    assert [len(claim.rows) for claim in rest] == [50, 50, 50]


@pytest.mark.parametrize(("queues", "limit"), [(3, 1), (40, 7), (5, 100)])
async def test_every_queue_has_its_turn(backend: Backend, queues: int, limit: int) -> None:
    names = [f"q{n}" for n in range(queues)]
    async with backend.transaction() as session:
        await backend.store.insert_many(session, [NewRow(name, b"") for name in names for _ in range(200)])
    served: Counter[str] = Counter()
    async with backend.store.connect() as lane:
        cursor = ClaimCursor(names)
        for _ in range(math.ceil(6 * queues / limit)):
            claim = await lane.claim(cursor, limit=limit, lease_seconds=60)
            assert len(claim.rows) == limit
            assert claim.more
            served.update(row.queue for row in claim.rows)
    assert set(served) == set(names)
    assert max(served.values()) <= 3 * min(served.values())


async def test_an_idle_queue_that_wakes_is_served_at_once(backend: Backend) -> None:
    async with backend.transaction() as session:
        await backend.store.insert_many(session, [NewRow("bulk", b"") for _ in range(300)])
    async with backend.store.connect() as lane:
        cursor = ClaimCursor(["bulk", "rare"])
        for _ in range(3):
            await lane.claim(cursor, limit=10, lease_seconds=60)
        await backend.insert(NewRow("rare", b""))
        claim = await lane.claim(cursor, limit=10, lease_seconds=60)
    assert "rare" in {row.queue for row in claim.rows}


async def test_a_released_row_is_found_again_by_the_same_cursor(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"") for _ in range(20)))
    async with backend.store.connect() as lane:
        cursor = ClaimCursor(["q"])
        first = await lane.claim(cursor, limit=5, lease_seconds=60)
        await lane.claim(cursor, limit=5, lease_seconds=60)
        await lane.release(first.rows)
        found: list[int] = []
        deadline = time.monotonic() + 10
        while len(found) < 15 and time.monotonic() < deadline:
            found += [row.id for row in (await lane.claim(cursor, limit=5, lease_seconds=60)).rows]
    assert set(found) >= {row.id for row in first.rows}


@pytest.mark.parametrize("queues", [[], [""], ["x" * 256], [None], "orders"])
def test_wrong_queues_are_refused(queues: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)):
        ClaimCursor(queues)


async def test_wrong_numbers_are_refused(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    for limit in (0, -1, True, 1.5):
        with pytest.raises((TypeError, ValueError), match="limit"):
            await backend.claim("q", limit=limit)  # type: ignore[arg-type]
    for seconds in (-1, math.nan, math.inf, True, "5"):
        with pytest.raises((TypeError, ValueError), match="lease_seconds"):
            await backend.claim("q", lease_seconds=seconds)  # type: ignore[arg-type]
    assert [row.deliveries_count for row in await backend.rows()] == [0]


async def test_when_the_next_row_is_due(backend: Backend) -> None:
    cursor = ClaimCursor(["q", "r"])
    async with backend.store.connect() as lane:
        assert await lane.next_due(cursor) is None
        await backend.insert(NewRow("other", b""), NewRow("q", b"", key="k"))
        assert await lane.next_due(cursor) is None, "not ours"
        await backend.insert(NewRow("q", b""))
        assert await lane.next_due(cursor) == 0, "due now"
        assert len((await lane.claim(cursor, limit=10, lease_seconds=60)).rows) == 1
        assert await lane.next_due(cursor) is None, "claimed"
        await backend.insert(NewRow("q", b"", activate_in=timedelta(seconds=60)))
        await backend.insert(NewRow("r", b"", activate_in=timedelta(seconds=40)))
        assert await lane.next_due(cursor) == pytest.approx(40, abs=5)
        assert await lane.next_due(ClaimCursor(["q"])) == pytest.approx(60, abs=5)
        await backend.pass_time(41)
        assert await lane.next_due(cursor) == 0, "it became due, and nobody claimed it yet"


async def test_a_claim_that_is_not_more_has_everything(backend: Backend) -> None:
    await backend.insert(*(NewRow(f"q{n}", b"") for n in range(3)))
    async with backend.store.connect() as lane:
        cursor = ClaimCursor(["q0", "q1", "q2"])
        claim: Claim = await lane.claim(cursor, limit=30, lease_seconds=60)
    assert len(claim.rows) == 3
    assert not claim.more


async def test_a_claim_ends_with_the_row_that_reaches_its_bytes(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"x" * 1000) for _ in range(10)))
    claimed, cursor = list[int](), ClaimCursor(["q"])
    async with backend.store.connect() as lane:
        for _ in range(3):
            claim = await lane.claim(cursor, limit=100, lease_seconds=60.0, max_bytes=3500)
            claimed.append(len(claim.rows))
            assert claim.more == (sum(claimed) < 10)
    assert claimed == [4, 4, 2]


async def test_a_row_of_more_bytes_than_a_claim_has_comes_alone(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"x" * 5000), NewRow("q", b""), NewRow("other", b""))
    cursor = ClaimCursor(["q", "other"])
    async with backend.store.connect() as lane:
        first = await lane.claim(cursor, limit=100, lease_seconds=60.0, max_bytes=1000)
        assert [len(row.payload) for row in first.rows] == [5000]
        assert first.more
        rest = await lane.claim(cursor, limit=100, lease_seconds=60.0, max_bytes=1000)
    assert sorted(row.queue for row in rest.rows) == ["other", "q"]
    assert not rest.more
