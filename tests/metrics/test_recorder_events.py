"""What a recorder is told of messages that succeed, fail once, die, are lost or abandoned."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from faststream.exceptions import RejectMessage
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import OutboxBroker
from faststream_outbox.annotations import OutboxMessage
from tests.backends import PostgresBackend
from tests.metrics.brokers import ENDS, SOON, Events, make_broker, publish, running, stop_during_a_handler


def counts(events: Events) -> Counter[str]:
    return Counter(event for event, _ in events.recorded if event not in {"fetched", "published"})


def assert_every_dispatch_is_closed_once(events: Events) -> None:
    closed = sum("duration_seconds" in tags for event, tags in events.recorded if event in ENDS)
    assert closed == len(events.named("dispatched"))
    assert all(tags["duration_seconds"] >= 0 for event, tags in events.recorded if "duration_seconds" in tags)


def subscribe(broker: OutboxBroker) -> None:
    """Ten bodies: 1 and 2 fail once, 3 fails twice and dies, 4 is rejected."""
    failed: Counter[int] = Counter()

    @broker.subscriber("orders", max_workers=3, retry_strategy=SOON)
    async def handle(number: int) -> None:
        if number == 4:
            raise RejectMessage
        if number in {1, 2, 3} and failed[number] < number:
            failed[number] += 2 if number == 2 else 1
            raise ValueError(number)


@pytest.mark.parametrize("keep_dead", [True, False])
async def test_every_message_is_told_of(engine: AsyncEngine, *, keep_dead: bool) -> None:
    postgres = PostgresBackend(engine, keep_dead=keep_dead)
    await postgres.create()
    events = Events()
    broker = make_broker(postgres, events)
    subscribe(broker)
    async with running(broker):
        await publish(postgres, broker, range(10))
        await events.wait_for("acked", 8)
        await events.wait_for("nacked_terminal", 2)
    expected = {"dispatched": 13, "acked": 8, "nacked_retried": 3, "nacked_terminal": 2}
    assert counts(events) == (expected | {"dlq_written": 2} if keep_dead else expected)
    assert_every_dispatch_is_closed_once(events)
    assert sum(tags["count"] for tags in events.named("published")) == 10
    assert sum(tags["count"] for tags in events.named("fetched")) == 13
    assert {tags["reason"] for tags in events.named("nacked_terminal")} == {"retry_terminal", "rejected"}
    assert {tags["subscriber"] for tags in events.named("acked")} == {"Handle"}
    assert {tags.get("exception_type") for tags in events.named("nacked_retried")} == {"ValueError"}


async def test_a_lost_lease_closes_its_dispatch(postgres: PostgresBackend) -> None:
    broker = make_broker(postgres, events := Events())

    @broker.subscriber("orders")
    async def handle(_number: int, message: OutboxMessage) -> None:
        await postgres.run(
            "UPDATE outbox SET acquired_token = :token, lease_expires_at = now() + interval '1 hour' WHERE id = :id",
            token=uuid4(),
            id=message.raw_message.id,
        )

    async with running(broker):
        await publish(postgres, broker, [1])
        await events.wait_for("lease_lost")
    assert counts(events) == {"dispatched": 1, "lease_lost": 1}
    [lost] = events.named("lease_lost")
    assert (lost["phase"], lost["queue"]) == ("terminal", "orders")
    assert_every_dispatch_is_closed_once(events)


async def test_a_row_that_was_delivered_too_often_was_not_dispatched(postgres: PostgresBackend) -> None:
    broker = make_broker(postgres, events := Events())

    @broker.subscriber("orders", max_deliveries=1)
    async def handle(number: int) -> None: ...

    await publish(postgres, broker, [1])
    await postgres.run("UPDATE outbox SET deliveries_count = 1")
    async with running(broker):
        await events.wait_for("nacked_terminal", reason="max_deliveries")
    assert counts(events) == {"nacked_terminal": 1, "dlq_written": 1}
    assert_every_dispatch_is_closed_once(events)


async def test_a_stop_that_runs_out_of_time(postgres: PostgresBackend) -> None:
    broker = make_broker(postgres, events := Events(), graceful_timeout=0.05)
    await stop_during_a_handler(postgres, broker)
    assert counts(events)["drain_timeout"] == 1
    assert_every_dispatch_is_closed_once(events)


async def test_a_chain_counts_what_it_publishes(postgres: PostgresBackend) -> None:
    broker = make_broker(postgres, events := Events())

    @broker.subscriber("orders")
    @broker.publisher("next")
    async def handle(number: int) -> int:
        return number + 1

    @broker.subscriber("next")
    async def last(number: int) -> None: ...

    async with running(broker):
        await publish(postgres, broker, range(5))
        await events.wait_for("acked", 5, queue="next")
    published = Counter[str]()
    for tags in events.named("published"):
        published[tags["queue"]] += tags["count"]
    assert published == {"orders": 5, "next": 5}


async def test_a_failed_publish_is_told_of(postgres: PostgresBackend) -> None:
    broker = make_broker(postgres, events := Events())
    await postgres.run("ALTER TABLE outbox ADD CHECK (queue <> 'refused')")
    with pytest.raises(Exception, match="outbox"):
        await publish(postgres, broker, [1], queue="refused")
    [tags] = events.named("published")
    assert (tags["status"], tags["count"]) == ("error", 0)
    assert tags["exception_type"]


async def test_a_recorder_that_raises_breaks_nothing(
    postgres: PostgresBackend, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []

    class Broken:
        backlog_interval = 0.01

        def __call__(self, event: str, tags: Mapping[str, Any]) -> None:
            raise OSError(event, tags)

    await publish(postgres, make_broker(postgres, Broken()), [0], queue="elsewhere")  # before there is a logger
    broker = make_broker(postgres, Broken(), logger=logging.getLogger("shop"))
    finished = asyncio.Event()

    @broker.subscriber("orders", retry_strategy=SOON)
    async def handle(number: int, message: OutboxMessage) -> None:
        if message.raw_message.attempts_count == 0:
            raise ValueError(number)
        done.append(number)
        if len(done) == 5:
            finished.set()

    async with running(broker):
        await publish(postgres, broker, range(5))
        async with asyncio.timeout(60):
            await finished.wait()
    assert sorted(done) == list(range(5))
    assert [row.queue for row in await postgres.rows()] == ["elsewhere"]
    # Said once by the subscriber, which will fail on every row, and once by the watch over the backlog.
    told = [record for record in caplog.records if vars(record).get("event") == "metrics_failed"]
    assert [record.levelno for record in told if "published" not in record.message] == [logging.WARNING] * 2
    # And once by what each of the two brokers publishes; the first has no logger yet, so the library's own has it.
    published = [record for record in told if "published" in record.message]
    assert [record.levelno for record in published] == [logging.WARNING] * 2
    assert published[0].name == "faststream_outbox"
