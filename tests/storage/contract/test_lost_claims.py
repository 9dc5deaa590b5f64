"""Claims whose answer was lost: by their token their rows are released, and nothing else is."""

from dataclasses import replace
from uuid import uuid4

import pytest

from faststream_outbox.storage import NewRow
from faststream_outbox.storage.contract import SentClaim
from faststream_outbox.storage.ordering import (
    AdvisoryLocks,
    HashShards,
    HeadLease,
    KeyCursor,
    Ordering,
    OwnShards,
    Shard,
)
from tests.backends import Backend, everywhere

STRATEGIES = [HeadLease(), AdvisoryLocks(), HashShards(count=2, shards=[0, 1])]


def cursor(ordering: Ordering) -> KeyCursor:
    shards = OwnShards(2, [Shard("q", 0), Shard("q", 1)]) if isinstance(ordering, HashShards) else None
    return KeyCursor(["q"], ordering=ordering, shards=shards)


async def test_rows_of_a_lost_claim_are_free_and_their_delivery_is_not_counted(backend: Backend) -> None:
    ids = await backend.insert(*(NewRow("q", b"%d" % n) for n in range(4)))
    held = (await backend.claim("q", limit=2)).rows
    async with backend.store.connect() as lane:
        await lane.claim(everywhere("q"), limit=10, lease_seconds=60)
        assert lane.sent is not None
        assert (await lane.give_back(lane.sent)).freed == 2
        assert (await lane.give_back(lane.sent)).freed == 0
    rows = {row.id: row for row in await backend.rows()}
    assert [rows[row_id].deliveries_count for row_id in ids] == [1, 1, 0, 0]
    assert [rows[row.id].acquired_token for row in held] == [row.acquired_token for row in held]
    again = (await backend.claim("q")).rows
    assert [(row.id, row.suspect, row.deliveries_count) for row in again] == [(each, False, 1) for each in ids[2:]]


@pytest.mark.parametrize("ordering", STRATEGIES, ids=lambda each: type(each).__name__)
async def test_keys_of_a_lost_claim_are_free_and_their_runs_come_whole(backend: Backend, ordering: Ordering) -> None:
    await backend.insert(*(NewRow("q", b"%d" % n, key=f"k{n % 3}") for n in range(6)))
    async with backend.store.connect() as lane:
        held = await lane.claim_runs(cursor(HeadLease()), keys=1, rows_per_key=5, lease_seconds=60)
        await lane.claim_runs(cursor(ordering), keys=9, rows_per_key=5, lease_seconds=60)
        sent = lane.sent
        assert sent is not None
        await backend.insert(NewRow("q", b"", key="free, and before them"))
        assert (await lane.give_back(sent)).freed == 2
        assert (await lane.give_back(sent)).freed == 0
        claimed = await lane.claim_runs(cursor(ordering), keys=9, rows_per_key=5, lease_seconds=60)
    again = [run for run in claimed.runs if len(run.rows) > 1]
    assert len(held.runs) == 1
    assert {run.key for run in (*held.runs, *again)} == {"k0", "k1", "k2"}
    assert [[row.deliveries_count for row in run.rows] for run in again] == [[1, 1], [1, 1]]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_suspect_of_a_lost_claim_stays_one(backend: Backend, key: str | None) -> None:
    await backend.insert(NewRow("q", b"", key=key))
    async with backend.store.connect() as lane:

        async def claim(*, suspects: bool) -> list[int]:
            if key is None and suspects:
                return [
                    row.deliveries_count for row in (await lane.claim_suspect(everywhere("q"), lease_seconds=1)).rows
                ]
            if key is None:
                return [row.deliveries_count for row in (await backend.claim("q", lease_seconds=1)).rows]
            claimed = await lane.claim_runs(
                cursor(HeadLease()), keys=1, rows_per_key=5, lease_seconds=1, suspects=suspects
            )
            return [row.deliveries_count for run in claimed.runs for row in run.rows]

        assert await claim(suspects=False) == [1]
        await backend.pass_time(2)
        assert await claim(suspects=True) == [2]
        assert lane.sent is not None
        assert (await lane.give_back(lane.sent)).freed == 1
        assert await claim(suspects=False) == []
        assert await claim(suspects=True) == [2], "the delivery was not counted"


async def test_a_claim_that_leased_nothing_frees_nothing(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b"", key="k"))
    async with backend.store.connect() as lane:
        await lane.claim(everywhere("q"), limit=10, lease_seconds=60)
        assert lane.sent is not None
        for sent in (replace(lane.sent, token=uuid4()), SentClaim(uuid4(), keys=("q", ("", 0)))):
            assert (await lane.give_back(sent)).freed == 0
    assert sorted(row.deliveries_count for row in await backend.rows()) == [0, 1]
