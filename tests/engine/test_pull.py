"""Rows on demand: one for each who asks, held for as long as the caller likes, settled as the caller says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pull import Puller
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import Ack, Dead, NewRow, Outcome, Retry
from tests.backends import Backend, PostgresBackend
from tests.engine.pipelines import Reports, fill
from tests.engine.slow_store import SlowBackend
from tests.runtime.test_telemetry import assert_closed


@asynccontextmanager
async def pulling(
    backend: Backend, *queues: str, monitor: Monitor | None = None, **options: Any
) -> AsyncIterator[Puller]:
    settings = SubscriberOptions(**{"min_fetch_interval": 0.01, "max_fetch_interval": 0.1, **options})
    puller = Puller(backend.store, queues or ("q",), options=settings, monitor=monitor)
    try:
        async with asyncio.timeout(60):
            yield puller
    finally:
        await puller.stop()


async def test_one_row_is_claimed_for_one_who_asks(backend: Backend) -> None:
    ids = await fill(backend, 3)
    async with pulling(backend) as puller:
        assert {row.deliveries_count for row in await backend.rows()} == {0}
        held = await puller.pull(5)
        assert held is not None
        assert held.id == ids[0]
        assert [row.deliveries_count for row in await backend.rows()] == [1, 0, 0]
        await puller.settle(held.lease, Ack())
        assert [row.id for row in await backend.rows()] == ids[1:], "it is written when settle returns"


@pytest.mark.parametrize("outcome", [Ack(), Retry(60, 1), Dead("rejected")], ids=lambda o: type(o).__name__)
async def test_the_callers_outcome_is_written_and_the_first_stands(backend: Backend, outcome: Outcome) -> None:
    await fill(backend, 1)
    reports = Reports()
    async with pulling(backend, monitor=reports) as puller:
        held = await puller.pull(5)
        assert held is not None
        await asyncio.gather(puller.settle(held.lease, outcome), puller.settle(held.lease, Ack()))
        await puller.settle(held.lease, Ack())
        assert len(await backend.rows()) == (1 if isinstance(outcome, Retry) else 0)
        assert len(await backend.dead_letters()) == (1 if isinstance(outcome, Dead) else 0)
    assert_closed(reports)
    assert sum(tags["count"] for tags in reports.counted("fetched")) == 1


async def test_nothing_in_time_is_none_and_nothing_is_claimed_later(backend: Backend) -> None:
    async with pulling(backend, min_fetch_interval=30, max_fetch_interval=30) as puller:
        assert await puller.pull(0.05) is None
        await fill(backend, 1)
        puller.wake()
    assert [row.deliveries_count for row in await backend.rows()] == [0]


async def test_a_call_wakes_the_one_who_waits(backend: Backend) -> None:
    async with pulling(backend, min_fetch_interval=30, max_fetch_interval=30) as puller:
        waiting = asyncio.create_task(puller.pull(None))
        await asyncio.sleep(0.05)
        await fill(backend, 1)
        puller.wake()
        async with asyncio.timeout(20):
            assert await waiting is not None


async def test_several_may_ask_and_each_gets_another_row(backend: Backend) -> None:
    ids = await fill(backend, 5)
    async with pulling(backend) as puller:
        held = await asyncio.gather(*(puller.pull(5) for _ in range(5)))
        assert sorted(one.id for one in held if one is not None) == ids
        for one in held:
            assert one is not None
            await puller.settle(one.lease, Ack())
    assert await backend.rows() == []


async def test_a_row_that_is_held_for_longer_than_its_lease_is_kept(backend: Backend) -> None:
    await fill(backend, 1)
    reports = Reports()
    async with pulling(backend, lease_ttl_seconds=1.5, monitor=reports) as puller:
        held = await puller.pull(5)
        assert held is not None
        await asyncio.sleep(2)
        await puller.settle(held.lease, Ack())
    assert await backend.rows() == []
    assert not reports.named("lease_lost")


async def test_a_suspect_is_pulled_too_when_nothing_else_is_held(backend: Backend) -> None:
    await fill(backend, 2)
    await backend.make_suspects("q", limit=1)
    async with pulling(backend) as puller:
        fresh = await puller.pull(5)
        assert fresh is not None
        assert not fresh.suspect
        assert await puller.pull(0.05) is None, "not beside another row"
        await puller.settle(fresh.lease, Ack())
        suspect = await puller.pull(5)
        assert suspect is not None
        assert suspect.suspect
        await puller.settle(suspect.lease, Ack())
    assert await backend.rows() == []


async def test_a_suspect_is_not_starved_by_a_busy_queue(backend: Backend) -> None:
    await fill(backend, 1)
    await backend.make_suspects("q", limit=1)
    async with pulling(backend, lease_ttl_seconds=1.0) as puller:
        async with asyncio.timeout(20):
            while True:
                await backend.insert(NewRow("q", b"busy"))
                held = await puller.pull(5)
                assert held is not None
                await puller.settle(held.lease, Ack())
                if held.suspect:
                    break


async def test_a_key_is_not_starved_by_rows_without_one(backend: Backend) -> None:
    await fill(backend, 10)
    await backend.insert(NewRow("q", b"ordered", key="a"))
    async with pulling(backend) as puller:
        taken = []
        for _ in range(2):
            held = await puller.pull(5)
            assert held is not None
            taken.append(held.payload)
            await puller.settle(held.lease, Ack())
    assert taken == [b"0", b"ordered"]


async def test_too_many_deliveries_are_buried_unseen(backend: Backend) -> None:
    await fill(backend, 1)
    await backend.claim("q", lease_seconds=1)
    await backend.pass_time(2)
    reports = Reports()
    async with pulling(backend, max_deliveries=1, monitor=reports) as puller:
        assert await puller.pull(0.5) is None
    assert [letter.failure_reason for letter in await backend.dead_letters()] == ["max_deliveries"]
    assert reports.counted("dispatched") == []


async def test_stopping_gives_back_what_has_no_outcome(backend: Backend) -> None:
    await fill(backend, 3)
    reports = Reports()
    async with pulling(backend, monitor=reports) as puller:
        held = await puller.pull(5)
        assert held is not None
        await puller.stop()
        assert [row.deliveries_count for row in await backend.rows()] == [0, 0, 0]
        assert {row.acquired_token for row in await backend.rows()} == {None}
        await puller.settle(held.lease, Ack())
        assert len(await backend.rows()) == 3, "it is no longer the caller's"
        assert await puller.pull(5) is None
    assert_closed(reports)


async def test_stopping_ends_the_wait_for_a_row(backend: Backend) -> None:
    async with pulling(backend, min_fetch_interval=30, max_fetch_interval=30) as puller:
        waiting = [asyncio.create_task(puller.pull(None)) for _ in range(3)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            await asyncio.gather(puller.stop(), puller.stop())
            assert await asyncio.gather(*waiting) == [None] * 3


async def test_stopping_what_never_began() -> None:
    await Puller(SlowBackend().store, ["q"]).stop()


@pytest.mark.parametrize("stops", [False, True])
async def test_a_row_that_comes_when_nobody_waits_any_more_is_given_back(stops: bool) -> None:
    backend = SlowBackend()
    await fill(backend, 1)
    async with pulling(backend) as puller:
        waiting = asyncio.create_task(puller.pull(None))
        await backend.slow.claiming.wait()
        if stops:
            stopping = asyncio.create_task(puller.stop())
            await asyncio.sleep(0)
            backend.slow.let.set()
            assert await waiting is None
            await stopping
        else:
            waiting.cancel()
            await asyncio.wait([waiting])
            backend.slow.let.set()
            async with asyncio.timeout(20):
                while (await backend.rows())[0].acquired_token is not None:
                    await asyncio.sleep(0.01)
    [row] = await backend.rows()
    assert (row.acquired_token, row.deliveries_count) == (None, 0)


async def test_a_connection_that_dies_is_opened_anew(postgres: PostgresBackend) -> None:
    reports = Reports()
    killer = PostgresBackend(create_async_engine(postgres.engine.url, pool_size=1, max_overflow=0))
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    ids = await fill(postgres, 5)
    seen = []
    async with pulling(postgres, monitor=reports, lease_ttl_seconds=30) as puller:
        for _ in ids:
            held = await puller.pull(10)
            assert held is not None
            await killer.one(kill)
            await puller.settle(held.lease, Ack())
            seen.append(held.id)
    assert seen == ids
    assert await killer.one("SELECT count(*) FROM outbox") == 0
    assert reports.named("claim_failed"), "it hurt"
    assert reports.named("settle_failed")
    await killer.engine.dispose()


async def test_callers_that_leave_and_stop_at_any_moment_leave_no_row_leased(backend: Backend) -> None:
    await fill(backend, 20)
    async with pulling(backend, lease_ttl_seconds=60.0) as puller:
        for turn in range(30):
            caller = asyncio.create_task(puller.pull(None))
            for _ in range(turn):
                await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait([caller])
            if not caller.cancelled() and (held := caller.result()) is not None:
                await puller.settle(held.lease, Retry(0.0, 0))
        waiting = asyncio.create_task(puller.pull(None))
        await asyncio.sleep(0.001)
        await puller.stop()
        await waiting
    assert {row.acquired_token for row in await backend.rows()} == {None}


async def test_a_row_of_a_caller_that_left_goes_to_the_next(backend: Backend) -> None:
    [only] = await fill(backend, 1)
    async with pulling(backend, min_fetch_interval=30, max_fetch_interval=30) as puller:
        leaving = asyncio.create_task(puller.pull(None))
        staying = asyncio.create_task(puller.pull(None))
        await asyncio.sleep(0)
        leaving.cancel()
        held = await staying
        assert held is not None
        assert held.id == only
        await puller.settle(held.lease, Ack())


async def test_rows_are_pulled_beside_a_suspect_that_a_caller_holds(backend: Backend) -> None:
    await fill(backend, 1)
    await backend.make_suspects("q", limit=1)
    async with pulling(backend) as puller:
        suspect = await puller.pull(5)
        assert suspect is not None
        assert suspect.suspect
        await backend.insert(NewRow("q", b"fresh"))
        fresh = await puller.pull(5)
        assert fresh is not None
        assert fresh.payload == b"fresh"


async def test_a_key_among_many_that_are_not_due_is_found_by_one_pull(backend: Backend) -> None:
    later = timedelta(hours=1)
    for number in range(50):
        await backend.insert(NewRow("q", b"", key=f"{number:02}", activate_in=later))
    async with pulling(backend, min_fetch_interval=30, max_fetch_interval=30) as puller:
        assert await puller.pull(0.2) is None
        await backend.insert(NewRow("q", b"", key="due"))
        held = await puller.pull(5)
        assert held is not None
        assert held.entity_key == "due"
