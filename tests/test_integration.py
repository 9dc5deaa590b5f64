"""The client on Postgres: on a plain connection, in a transaction of the caller's, with nothing but one statement."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from faststream_outbox.client import OutboxClient, _RetryEntry
from faststream_outbox.retry import ConstantRetry
from faststream_outbox.storage import Dead, NewRow, OutboxRow, Settled, Settlement
from faststream_outbox.storage.postgres.lane import PostgresLane
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.waiting import until, until_empty

FIRST = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAST = FIRST + timedelta(hours=1)


@pytest.fixture
def client(postgres: PostgresBackend) -> OutboxClient:
    return OutboxClient(postgres.engine, postgres.outbox_table, dlq_table=postgres.dlq_table)


@pytest.fixture
async def conn(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with engine.connect() as connection:
        yield connection


async def fetched(client: OutboxClient, conn: AsyncConnection, count: int) -> list[OutboxRow]:
    async with conn.begin():
        await client.insert_batch(conn, [NewRow("orders", b"%d" % n) for n in range(count)])
    return await client.fetch(conn, ["orders"], limit=count, lease_ttl_seconds=60)


def entry(row: OutboxRow, delay: float, *, lost: bool = False) -> _RetryEntry:
    assert row.acquired_token is not None
    return _RetryEntry(row.id, uuid4() if lost else row.acquired_token, delay, 1, FIRST, LAST)


async def test_mark_pending_batch_with_lease_against_postgres(
    client: OutboxClient, conn: AsyncConnection, postgres: PostgresBackend
) -> None:
    rows = await fetched(client, conn, 3)
    delays = [1.0, 60.0, 3600.0]
    kept = await client.mark_pending_batch_with_lease(
        conn, [entry(row, delay) for row, delay in zip(rows, delays, strict=True)]
    )
    assert kept == {row.id for row in rows}
    waits = await postgres.run("SELECT extract(epoch FROM next_attempt_at - now())::float8 FROM outbox ORDER BY id")
    for (wait,), delay in zip(waits, delays, strict=True):
        assert wait == pytest.approx(delay, abs=10)
    stored = await postgres.rows()
    assert {(row.first_attempt_at, row.last_attempt_at, row.attempts_count) for row in stored} == {(FIRST, LAST, 1)}


async def test_mixed_and_complete_lease_loss(
    client: OutboxClient, conn: AsyncConnection, postgres: PostgresBackend
) -> None:
    one, two, three = await fetched(client, conn, 3)
    assert three.acquired_token is not None
    assert await client.mark_pending_batch_with_lease(conn, [entry(one, 5), entry(two, 5, lost=True)]) == {one.id}
    assert await client.delete_batch_with_lease(conn, [(two.id, uuid4()), (three.id, uuid4())]) == set()
    assert await client.delete_batch_with_lease(conn, [(two.id, uuid4()), (three.id, three.acquired_token)]) == {
        three.id
    }
    assert len(await postgres.rows()) == 2


async def test_a_batch_is_one_statement(client: OutboxClient, conn: AsyncConnection, engine: AsyncEngine) -> None:
    rows = await fetched(client, conn, 100)
    sent: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda _c, _k, statement, *_: sent.append(statement))
    await client.mark_pending_batch_with_lease(conn, [entry(row, 5) for row in rows])
    assert len(sent) == 1
    await client.mark_pending_batch_with_lease(conn, [])
    await client.delete_batch_with_lease(conn, [])
    assert len(sent) == 1


async def test_fetch_reclaims_what_expired(
    client: OutboxClient, conn: AsyncConnection, postgres: PostgresBackend
) -> None:
    await fetched(client, conn, 3)
    await postgres.pass_time(61)
    async with conn.begin():
        await client.insert(conn, NewRow("orders", b"fresh"))
    fetches = [await client.fetch(conn, ["orders"], limit=10, lease_ttl_seconds=60) for _ in range(5)]
    assert [[row.suspect for row in rows] for rows in fetches] == [[False], [True], [True], [True], []]


async def test_expired_rows_have_their_turn_beside_a_backlog(
    client: OutboxClient, conn: AsyncConnection, postgres: PostgresBackend
) -> None:
    await fetched(client, conn, 1)
    await postgres.pass_time(61)
    await postgres.fill(100, queue="orders")
    for _ in range(20):
        rows = await client.fetch(conn, ["orders"], limit=1, lease_ttl_seconds=60)
        if rows[0].suspect:
            return
    raise AssertionError("starved")


async def test_inside_the_callers_transaction(
    client: OutboxClient, conn: AsyncConnection, postgres: PostgresBackend
) -> None:
    [row] = await fetched(client, conn, 1)
    assert row.acquired_token is not None
    transaction = await conn.begin()
    assert await client.delete_with_lease(conn, row.id, row.acquired_token)
    await transaction.rollback()
    assert len(await postgres.rows()) == 1, "taken back with the caller's transaction"
    assert await client.delete_with_lease(conn, row.id, row.acquired_token)
    assert await postgres.rows() == [], "without one it commits by itself"


async def test_a_failed_settle_leaves_the_callers_transaction_usable(
    client: OutboxClient, conn: AsyncConnection, postgres: PostgresBackend
) -> None:
    await postgres.run("ALTER TABLE outbox_dlq ADD CHECK (payload <> '0')")
    [row] = await fetched(client, conn, 1)
    assert row.acquired_token is not None
    async with conn.begin():
        with pytest.raises(Exception, match="outbox_dlq"):
            await client.delete_with_lease(conn, row.id, row.acquired_token, dead=Dead("rejected"))
        assert (await conn.execute(text("SELECT 1"))).scalar_one() == 1


async def test_timers_and_reading(client: OutboxClient, conn: AsyncConnection) -> None:
    async with conn.begin():
        assert await client.insert(conn, NewRow("orders", b"", timer_id="t")) is not None
        assert await client.insert(conn, NewRow("orders", b"", timer_id="t")) is None
        assert len(await client.fetch_unprocessed(session=conn, queue="orders")) == 1
        assert await client.cancel_timer(queue="orders", timer_id="t", session=conn)
        assert await client.fetch_unprocessed(session=conn) == []


async def test_a_missing_connection_is_refused(client: OutboxClient) -> None:
    with pytest.raises(TypeError, match="live AsyncConnection"):
        await client.mark_pending_batch_with_lease(None, [])
    with pytest.raises(TypeError, match="live AsyncConnection"):
        await client.fetch(None, ["orders"], limit=1, lease_ttl_seconds=1)


async def test_ping_tells_the_truth(client: OutboxClient, engine: AsyncEngine) -> None:
    assert await client.ping()
    nobody = create_async_engine(engine.url.set(port=1))
    assert not await OutboxClient(nobody, client.table).ping()
    await nobody.dispose()


async def test_validate_schema(client: OutboxClient, postgres: PostgresBackend) -> None:
    await client.validate_schema(check_autovacuum=True)
    await postgres.run("ALTER TABLE outbox DROP COLUMN acquired_token")
    with pytest.raises(RuntimeError, match="acquired_token"):
        await client.validate_schema()


async def test_retry_batch_drain_under_failing_handler(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    settles: Counter[int] = Counter()
    real = PostgresLane.settle

    async def settle(self: PostgresLane, settlements: Iterable[Settlement]) -> Settled:
        settles[batch_size] += 1
        return await real(self, settlements)

    monkeypatch.setattr(PostgresLane, "settle", settle)
    for batch_size in (1, 20):
        broker, calls = broker_on(postgres, logger=None), Counter[int]()
        strategy = ConstantRetry(delay_seconds=0.001, max_attempts=10)

        @broker.subscriber("q", max_workers=20, retry_strategy=strategy, retry_batch_size=batch_size)
        async def fail(number: int) -> None:
            calls[number] += 1  # noqa: B023 - of this round, which ends before the next begins
            raise ValueError

        async with started(broker):
            await publish(broker, postgres, *range(100))
            await until_empty(postgres)
        assert calls == dict.fromkeys(range(100), 10)
        assert len(await postgres.dead_letters()) == 100
        await postgres.run("TRUNCATE outbox_dlq")
    assert settles[20] < settles[1] / 2


async def test_graceful_drain_end_to_end(postgres: PostgresBackend) -> None:
    broker, handled = broker_on(postgres), list[int]()
    first = asyncio.Event()

    @broker.subscriber("q", max_workers=4)
    async def handle(number: int) -> None:
        first.set()
        await asyncio.sleep(0.2)
        handled.append(number)

    async with started(broker):
        await publish(broker, postgres, *range(20))
        await first.wait()
        # What is claimed is what stopping waits for.
        await until(postgres.rows, lambda rows: all(row.acquired_token is not None for row in rows))
    assert sorted(handled) == list(range(20))
    assert await postgres.rows() == []
