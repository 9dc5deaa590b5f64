"""The loops of a subscriber, on every store, with handlers that misbehave and connections that break."""

import asyncio
import random
from collections import Counter

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import EmbeddedPostgres
from faststream_outbox.storage import Ack, Dead, OutboxRow, Outcome, Retry
from tests.backends import Backend, PostgresBackend, everywhere
from tests.engine.pipelines import Reports, fill, running
from tests.waiting import until, until_empty


async def test_every_row_is_handled_once_and_in_order(backend: Backend) -> None:
    ids = await fill(backend, 1000)
    handled: list[int] = []

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.id)
        return Ack()

    async with running(backend, handle):
        await until_empty(backend)
    assert handled == ids


async def test_workers_work_side_by_side(backend: Backend) -> None:
    await fill(backend, 8)
    together = asyncio.Barrier(8)

    async def handle(_row: OutboxRow) -> Outcome:
        await together.wait()
        return Ack()

    async with running(backend, handle, max_workers=8):
        await until_empty(backend)


async def test_every_outcome_is_written(backend: Backend) -> None:
    async def handle(row: OutboxRow) -> Outcome:
        if row.payload == b"0":
            return Dead("rejected", "no")
        return Ack() if row.attempts_count == 2 else Retry(0.01, row.attempts_count + 1)

    await fill(backend, 20)
    async with running(backend, handle, max_workers=3):
        await until_empty(backend)
    [letter] = await backend.dead_letters()
    assert letter.payload == b"0"


async def test_rows_that_come_later_are_found(backend: Backend) -> None:
    handled: list[bytes] = []

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.payload)
        return Ack()

    async with running(backend, handle, "a", "b") as pipeline:
        await fill(backend, 3, "a")
        await until_empty(backend)
        await fill(backend, 3, "b")
        pipeline.wake()
        await until_empty(backend)
    assert len(handled) == 6


async def test_a_handler_slower_than_its_lease_keeps_it(backend: Backend) -> None:
    await fill(backend, 10)
    handled: Counter[int] = Counter()

    async def handle(row: OutboxRow) -> Outcome:
        handled[row.id] += 1
        await asyncio.sleep(3)
        return Ack()

    reports = Reports()
    async with running(backend, handle, max_workers=10, lease_ttl_seconds=1.5, reports=reports):
        await until_empty(backend)
    assert set(handled.values()) == {1}
    assert len(handled) == 10
    assert not reports.named("lease_lost")


async def test_a_subscriber_whose_hands_are_full_is_alive(backend: Backend) -> None:
    await fill(backend, 4)
    began, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_row: OutboxRow) -> Outcome:
        began.set()
        await may_end.wait()
        return Ack()

    async with running(backend, handle, fetch_batch_size=1, max_fetch_interval=0.01, lease_ttl_seconds=0.3) as pipeline:
        await began.wait()
        await asyncio.sleep(0.8)  # longer than a claim may take to be late
        assert pipeline.alive
        may_end.set()
        await until_empty(backend)


async def test_max_deliveries_buries_without_handling(backend: Backend) -> None:
    await fill(backend, 1)
    for _ in range(2):
        claim = await backend.claim("q", lease_seconds=1)
        async with backend.store.connect() as lane:
            if not claim.rows:
                await lane.claim_suspect(everywhere("q"), lease_seconds=1)
        await backend.pass_time(2)
    handled = []

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row)
        return Ack()

    async with running(backend, handle, max_deliveries=2):
        await until_empty(backend)
    assert not handled
    assert [letter.failure_reason for letter in await backend.dead_letters()] == ["max_deliveries"]


async def test_suspects_run_alone(backend: Backend) -> None:
    await fill(backend, 30)
    await backend.make_suspects("q", limit=5)
    at_once = 0
    beside_a_suspect: list[int] = []

    async def handle(row: OutboxRow) -> Outcome:
        nonlocal at_once
        at_once += 1
        for _ in range(5):
            await asyncio.sleep(0)
            if row.suspect:
                beside_a_suspect.append(at_once)
        at_once -= 1
        return Ack()

    async with running(backend, handle, max_workers=8):
        await until_empty(backend)
    assert len(beside_a_suspect) == 25
    assert set(beside_a_suspect) == {1}


async def test_many_suspects_do_not_wait_for_an_idle_look_between_them(backend: Backend) -> None:
    await fill(backend, 8)
    await backend.make_suspects("q", limit=8)

    async def handle(_row: OutboxRow) -> Outcome:
        await asyncio.sleep(0.3)  # two of them fill the time that suspects get at once
        return Ack()

    # Idle looks come after 1, 2, 4 and 8 seconds.
    async with (
        asyncio.timeout(8),
        running(backend, handle, lease_ttl_seconds=5, min_fetch_interval=1, max_fetch_interval=30),
    ):
        await until_empty(backend)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("bug"), KeyError("bug")])
