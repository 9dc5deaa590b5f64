"""The client's batch forms on rows in memory, and the subscriber that gathers outcomes for them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import MetaData

from faststream_outbox import ConstantRetry, OutboxBroker, TestOutboxBroker, make_dlq_table, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.client import _RetryEntry
from faststream_outbox.storage import Dead, NewRow, OutboxRow, Retry, Settled, Settlement
from faststream_outbox.storage.memory.lane import MemoryLane
from faststream_outbox.testing import FakeOutboxClient
from tests.broker.brokers import Records
from tests.waiting import until

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
FIRST, LAST = NOW - timedelta(hours=1), NOW


def fake_at_noon() -> FakeOutboxClient:
    return FakeOutboxClient(clock=NOW.timestamp)


async def fetched(client: FakeOutboxClient, count: int) -> list[OutboxRow]:
    for number in range(count):
        client.feed(NewRow("orders", b"%d" % number))
    return await client.fetch(None, ["orders"], limit=count, lease_ttl_seconds=60)


def entry(row: OutboxRow, delay: float, *, attempts: int = 1, lost: bool = False) -> _RetryEntry:
    assert row.acquired_token is not None
    return _RetryEntry(row.id, uuid4() if lost else row.acquired_token, delay, attempts, FIRST, LAST)


def make_broker(**options: Any) -> OutboxBroker:
    metadata = MetaData()
    return OutboxBroker(outbox_table=make_outbox_table(metadata), dlq_table=make_dlq_table(metadata), **options)


def client_of(broker: OutboxBroker) -> FakeOutboxClient:
    client = broker.client
    assert isinstance(client, FakeOutboxClient)
    return client


class Recording(MemoryLane):
    """A lane that notes how many retries each settle writes."""

    batches: list[int]

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        given = list(settlements)
        if retries := sum(isinstance(each.outcome, Retry) for each in given):
            self.batches.append(retries)
        return await super().settle(given)


def record_settles(broker: OutboxBroker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    store, batches = client_of(broker).store, list[int]()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Recording]:
        lane = Recording(store)
        lane.batches = batches
        yield lane

    monkeypatch.setattr(store, "connect", connect)
    return batches


async def test_retry_buffer_flushes_on_size_and_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records()
    broker = make_broker(logger=records.logger)
    later = ConstantRetry(delay_seconds=3600)

    @broker.subscriber("orders", max_workers=10, retry_strategy=later, retry_batch_size=3, retry_flush_interval_ms=300)
    async def handle(number: int) -> None:
        if number == 0:
            await asyncio.sleep(3600)  # company may yet come, for all that the settler knows
        raise ValueError

    test = TestOutboxBroker(broker, run_loops=True)
    async with test:
        broker.config.broker_config.graceful_timeout = 0.1
        batches = record_settles(broker, monkeypatch)
        await broker.stop()
        await broker.start()
        await broker.publish_batch(0, 1, 2, 3, 4, queue="orders")
        await until(lambda: batches == [3])  # by size, at once
        await until(lambda: batches == [3, 1])  # by age
        assert len(records.named("retry_scheduled")) == 4


@pytest.mark.parametrize("batch_size", [1, 500])
async def test_retry_batch_size_1_matches_per_row_semantics(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records()
    broker = make_broker(logger=records.logger)
    later = ConstantRetry(delay_seconds=3600)

    @broker.subscriber("orders", max_workers=20, retry_strategy=later, retry_batch_size=batch_size)
    async def handle(_number: int) -> None:
        raise ValueError

    async with TestOutboxBroker(broker, run_loops=True):
        batches = record_settles(broker, monkeypatch)
        await broker.stop()
        await broker.start()
        await broker.publish_batch(*range(20), queue="orders")
        await until(lambda: len(records.named("retry_scheduled")) == 20)
        rows = client_of(broker).rows
    assert sum(batches) == 20
    assert len(batches) == 20 if batch_size == 1 else len(batches) < 20
    assert {(row.attempts_count, row.deliveries_count, row.acquired_token) for row in rows} == {(1, 1, None)}
    assert all(3500 < row.next_attempt_epoch - (row.last_attempt_epoch or 0) < 3700 for row in rows)


async def test_mark_pending_batch_with_lease_per_row_delays_respected() -> None:
    client = fake_at_noon()
    rows = await fetched(client, 3)
    delays = [0.5, 30.0, 3600.0]

    kept = await client.mark_pending_batch_with_lease(
        None, [entry(row, delay, attempts=n) for n, (row, delay) in enumerate(zip(rows, delays, strict=True), start=1)]
    )

    assert kept == {row.id for row in rows}
    assert [row.next_attempt_at for row in client.rows] == [NOW + timedelta(seconds=delay) for delay in delays]
    assert [row.attempts_count for row in client.rows] == [1, 2, 3]
    assert {(row.first_attempt_at, row.last_attempt_at) for row in client.rows} == {(FIRST, LAST)}
    assert all(row.acquired_token is None for row in client.rows)


async def test_mark_pending_batch_with_lease_lease_loss_diff() -> None:
    client = fake_at_noon()
    one, two, three = await fetched(client, 3)
    kept = await client.mark_pending_batch_with_lease(None, [entry(one, 1), entry(two, 1, lost=True), entry(three, 1)])
    assert kept == {one.id, three.id}
    assert [row.acquired_token is None for row in client.rows] == [True, False, True]

    records = Records()
    broker = make_broker(logger=records.logger)

    @broker.subscriber("orders", retry_strategy=ConstantRetry(delay_seconds=3600))
    async def fail(message: OutboxMessage) -> None:
        if message.body == b"2":
            stolen = client_of(broker).store.rows[message.raw_message.id]
            stolen.acquired_token = uuid4()
        raise ValueError

    async with TestOutboxBroker(broker, run_loops=True):
        await broker.publish_batch(1, 2, 3, queue="orders")
        await until(lambda: len(records.named("retry_scheduled")) == 2 and records.named("lease_lost"))
        [lost] = records.named("lease_lost")
        assert (lost.phase, lost.row_id, lost.queue, lost.deliveries_count) == ("retry", 2, "orders", 1)
        assert lost.levelname == "WARNING"


async def test_mark_pending_batch_with_lease_all_lost() -> None:
    client = fake_at_noon()
    rows = await fetched(client, 2)
    assert await client.mark_pending_batch_with_lease(None, [entry(row, 1, lost=True) for row in rows]) == set()
    assert client.rows == rows


async def test_empty_batches_return_at_once() -> None:
    client = fake_at_noon()
    assert await client.mark_pending_batch_with_lease(None, []) == set()
    assert await client.delete_batch_with_lease(None, []) == set()


async def test_the_single_forms() -> None:
    client = fake_at_noon()
    one, two, three = await fetched(client, 3)
    assert one.acquired_token is not None
    assert two.acquired_token is not None
    assert three.acquired_token is not None
    assert not await client.delete_with_lease(None, one.id, uuid4())
    assert await client.delete_with_lease(None, one.id, one.acquired_token)
    assert not await client.delete_with_lease(None, one.id, one.acquired_token)
    assert await client.delete_with_lease(None, two.id, two.acquired_token, dead=Dead("rejected", "why"))
    assert await client.mark_pending_with_lease(
        None,
        three.id,
        three.acquired_token,
        delay_seconds=5,
        attempts_count=2,
        first_attempt_at=FIRST,
        last_attempt_at=LAST,
    )
    assert [row.id for row in client.rows] == [three.id]
    assert [(dead.original_id, dead.last_exception) for dead in client.dlq_rows] == [(two.id, "why")]


async def test_without_a_dead_letter_table_nothing_is_kept() -> None:
    client = FakeOutboxClient(dlq_enabled=False)
    [row] = await fetched(client, 1)
    assert row.acquired_token is not None
    assert await client.delete_with_lease(None, row.id, row.acquired_token, dead=Dead("rejected"))
    assert client.rows == []
    assert client.dlq_rows == []


async def test_what_a_handler_does_to_its_row_does_not_reach_the_store() -> None:
    client = FakeOutboxClient()
    [row] = await fetched(client, 1)
    row.payload = b"changed"
    assert client.rows[0].payload == b"0"


async def test_the_fake_answers() -> None:
    assert await FakeOutboxClient().ping()
