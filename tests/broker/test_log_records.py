"""Every operational record says what it is about in fields, not in prose alone."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from faststream_outbox import NoRetry
from faststream_outbox.annotations import OutboxMessage
from tests.backends import PostgresBackend
from tests.metrics.brokers import SOON, Events, make_broker, publish, running, stop_during_a_handler

# What every record has, and what FastStream adds for its own format.
STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "message_id"}


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._changed = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._changed.set()

    def of(self, event: str) -> list[logging.LogRecord]:
        return [record for record in self.records if vars(record).get("event") == event]

    def one(self, event: str) -> tuple[int, dict[str, Any]]:
        """The level and the fields of the only record of an event."""
        [record] = self.of(event)
        return record.levelno, {name: value for name, value in vars(record).items() if name not in STANDARD}

    async def wait_for(self, event: str) -> None:
        async with asyncio.timeout(60):
            while not self.of(event):
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What FastStream's own logger for the broker writes."""
    handler, logger = Heard(), logging.getLogger("faststream.access.outbox")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_a_retry_and_a_death(postgres: PostgresBackend, heard: Heard) -> None:
    broker = make_broker(postgres, events := Events())

    @broker.subscriber("orders", retry_strategy=SOON)
    async def handle(number: int) -> None:
        raise ValueError(number)

    async with running(broker):
        await publish(postgres, broker, [1])
        await events.wait_for("dlq_written")
    [row_id] = [letter.original_id for letter in await postgres.dead_letters()]
    about = {"row_id": row_id, "queue": "orders"}
    assert heard.one("retry_scheduled") == (
        logging.INFO,
        {"event": "retry_scheduled", **about, "delay": pytest.approx(0.01, abs=0.01), "attempts": 1},
    )
    assert heard.one("dead_lettered") == (
        logging.ERROR,
        {"event": "dead_lettered", **about, "reason": "retry_terminal", "kept": True},
    )


@pytest.mark.parametrize(("fails", "phase"), [(False, "terminal"), (True, "retry")])
async def test_a_lost_lease(postgres: PostgresBackend, heard: Heard, *, fails: bool, phase: str) -> None:
    broker = make_broker(postgres, events := Events())
    ids: list[int] = []

    @broker.subscriber("orders")
    async def handle(number: int, message: OutboxMessage) -> None:
        ids.append(message.raw_message.id)
        steal = "UPDATE outbox SET acquired_token = :token, lease_expires_at = 'infinity' WHERE id = :id"
        await postgres.run(steal, token=uuid4(), id=message.raw_message.id)
        if fails:
            raise ValueError(number)

    async with running(broker):
        await publish(postgres, broker, [1])
        await events.wait_for("lease_lost")
    fields = {"event": "lease_lost", "phase": phase, "row_id": ids[0], "queue": "orders", "deliveries_count": 1}
    assert heard.one("lease_lost") == (logging.WARNING, fields)


async def test_a_stop_that_runs_out_of_time(postgres: PostgresBackend, heard: Heard) -> None:
    broker = make_broker(postgres, graceful_timeout=0.05)
    await stop_during_a_handler(postgres, broker)
    level, fields = heard.one("drain_timeout")
    assert level == logging.WARNING
    assert (fields["running"], fields["graceful_timeout"], fields["subscriber"]) == (1, 0.05, "Handle")


async def test_a_table_that_is_away(postgres: PostgresBackend, heard: Heard) -> None:
    broker = make_broker(postgres, events := Events())

    @broker.subscriber("orders")
    async def handle(number: int) -> None: ...

    await postgres.run("ALTER TABLE outbox RENAME TO away")
    async with running(broker):
        await heard.wait_for("claim_failed")
        await postgres.run("ALTER TABLE away RENAME TO outbox")
        await publish(postgres, broker, [1])
        await events.wait_for("acked")
    assert heard.one("outbox_unreadable")[0] == logging.ERROR
    assert {vars(record)["subscriber"] for record in heard.of("claim_failed")} == {"Handle"}


async def test_a_strategy_that_raises(postgres: PostgresBackend, heard: Heard) -> None:
    class Broken(NoRetry):
        def get_next_attempt_delay(self, **attempt: Any) -> float | None:
            raise LookupError(attempt)

    broker = make_broker(postgres, events := Events())

    @broker.subscriber("orders", retry_strategy=Broken())
    async def handle(number: int) -> None:
        raise ValueError(number)

    async with running(broker):
        await publish(postgres, broker, [1])
        await events.wait_for("nacked_retried")
    level, fields = heard.one("retry_strategy_failed")
    assert level == logging.ERROR
    assert fields["queue"] == "orders"
    assert fields["row_id"]
