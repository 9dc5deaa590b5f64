"""The client's batch forms on rows in memory."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from faststream_outbox.client import _RetryEntry
from faststream_outbox.storage import Dead, NewRow, OutboxRow
from faststream_outbox.testing import FakeOutboxClient

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