async def test_whatever_escapes_a_handler_is_a_failed_attempt(backend: Backend, error: BaseException) -> None:
    await fill(backend, 3)
    attempts: Counter[bytes] = Counter()

    async def handle(row: OutboxRow) -> Outcome:
        attempts[row.payload] += 1
        if row.payload == b"1" and attempts[row.payload] == 1:
            raise error
        return Ack()

    async with running(backend, handle) as pipeline:
        while attempts[b"1"] < 2:
            await backend.pass_time(1)
            await asyncio.sleep(0.02)
        await until_empty(backend)
        assert pipeline.alive
    assert attempts == {b"0": 1, b"1": 2, b"2": 1}


async def test_stopping_lets_what_is_in_hand_run(backend: Backend) -> None:
    await fill(backend, 20)
    done = 0
    first = asyncio.Event()

    async def handle(_row: OutboxRow) -> Outcome:
        nonlocal done
        first.set()
        await asyncio.sleep(0.05)
        done += 1
        return Ack()

    async with running(backend, handle, max_workers=4):
        await first.wait()
    assert done == 20
    assert await backend.rows() == []


async def test_stopping_claims_no_more(backend: Backend) -> None:
    await fill(backend, 100)
    first = asyncio.Event()

    async def handle(_row: OutboxRow) -> Outcome:
        first.set()
        await asyncio.sleep(0.01)
        return Ack()

    async with running(backend, handle, fetch_batch_size=10):
        await first.wait()
    left = await backend.rows()
    assert len(left) >= 70
    assert {row.deliveries_count for row in left} == {0}


async def test_when_the_time_is_over_the_rest_is_given_back(backend: Backend) -> None:
    await fill(backend, 10)
    started: list[int] = []
    forever = asyncio.Event()
    reports = Reports()

    async def handle(row: OutboxRow) -> Outcome:
        started.append(row.id)
        await forever.wait()
        return Ack()

    async with running(backend, handle, max_workers=2, reports=reports) as pipeline:
        await until(lambda: len(started) >= 2)
        await pipeline.stop(0.1)
    [event] = reports.named("drain_timeout")
    assert (event["running"], event["released"]) == (2, 8)
    rows = await backend.rows()
    assert all(row.acquired_token is None for row in rows), "nothing waits for a lease to run out"
    assert {row.id: row.deliveries_count for row in rows} == {row.id: 1 if row.id in started else 0 for row in rows}
    assert {row.attempts_count for row in rows} == {0}


async def test_two_connections_whatever_the_workers(postgres: PostgresBackend) -> None:
    await fill(postgres, 200)
    seen: set[object] = set()
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await postgres.engine.dispose()
    watcher = PostgresBackend(create_async_engine(postgres.engine.url, pool_size=1, max_overflow=0))
    await until(lambda: watcher.one(mine), (0).__eq__)  # the server's processes end a moment after their connections

    async def handle(_row: OutboxRow) -> Outcome:
        await asyncio.sleep(0.01)
        return Ack()

    async with running(postgres, handle, max_workers=16):
        while await watcher.one("SELECT count(*) FROM outbox"):
            seen.add(await watcher.one(mine))
    await watcher.engine.dispose()
    assert seen <= {0, 1, 2}
    assert 2 in seen


async def test_killed_connections_lose_nothing(postgres: PostgresBackend) -> None:
    """Whichever of them dies, whatever it was doing: rows are handled, some twice, none never."""
    total = 600
    ids = await fill(postgres, total)
    handled: Counter[int] = Counter()
    rng = random.Random(11)

    async def handle(row: OutboxRow) -> Outcome:
        await asyncio.sleep(0.002)
        handled[row.id] += 1
        return Ack()

    killer = create_async_engine(postgres.engine.url, isolation_level="AUTOCOMMIT")
    others = text(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    kills = 0
    reports = Reports()
    options = {"max_workers": 4, "fetch_batch_size": 20, "lease_ttl_seconds": 1.0}
    async with killer.connect() as connection, running(postgres, handle, reports=reports, **options):
        while len(handled) < total:
            pids = [pid for (pid,) in await connection.execute(others)]
            if pids and kills < 30:
                await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": rng.choice(pids)})
                kills += 1
            await asyncio.sleep(0.02)
        await until(
            lambda: connection.execute(text("SELECT count(*) FROM outbox")), lambda found: not found.scalar_one()
        )
    await killer.dispose()
    assert set(handled) == set(ids)
    assert kills >= 10
    assert reports.named("claim_failed") or reports.named("settle_failed"), "it hurt"


async def test_a_crashed_server_loses_nothing() -> None:
    with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"))
        backend = PostgresBackend(engine)
        await backend.create()
        ids = await fill(backend, 400)
        handled: Counter[int] = Counter()

        async def handle(row: OutboxRow) -> Outcome:
            await asyncio.sleep(0.003)
            handled[row.id] += 1
            return Ack()

        async with running(backend, handle, max_workers=2, fetch_batch_size=20, lease_ttl_seconds=1.0) as pipeline:

            async def crash_after(count: int) -> None:
                await until(lambda: len(handled) >= count)
                await asyncio.to_thread(server.stop, "immediate")
                await asyncio.sleep(0.1)
                assert pipeline.alive
                await asyncio.to_thread(server.start)

            await crash_after(100)
            await crash_after(250)
            await until(lambda: len(handled) >= 400)
        assert set(handled) == set(ids)
        await engine.dispose()
