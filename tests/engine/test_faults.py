"""What goes wrong around a subscriber on a real Postgres, and what must happen then."""

import asyncio
import threading
import time
from collections import Counter

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.storage import Ack, Dead, NewRow, OutboxRow, Outcome, PostgresStore, Retry
from tests.backends import PostgresBackend, everywhere
from tests.engine.pipelines import Reports, fill, running
from tests.waiting import until, until_empty


async def steal(postgres: PostgresBackend) -> OutboxRow:
    """Claim a row from another connection, as soon as its lease is over."""
    engine = create_async_engine(postgres.engine.url)
    store = PostgresStore(engine, postgres.outbox_table, dlq_table=postgres.dlq_table)
    async with store.connect() as lane:
        claim = await until(lambda: lane.claim_suspect(everywhere("q"), lease_seconds=60), lambda claim: claim.rows)
    await engine.dispose()
    return claim.rows[0]


async def test_an_event_loop_blocked_past_the_lease_settles_nothing(postgres: PostgresBackend) -> None:
    await fill(postgres, 1)
    reports = Reports()

    async def handle(_row: OutboxRow) -> Outcome:
        thief = threading.Thread(target=lambda: asyncio.run(steal(postgres)))
        thief.start()
        thief.join()  # and nothing else happens in this loop meanwhile: no renewal, no settle
        return Ack()

    async with running(postgres, handle, lease_ttl_seconds=0.5, reports=reports):
        await until(lambda: reports.named("lease_lost"))
    [lost] = reports.named("lease_lost")
    assert (lost["phase"], lost["deliveries_count"]) == ("terminal", 1)
    [row] = await postgres.rows()
    assert (row.deliveries_count, row.acquired_token is None) == (2, False), "it is the thief's"
    assert reports.counted("acked") == []


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        ("ALTER TABLE outbox_dlq RENAME TO gone", "ALTER TABLE gone RENAME TO outbox_dlq"),
        (
            "ALTER TABLE outbox_dlq RENAME failure_reason TO drifted",
            "ALTER TABLE outbox_dlq RENAME drifted TO failure_reason",
        ),
    ],
    ids=["missing", "drifted"],
)
async def test_a_dead_letter_table_that_is_missing_is_heard_of_and_loses_nothing(
    postgres: PostgresBackend, change: str, mend: str
) -> None:
    await postgres.run(change)
    await fill(postgres, 20)
    reports, handled = Reports(), Counter[int]()

    async def handle(row: OutboxRow) -> Outcome:
        handled[row.id] += 1
        return Dead("rejected") if row.id % 2 else Ack()

    async with running(postgres, handle, reports=reports, terminal_batch_size=3) as pipeline:
        await until(lambda: len(reports.counted("acked")) >= 10 and reports.named("settle_failed"))
        assert await postgres.one("SELECT count(*) FROM outbox") == 10, "kept"
        assert pipeline.alive
        await postgres.run(mend)
        async with asyncio.timeout(30):
            await until_empty(postgres)
    assert len(await postgres.dead_letters()) == 10
    assert set(handled.values()) == {1}, "tried again without a handler, and in no tight loop"
    assert len(reports.named("settle_failed")) <= 50


async def test_instants_that_python_does_not_know_are_handled_beside_ordinary_ones(postgres: PostgresBackend) -> None:
    await fill(postgres, 5)
    for n, instant in enumerate(["-infinity", "0044-03-15 12:00 BC", "4714-11-24 00:00:00+00 BC"]):
        await postgres.run(
            "INSERT INTO outbox (queue, payload, next_attempt_at, created_at, first_attempt_at, last_attempt_at)"
            f" VALUES ('q', 'bad{n}', '{instant}', '{instant}', '{instant}', 'infinity')"
        )
    handled: Counter[bytes] = Counter()

    async def handle(row: OutboxRow) -> Outcome:
        handled[row.payload] += 1
        assert row.database_now().year > 2000
        first = row.attempts_count == 0
        return Retry(0.0, 1, row.first_attempt_at, row.database_now()) if first else Ack()

    async with running(postgres, handle, fetch_batch_size=3) as pipeline, asyncio.timeout(30):
        await until_empty(postgres)
        assert pipeline.alive
    assert len(handled) == 8
    assert set(handled.values()) == {2}


async def test_two_replicas_with_many_small_queues_share_them(postgres: PostgresBackend) -> None:
    queues = [f"q{n}" for n in range(40)]
    await postgres.insert(*(NewRow(queue, b"") for queue in queues for _ in range(5)))
    handled: Counter[int] = Counter()

    async def handle(row: OutboxRow) -> Outcome:
        await asyncio.sleep(0.002)
        handled[row.id] += 1
        return Ack()

    options = {"fetch_batch_size": 20, "max_workers": 4}
    async with running(postgres, handle, *queues, **options), running(postgres, handle, *queues, **options):  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await until_empty(postgres)
    assert len(handled) == 200
    assert set(handled.values()) == {1}


async def test_a_settle_that_waits_for_a_lock_costs_nobody_a_lease(postgres: PostgresBackend) -> None:
    """Renewals go their own way, so a row that runs meanwhile is still ours after two leases."""
    await fill(postgres, 2)
    reports, handled = Reports(), Counter[bytes]()
    locked, freed = asyncio.Event(), asyncio.Event()

    async def handle(row: OutboxRow) -> Outcome:
        handled[row.payload] += 1
        await (locked if row.payload == b"0" else freed).wait()
        return Ack()

    pipeline = running(postgres, handle, max_workers=2, lease_ttl_seconds=1.5, reports=reports)
    async with postgres.engine.connect() as holder, pipeline, asyncio.timeout(30):
        await until(lambda: len(handled) >= 2)
        await holder.execute(text("SELECT 1 FROM outbox WHERE payload = '0' FOR UPDATE"))
        locked.set()
        await asyncio.sleep(3.5)
        await holder.rollback()
        freed.set()
        await until_empty(postgres)
    assert handled == {b"0": 1, b"1": 1}
    assert not reports.named("lease_lost")


async def test_a_wall_clock_that_is_wrong_changes_nothing(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, again = time.time, asyncio.Event()
    for wrong in (600, -600):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: real() + wrong)
        await fill(postgres, 1)
        again.clear()

        async def handle(row: OutboxRow) -> Outcome:
            if row.attempts_count == 0:
                return Retry(0.3, 1)
            again.set()
            assert row.last_attempt_at is not None
            waited = row.database_now() - row.last_attempt_at
            assert 0.3 <= waited.total_seconds() < 30
            return Ack()

        async with running(postgres, handle, lease_ttl_seconds=5):
            async with asyncio.timeout(60):
                await again.wait()
                await until_empty(postgres)
