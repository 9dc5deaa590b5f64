"""How rows are gathered for a call, and how those that failed together are kept apart."""

import asyncio
import time
from itertools import chain, count
from typing import Any
from uuid import uuid4

import pytest

from faststream_outbox.engine.dispatch.batcher import Batcher, BatchLimits
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.settle.settle_buffer import SettleBuffer
from faststream_outbox.storage import Ack, Lease, NewRow, OutboxRow, Retry, Settlement
from faststream_outbox.storage.clock import lease_now
from tests.backends import MemoryBackend

_IDS = count(1)


async def rows(count: int, *, attempts: int = 0) -> list[OutboxRow]:
    backend = MemoryBackend()
    await backend.insert(*(NewRow("q", b"") for _ in range(count)))
    claimed = (await backend.claim("q", limit=count)).rows
    for row in claimed:
        row.id, row.attempts_count, row.claimed_at = next(_IDS), attempts, lease_now()
    return claimed


def admit(ledger: Ledger, some: list[OutboxRow]) -> None:
    ledger.add(some, time.monotonic() + 60)
    ledger.admit_added()


def failed(some: list[OutboxRow], batch_size: int) -> list[Settlement]:
    return [Settlement(row.lease, Retry(0.0, row.attempts_count + 1, batch_size=batch_size)) for row in some]


async def gather(batcher: Batcher) -> int:
    async with asyncio.timeout(30):
        return len(await batcher.gather())


@pytest.mark.parametrize(
    ("groups", "calls"),
    [
        pytest.param([{"count": 20}], [10, 10], id="fresh rows fill their calls"),
        pytest.param([{"count": 3}], [3], id="a call takes what is there"),
        pytest.param([{"count": 10, "deliveries": 3}], [10], id="rows that never failed stay together"),
        pytest.param([{"count": 10, "failed_together": 10}], [5, 5], id="rows that failed together come in halves"),
        pytest.param([{"count": 3, "failed_together": 3}], [1, 1, 1], id="a half is rounded down"),
        pytest.param([{"count": 1, "failed_together": 1}, {"count": 5}], [1, 5], id="what failed alone stays alone"),
        pytest.param([{"count": 2, "attempts": 1}, {"count": 5}], [5, 2], id="an attempt elsewhere is a halving"),
        pytest.param([{"count": 2, "attempts": 1, "deliveries": 9}], [1, 1], id="as is each delivery after it"),
        pytest.param([{"count": 1, "suspect": True}, {"count": 5}], [1, 5], id="a suspect is a call by itself"),
        pytest.param([{"count": 5}, {"count": 1, "suspect": True}], [5, 1], id="also behind others"),
        pytest.param([{"count": 4, "failed_together": 4}, {"count": 9}], [2, 2, 9], id="fresh rows lose nothing by it"),
    ],
)
async def test_how_many_rows_each_call_takes(groups: list[dict[str, Any]], calls: list[int]) -> None:
    ledger = Ledger()
    batcher = Batcher(ledger, SubscriberOptions(batch=True, max_records=10))
    for group in groups:
        some = await rows(group["count"], attempts=group.get("attempts", 0))
        for row in some:
            row.deliveries_count = group.get("deliveries", 1)
            row.suspect = group.get("suspect", False)
        if together := group.get("failed_together"):
            batcher.learn(failed(some, together))
        admit(ledger, some)
    assert [await gather(batcher) for _ in calls] == calls


async def test_those_that_failed_together_come_in_halves() -> None:
    ledger = Ledger()
    batcher = Batcher(ledger, SubscriberOptions(batch=True, max_records=100))
    admit(ledger, some := await rows(7))
    assert await gather(batcher) == 7
    for row in some:
        row.attempts_count = 1
    batcher.learn(failed(some, 7))
    admit(ledger, some)
    assert [await gather(batcher) for _ in range(3)] == [3, 3, 1]
    batcher.learn(failed(some[:3], 3))
    admit(ledger, some[:3])
    assert [await gather(batcher) for _ in range(3)] == [1, 1, 1]


async def test_fresh_rows_are_not_kept_small_for_the_sake_of_others() -> None:
    ledger = Ledger()
    batcher = Batcher(ledger, SubscriberOptions(batch=True, max_records=100))
    suspicious, fresh = await rows(4), await rows(50)
    batcher.learn(failed(suspicious, 4))
    admit(ledger, [*suspicious, *fresh])
    assert [await gather(batcher) for _ in range(3)] == [2, 2, 50]


