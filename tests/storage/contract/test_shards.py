"""Shards: every process holds its fair share, and those of whoever comes, leaves or dies change hands."""

from collections.abc import Iterable
from uuid import uuid4

from faststream_outbox.storage.ordering import HashShards, KeyCursor, OwnShards, Shard, ShardHolder
from faststream_outbox.storage.rows import NewRow
from tests.backends import Backend, PostgresBackend

COUNT = 16


def holder(name: str) -> ShardHolder:
    return ShardHolder(uuid4(), name)


async def share(
    backend: Backend, who: ShardHolder, *, queues: Iterable[str] = ("q",), count: int = COUNT
) -> set[Shard]:
    async with backend.store.connect() as lane:
        return set(await lane.share_shards(who, list(queues), count=count, lease_seconds=6.0))


async def leave(backend: Backend, who: ShardHolder) -> None:
    async with backend.store.connect() as lane:
        await lane.leave_shards(who, ["q"])


async def pass_time(backend: Backend, seconds: float) -> None:
    if isinstance(backend, PostgresBackend):
        await backend.run(
            "UPDATE outbox_shards SET lease_expires_at = lease_expires_at - make_interval(secs => :seconds)",
            seconds=seconds,
        )
    else:
        await backend.pass_time(seconds)


async def test_who_is_alone_has_all(backend: Backend) -> None:
    assert await share(backend, holder("a"), queues=["q", "r"]) == {
        Shard(queue, number) for queue in ("q", "r") for number in range(COUNT)
    }


async def test_who_comes_gets_its_share_at_once(backend: Backend) -> None:
    first, second, third = holder("a"), holder("b"), holder("c")
    await share(backend, first)
    theirs = await share(backend, second)
    assert len(theirs) == COUNT // 2
    mine = await share(backend, first)
    assert len(mine) == COUNT // 2
    assert not mine & theirs
    assert len(await share(backend, third)) == COUNT // 3
    parts = [await share(backend, each) for each in (first, second, third)]
    assert sorted(map(len, parts)) == [5, 5, 6]
    assert len(set().union(*parts)) == COUNT


async def test_a_share_stays_what_it_is_while_nobody_comes_or_goes(backend: Backend) -> None:
    some = [holder(name) for name in "abc"]
    for each in some * 2:
        await share(backend, each)
    before = [await share(backend, each) for each in some]
    assert [await share(backend, each) for each in some] == before


async def test_who_leaves_is_followed_at_once(backend: Backend) -> None:
    first, second = holder("a"), holder("b")
    await share(backend, first)
    await share(backend, second)
    await leave(backend, first)
    assert len(await share(backend, second)) == COUNT


async def test_who_dies_is_followed_when_its_leases_are_over(backend: Backend) -> None:
    first, second = holder("a"), holder("b")
    await share(backend, first)
    await share(backend, second)
    assert len(await share(backend, second)) == COUNT // 2
    await pass_time(backend, 7.0)
    assert len(await share(backend, second)) == COUNT


async def test_there_may_be_more_processes_than_shards(backend: Backend) -> None:
    some = [holder(str(number)) for number in range(5)]
    for each in some * 2:
        await share(backend, each, count=4)
    assert sorted([len(await share(backend, each, count=4)) for each in some]) == [0, 1, 1, 1, 1]


async def test_another_count_finds_shards_of_its_own(backend: Backend) -> None:
    few, many = holder("few"), holder("many")
    assert len(await share(backend, few, count=4)) == 4
    theirs = await share(backend, many, count=8)
    assert {Shard("q", number) for number in range(4, 8)} <= theirs


async def test_a_claimer_sees_the_keys_of_its_shards_only(backend: Backend) -> None:
    keys = [f"key {number}" for number in range(40)]
    await backend.insert(*(NewRow("q", b"", key=key) for key in keys))
    seen = list[str | None]()
    for number in range(4):
        own = OwnShards(4, [Shard("q", number)])
        cursor = KeyCursor(["q"], ordering=HashShards(count=4), shards=own)
        async with backend.store.connect() as lane:
            for _ in range(2):  # it may begin anywhere, and goes round
                claim = await lane.claim_runs(cursor, keys=100, rows_per_key=10, lease_seconds=60.0)
                seen += [run.key for run in claim.runs]
        assert len(seen) > 0
    assert sorted(key for key in seen if key) == sorted(keys)
    assert len(seen) == len(keys)


async def test_without_shards_nothing_is_claimed(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", key="a"))
    cursor = KeyCursor(["q"], ordering=HashShards(), shards=OwnShards(16))
    async with backend.store.connect() as lane:
        for _ in range(3):
            claim = await lane.claim_runs(cursor, keys=100, rows_per_key=10, lease_seconds=60.0)
            assert claim.runs == []
    assert not claim.more
