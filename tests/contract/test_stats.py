from datetime import timedelta

import pytest

from faststream_outbox.storage import Dead, NewRow, Settlement
from tests.backends import Backend


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
    assert (b.queue, b.ready, b.scheduled, b.in_flight, b.expired, b.dead) == ("b", 0, 0, 0, 0, 1)
    assert b.oldest_ready_age is b.oldest_age is None


async def test_a_store_answers(backend: Backend) -> None:
    async with backend.store.connect() as lane:
        await lane.ping()