async def test_what_ended_well_or_failed_alone_is_forgotten() -> None:
    limits = BatchLimits(100)
    one, two = await rows(2)
    for row in (one, two):
        limits.failed(row.id, 10)
        assert limits.limit(row) == 5
    batcher = Batcher(Ledger(), SubscriberOptions(batch=True, max_records=100))
    batcher.learn(failed([one, two], 10))
    batcher.learn([Settlement(one.lease, Ack()), *failed([two], 1)])
    ledger_rows = [one, two]
    admit(batcher._ledger, ledger_rows)
    assert await gather(batcher) == 2


async def test_what_failed_as_a_call_by_itself_stays_by_itself() -> None:
    """It is the one to blame, and fresh rows would fail with it each time that it is tried again."""
    ledger = Ledger()
    batcher = Batcher(ledger, SubscriberOptions(batch=True, max_records=100))
    [poison], fresh = await rows(1, attempts=2), await rows(50)
    batcher.learn(failed([poison], 1))
    admit(ledger, [poison, *fresh])
    assert [await gather(batcher) for _ in range(2)] == [1, 50]


@pytest.mark.parametrize(("deliveries", "limit"), [(1, 250), (2, 250), (3, 125), (4, 62), (9, 1), (10_000, 1)])
async def test_deliveries_count_for_halvings_where_nothing_else_is_known(deliveries: int, limit: int) -> None:
    [row] = await rows(1, attempts=1)
    row.deliveries_count = deliveries
    assert BatchLimits(500).limit(row) == limit
    row.attempts_count = 0
    assert BatchLimits(500).limit(row) == 500, "it has not failed"


async def test_a_suspect_is_alone() -> None:
    [row] = await rows(1)
    row.suspect = True
    assert BatchLimits(500).limit(row) == 1


async def test_memory_of_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faststream_outbox.engine.dispatch.batcher._REMEMBERED", 3)
    limits = BatchLimits(100)
    some = await rows(5)
    for row in some:
        limits.failed(row.id, 10)
    assert [limits.limit(row) for row in some] == [100, 100, 5, 5, 5]


async def test_the_next_claim_is_sent_before_a_batch_is_handled() -> None:
    """A handler that waits for nothing keeps the event loop: what is not sent before it is sent after it."""
    ledger, events, arrived = Ledger(), list[str](), await rows(10)
    batcher = Batcher(ledger, SubscriberOptions(batch=True, max_records=10))

    async def send() -> None:
        events.append("sent")

    async def claim_and_go_on() -> None:
        admit(ledger, arrived)
        await asyncio.sleep(0)  # the claimer wakes because there is room
        await asyncio.create_task(send())  # and its lane sends in a task of its own

    async def handle() -> None:
        await batcher.gather()
        events.append("handled")

    handling = asyncio.create_task(handle())
    await asyncio.sleep(0)
    await asyncio.gather(claim_and_go_on(), handling)
    assert events == ["sent", "handled"]


async def test_a_call_that_runs_with_places_left_keeps_them() -> None:
    ledger = Ledger()
    admit(ledger, some := await rows(3))
    ledger.reserve_places(7)
    assert (len(ledger), ledger.occupied) == (3, 10)
    waiting = asyncio.ensure_future(ledger.wait_for_change())
    await asyncio.sleep(0)
    ledger.free_places(7)
    await asyncio.wait_for(waiting, 30)
    assert ledger.occupied == 3
    assert len(ledger.remove(row.lease for row in some)) == 3


def settlements(count: int, group: int | None) -> list[Settlement]:
    return [Settlement(Lease(next(_IDS), uuid4()), Ack(), group=group) for _ in range(count)]


def test_a_group_is_not_torn_apart() -> None:
    buffer = SettleBuffer(4, 0.0)
    put = [*settlements(3, None), *settlements(5, 1), *settlements(2, 2), *settlements(3, None)]
    buffer.put(put)
    batches = [buffer.take() for _ in range(3)]
    assert [len(batch) for batch in batches] == [8, 4, 1]
    assert list(chain(*batches)) == put


async def test_a_row_is_not_given_up_for_deliveries_among_others() -> None:
    limits = BatchLimits(8, max_deliveries=2)
    one, two = await rows(2)
    for row in (one, two):
        row.deliveries_count = 3
        limits.failed(row.id, 2)
        assert limits.limit(row) == 1, "now it is tried alone"
        assert not limits.is_given_up(row)
    limits.failed(one.id, 1)  # alone
    assert limits.is_given_up(one)
    two.suspect = True
    assert limits.is_given_up(two), "suspects were alone"


async def test_deliveries_tell_whether_a_row_was_alone_where_nothing_else_is_known() -> None:
    limits = BatchLimits(8, max_deliveries=2)
    [row] = await rows(1, attempts=1)
    verdicts = []
    for row.deliveries_count in range(3, 8):
        verdicts.append(limits.is_given_up(row))
    assert verdicts == [False, False, True, True, True]
    row.attempts_count = 0
    assert limits.is_given_up(row), "it never failed: its process did"
