"""A claim reads what it takes, whatever lies before it: the dead, the leased, or a million timers behind."""

import math
import time

import pytest
from sqlalchemy import text

from faststream_outbox.storage import Ack, ClaimCursor, NewRow, Settlement
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.cursor import MAX_SWEEP_INTERVAL, ClaimPlan
from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS
from tests.backends import PostgresBackend
from tests.storage.postgres.statements.test_statements import LEASE, explain


@pytest.fixture
def driver() -> str:
    """Plans and buffers are the server's; one driver will do."""
    return "asyncpg"


async def buffers_of_claim(backend: PostgresBackend, start: tuple[float, int], *, limit: int = 100) -> int:
    """Count the buffers that a claim from a position touches."""
    at, row_id = start
    queues = {"claim_queue": "ARRAY['q']", "claim_quota": f"ARRAY[{limit}]"}
    since = {"claim_at": f"ARRAY['{at}']::float8[]", "claim_id": f"ARRAY[{row_id}]"}
    arguments = {**LEASE, **queues, **since, "limit": str(limit), "max_bytes": "8000000"}
    statement = backend.store._statements.claim.claim
    async with backend.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        [root, *_] = await explain(connection, statement, arguments, mode="generic")
        await connection.rollback()
    return int(root["Shared Hit Blocks"]) + int(root["Shared Read Blocks"])


async def test_a_held_snapshot_does_not_make_claims_slower(postgres: PostgresBackend) -> None:
    await postgres.fill(11_000)
    cursor = ClaimCursor(["q"])
    cursor._sweep_at = math.inf  # ordinary claims only: a sweep is measured below
    async with postgres.engine.connect() as holder:
        await holder.execution_options(isolation_level="REPEATABLE READ")
        await holder.execute(text("SELECT 1 FROM outbox LIMIT 1"))
        fresh = await buffers_of_claim(postgres, (-math.inf, 0))
        async with postgres.store.connect() as lane:
            for _ in range(100):
                rows = (await lane.claim(cursor, limit=100, lease_seconds=60)).rows
                await lane.settle(Settlement(row.lease, Ack()) for row in rows)
        marked = await buffers_of_claim(postgres, cursor.marks["q"])
        swept = await buffers_of_claim(postgres, (-math.inf, 0))
    assert swept > fresh + 1000, "10,000 dead entries, which the snapshot keeps"
    assert marked < 1.3 * fresh, "the mark starts behind them"


async def test_leased_rows_in_front_are_not_read(postgres: PostgresBackend) -> None:
    await postgres.fill(20_000)
    cursor = ClaimCursor(["q"])
    fresh = await buffers_of_claim(postgres, (-math.inf, 0))
    async with postgres.store.connect() as lane:
        await lane.claim(cursor, limit=19_000, lease_seconds=600)
        cursor._sweep_at = math.inf
        await lane.claim(cursor, limit=100, lease_seconds=600)
        # The mark is the smallest position of the last claim, which starts past its own rows the next time.
        marked = await buffers_of_claim(postgres, cursor.marks["q"])
    assert marked < 1.3 * fresh


async def test_a_million_timers_do_not_make_claims_slower(postgres: PostgresBackend) -> None:
    await postgres.fill(1000)
    fresh = await buffers_of_claim(postgres, (-math.inf, 0))
    await postgres.fill(1_000_000, due="now() + interval '1 hour' + n * interval '1 second'", payload_bytes=10)
    burdened = await buffers_of_claim(postgres, (-math.inf, 0))
    assert burdened <= 1.3 * fresh, "a deeper index, nothing more"
    async with postgres.store.connect() as lane:
        assert await lane.next_due(ClaimCursor(["q"])) == 0
        assert len((await lane.claim(ClaimCursor(["q"]), limit=2000, lease_seconds=60)).rows) == 1000


async def test_a_commit_that_comes_late_is_found(postgres: PostgresBackend) -> None:
    """Its row is due from when its transaction began, below what was claimed meanwhile."""
    cursor = ClaimCursor(["q"])
    async with postgres.sessions() as slow, postgres.store.connect() as lane:
        await slow.begin()
        await slow.execute(text("SELECT 1"))
        await postgres.fill(10)
        assert len((await lane.claim(cursor, limit=5, lease_seconds=60)).rows) == 5
        late = await postgres.store.insert(slow, NewRow("q", b"late"))
        await slow.commit()
        found: list[int] = []
        deadline = time.monotonic() + 10
        while late not in found and time.monotonic() < deadline:
            found += [row.id for row in (await lane.claim(cursor, limit=1, lease_seconds=60)).rows]
    assert late in found


async def test_a_row_due_at_the_mark_itself_is_found(postgres: PostgresBackend) -> None:
    """Rows of one transaction share their instant; rounding it on the way must not lose its twin."""
    for instant in ("'2026-03-04 05:06:07.123457+00'", "'0001-01-01 00:00:00.000007+00'", "'-infinity'"):
        await postgres.run("TRUNCATE outbox")
        await postgres.fill(300, due=f"{instant}::timestamptz")
        cursor = ClaimCursor(["q"])
        cursor.plan(1, lease_now())
        async with postgres.store.connect() as lane:
            await lane.claim(cursor, limit=1, lease_seconds=60)
            cursor._sweep_at = math.inf
            total = 1
            while rows := (await lane.claim(cursor, limit=7, lease_seconds=60)).rows:
                total += len(rows)
        assert total == 300, instant


def swept(cursor: ClaimCursor, now: float, took: float) -> ClaimPlan:
    plan = cursor.plan(10, now)
    cursor.record(plan, [], began=now, ended=now + took)
    return plan


def test_sweeps_take_a_twentieth_of_the_time() -> None:
    cursor = ClaimCursor(["q"])
    assert swept(cursor, 0.0, 0.1).sweep
    assert not swept(cursor, 1.0, 0.001).sweep
    assert not swept(cursor, 2.0, 0.001).sweep
    assert swept(cursor, 2.2, 0.1).sweep


def test_one_slow_sweep_does_not_put_the_next_one_off() -> None:
    cursor = ClaimCursor(["q"])
    swept(cursor, 0.0, 0.001)
    assert swept(cursor, 10.0, 1.0).sweep, "a hiccup"
    assert swept(cursor, 11.5, 0.001).sweep


def test_slow_sweeps_still_happen() -> None:
    cursor = ClaimCursor(["q"])
    swept(cursor, 0.0, 100.0)
    swept(cursor, 200.0, 100.0)
    assert not cursor.plan(10, 300.0 + MAX_SWEEP_INTERVAL - 1).sweep
    assert cursor.plan(10, 300.0 + MAX_SWEEP_INTERVAL).sweep


def test_a_restarted_cursor_sweeps() -> None:
    cursor = ClaimCursor(["q"])
    swept(cursor, 0.0, 1.0)
    assert not cursor.plan(10, 2.0).sweep
    cursor.restart()
    assert cursor.plan(10, 2.0).sweep
