"""How much one claim brings: bounded in rows and bytes, and less after a claim that could not finish."""

import asyncio

import pytest

from faststream_outbox.engine.claim import prefetch
from faststream_outbox.storage import Ack, NewRow, OutboxRow, Outcome
from tests.backends import Backend, PostgresBackend
from tests.engine.pipelines import Reports, running
from tests.waiting import until, until_empty

# Each row of an UPDATE takes ten milliseconds, as it would over a slow connection.
SLOW_UPDATES = [
    "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END'",
    "CREATE TRIGGER slow BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()",
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 600', current_database()); END $$",
]
# No row with a key can be leased.
NO_KEYS = [
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE division_by_zero; END'",
    "CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.entity_key > '') EXECUTE FUNCTION refuse()",
]


async def test_the_first_claim_of_keys_brings_no_more_rows_than_a_claim_may(backend: Backend) -> None:
    """Before any handler has ended its duration is unknown, and each key has a long run."""
    await backend.insert(*(NewRow("q", b"", key=str(n % 200)) for n in range(20_000)))
    reports, free = Reports(), asyncio.Event()

    async def handle(_row: OutboxRow) -> Outcome:
        await free.wait()
        return Ack()

    async with running(backend, handle, reports=reports):
        await until(lambda: sum(tags["count"] for tags in reports.counted("fetched")) > 0)
        await asyncio.sleep(0.2)  # longer than the pause between claims: there is none while rows are in hand
        assert sum(tags["count"] for tags in reports.counted("fetched")) <= 500
        free.set()


async def test_large_rows_are_claimed_as_the_memory_allows(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "MOST_BYTES", 10_000)
    monkeypatch.setattr("faststream_outbox.engine.claim.ledger_claims.MAX_BYTES", 5_000)
    await backend.insert(*(NewRow("q", b"x" * 1000, key="k" if n % 2 else None) for n in range(100)))
    most, handled = 0, list[int]()

    async def handle(row: OutboxRow) -> Outcome:
        nonlocal most
        handled.append(row.id)
        most = max(most, pipeline._ledger.bytes)
        await asyncio.sleep(0)
        return Ack()

    async with running(backend, handle, max_workers=4) as pipeline:
        await until_empty(backend)
        assert len(handled) == 100
        assert 5_000 <= most <= 10_000 + 2 * 6_000, "ten rows may be in hand when six more are claimed, twice"
        await until(lambda: pipeline._ledger.bytes == 0)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_claim_that_cannot_finish_is_made_smaller(postgres: PostgresBackend, key: str | None) -> None:
    await postgres.insert(*(NewRow("q", b"", key=key and f"{key}{n}") for n in range(150)))
    for statement in SLOW_UPDATES:
        await postgres.run(statement)
    await postgres.engine.dispose()  # new connections have the time limit
    handled, reports = list[int](), Reports()

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.id)
        return Ack()

    async with running(postgres, handle, reports=reports, max_workers=200):
        await until(lambda: reports.named("claim_failed"))
        await until_empty(postgres)
    assert len(handled) == len(set(handled)) == 150


async def test_claims_of_keys_that_always_fail_count_against_ping(postgres: PostgresBackend) -> None:
    for statement in NO_KEYS:
        await postgres.run(statement)
    await postgres.insert(NewRow("q", b"", key="k"), NewRow("q", b""))
    handled = list[str | None]()

    async def handle(row: OutboxRow) -> Outcome:
        handled.append(row.entity_key)
        return Ack()

    async with running(postgres, handle, lease_ttl_seconds=1.0) as pipeline:
        await until(lambda: handled == [None])  # rows without a key go on
        await until(lambda: not pipeline.alive)
        await postgres.run("DROP TRIGGER refuse ON outbox")
        await until_empty(postgres)
        await until(lambda: pipeline.alive)
    assert handled == [None, "k"]
