from datetime import timedelta

import pytest

from faststream_outbox.storage import Ack, Dead, NewRow, Park, QueueStats, Retry, Settlement
from tests.backends import Backend
from tests.storage.contract.test_runs import begun, claim, fill, settle


async def test_an_empty_store_has_no_queues(backend: Backend) -> None:
    async with backend.store.connect() as lane:
        assert await lane.stats() == []


async def test_every_row_is_counted_once(backend: Backend) -> None:
    await backend.insert(NewRow("a", b""), NewRow("a", b""), NewRow("a", b""))
    [expired] = (await backend.claim("a", limit=1, lease_seconds=5)).rows
    await backend.pass_time(10)
    [flying] = (await backend.claim("a", limit=1, lease_seconds=60)).rows
    await backend.insert(NewRow("a", b"", activate_in=timedelta(hours=1)), NewRow("b", b""))
    [dying] = (await backend.claim("b")).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(dying.lease, Dead("rejected"))])
        a, b = await lane.stats()
    assert expired.id != flying.id
    assert (a.queue, a.ready, a.scheduled, a.in_flight, a.expired, a.dead) == ("a", 1, 1, 1, 1, 0)
    assert (a.total, b.total) == (4, 0)
    assert a.oldest_ready_age == pytest.approx(10, abs=5)
    assert a.oldest_age == pytest.approx(10, abs=5)
    assert a.oldest_due_age == pytest.approx(10, abs=5)
    assert (b.queue, b.ready, b.scheduled, b.in_flight, b.expired, b.dead) == ("b", 0, 0, 0, 0, 1)
    assert b.oldest_ready_age is b.oldest_age is b.oldest_due_age is None


HOUR = timedelta(hours=1)


async def count(backend: Backend) -> QueueStats:
    async with backend.store.connect() as lane:
        [stats] = await lane.stats()
    assert stats.total == len(await backend.rows())
    async with backend.transaction() as session:
        blocked = await backend.store.read_keys(session)
    assert stats.blocked_keys == len(blocked)
    assert stats.parked_keys == sum(key.state == "parked" for key in blocked)
    return stats


async def test_rows_behind_a_head_that_is_not_ready_are_blocked(backend: Backend) -> None:
    await fill(backend, *"ppprrreeeoo")
    runs = {run.key: run for run in (await claim(backend, cursor=begun())).runs}
    await settle(backend, runs["p"], Park(Dead("rejected")))
    await settle(backend, runs["r"], Retry(3600.0, 1))
    await settle(backend, runs["o"], Ack(), Ack())
    await backend.insert(*(NewRow("q", b"", key="delayed", activate_in=HOUR) for _ in range(3)))
    await backend.pass_time(61)
    await fill(backend, *"fff")
    await claim(backend, keys=1, cursor=begun())
    stats = await count(backend)
    assert (stats.ready, stats.scheduled, stats.in_flight, stats.expired) == (0, 2, 1, 1)
    assert stats.blocked == 3 + 2 + 2 + 2 + 2, "the parked head too"
    assert (stats.blocked_keys, stats.parked_keys) == (4, 1)
    assert stats.oldest_ready_age is None
    assert stats.oldest_age == pytest.approx(61, abs=30)


async def test_rows_of_a_key_are_ready_when_its_head_is(backend: Backend) -> None:
    await fill(backend, *"aaa")
    await backend.pass_time(50)
    await backend.insert(NewRow("q", b"", key="a", activate_in=HOUR), NewRow("q", b"", key="a"), NewRow("q", b""))
    stats = await count(backend)
    assert (stats.ready, stats.scheduled, stats.blocked, stats.blocked_keys) == (5, 1, 0, 0)
    assert stats.oldest_ready_age == pytest.approx(50, abs=30)


async def test_the_age_is_that_of_what_can_be_claimed(backend: Backend) -> None:
    await fill(backend, *"aa")
    [run] = (await claim(backend, rows_per_key=1, cursor=begun())).runs
    await settle(backend, run, Park(Dead("rejected")))
    await backend.pass_time(1000)
    await backend.insert(NewRow("q", b"", key="b"), NewRow("q", b""))
    stats = await count(backend)
    assert (stats.ready, stats.blocked) == (2, 2)
    assert stats.oldest_ready_age == pytest.approx(0, abs=30)
    assert stats.oldest_age == pytest.approx(1000, abs=30)


async def test_what_is_in_hand_is_late_too(backend: Backend) -> None:
    """A relay whose broker is down has the head of each key in its hands, and nothing is ready."""
    await fill(backend, *"aaa")
    await backend.insert(NewRow("q", b"", activate_in=HOUR))
    await claim(backend, cursor=begun())
    await backend.pass_time(50)
    stats = await count(backend)
    assert stats.oldest_ready_age is None
    assert stats.oldest_due_age == pytest.approx(50, abs=30)


async def test_a_parked_key_is_not_late(backend: Backend) -> None:
    await fill(backend, *"aa")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Park(Dead("rejected")))
    await backend.pass_time(50)
    assert (await count(backend)).oldest_due_age is None


async def test_a_store_answers(backend: Backend) -> None:
    async with backend.store.connect() as lane:
        await lane.ping()


async def unserved(backend: Backend, *known: str) -> dict[str, int]:
    async with backend.store.connect() as lane:
        found = await lane.unserved(known)
    async with backend.store.listen(lambda _queue: None) as listening:
        assert await listening.unserved(known) == found, "the same on the listening connection"
    return found


async def test_rows_of_queues_that_are_not_known_are_counted(backend: Backend) -> None:
    assert await unserved(backend) == {}
    await backend.insert(*(NewRow(queue, b"") for queue in ("a", "b", "b", "c")))
    await backend.insert(*(NewRow(queue, b"", key=key) for queue, key in (("b", "x"), ("d", "x"), ("d", "y"))))
    assert await unserved(backend) == {"a": 1, "b": 3, "c": 1, "d": 2}
    assert await unserved(backend, "a", "d", "other") == {"b": 3, "c": 1}
    assert await unserved(backend, *"abcd") == {}


async def test_only_rows_that_could_be_claimed_are_counted(backend: Backend) -> None:
    await backend.insert(NewRow("timers", b"", activate_in=HOUR), NewRow("both", b"", activate_in=HOUR))
    await backend.insert(NewRow("both", b""), NewRow("both", b""))
    await fill(backend, *"ppaa")
    runs = {run.key: run for run in (await claim(backend, cursor=begun())).runs}
    await settle(backend, runs["p"], Park(Dead("rejected")))
    await settle(backend, runs["a"], Retry(0.0, 1))
    assert await unserved(backend) == {"both": 2, "q": 2}, "not the rows behind a parked one"


@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
async def test_a_lease_says_that_somebody_reads_the_queue(backend: Backend, key: str | None) -> None:
    await backend.insert(*(NewRow("q", b"", key=key) for _ in range(3)))
    if key is None:
        await backend.claim("q", limit=1)
    else:
        await claim(backend, rows_per_key=1, cursor=begun())
    assert await unserved(backend) == {}
    await backend.pass_time(61)
    assert await unserved(backend) == {"q": 3}, "until it is over"
