"""How far ahead rows are claimed, and that slow handlers leave rows to others."""

import asyncio
from collections import Counter

from faststream_outbox.engine.claim.prefetch import Prefetch
from faststream_outbox.storage import Ack, OutboxRow, Outcome
from tests.backends import PostgresBackend
from tests.engine.pipelines import Reports, fill, running
from tests.waiting import until, until_empty


def test_fast_handlers_are_given_a_batch_ahead() -> None:
    prefetch = Prefetch(max_workers=4, most=200)
    assert (prefetch.capacity, prefetch.refill_at) == (200, 102)
    for _ in range(100):
        prefetch.observe(0.0001)
    assert prefetch.capacity == 200


def test_before_anything_is_known_there_are_not_too_many() -> None:
    prefetch = Prefetch(max_workers=1, most=500)
    assert prefetch.capacity == 201
    prefetch.observe(0.0001)
    assert prefetch.capacity == 500


def test_slow_handlers_are_given_a_row_when_they_are_free() -> None:
    prefetch = Prefetch(max_workers=4, most=200)
    prefetch.observe(10.0)
    assert (prefetch.capacity, prefetch.refill_at) == (4, 3)


def test_in_between_it_is_half_a_second_of_work() -> None:
    prefetch = Prefetch(max_workers=4, most=200)
    prefetch.observe(0.1)
    assert (prefetch.capacity, prefetch.refill_at) == (24, 14)


def test_runs_of_one_key_take_a_tenth_of_a_second() -> None:
    prefetch = Prefetch(max_workers=4, most=200)
    prefetch.observe(0.01)
    assert prefetch.run_length == 10
    prefetch.observe(60.0)
    assert prefetch.run_length == 1
    assert Prefetch(max_workers=1, most=200, max_records=50).run_length >= 50


def test_one_slow_row_is_soon_forgotten() -> None:
    prefetch = Prefetch(max_workers=1, most=200)
    prefetch.observe(60.0)
    assert prefetch.capacity == 1
    for _ in range(60):
        prefetch.observe(0.001)
    assert prefetch.capacity == 200


def test_more_workers_than_a_batch() -> None:
    assert Prefetch(max_workers=500, most=1000).capacity == 1000


async def test_rows_behind_a_slow_one_are_left_to_others(postgres: PostgresBackend) -> None:
    await fill(postgres, 30)
    slow, release = asyncio.Event(), asyncio.Event()
    ran: Counter[str] = Counter()

    async def hold_up(_row: OutboxRow) -> Outcome:
        slow.set()
        await release.wait()
        ran["slow"] += 1
        return Ack()

    async def handle(row: OutboxRow) -> Outcome:
        assert row.deliveries_count == 1, "giving back uncounts the delivery"
        ran["other"] += 1
        return Ack()

    reports = Reports()
    async with running(postgres, hold_up, reports=reports):
        await slow.wait()
        assert await postgres.one("SELECT count(*) FROM outbox WHERE acquired_token IS NULL") == 0
        async with running(postgres, handle):
            await until(lambda: ran["other"] >= 29)
        release.set()
        await until_empty(postgres)
    assert ran == {"slow": 1, "other": 29}
    assert reports.named("lease_lost") == []
