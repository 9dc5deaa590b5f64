"""A relay obeys a pause of its queues."""

import asyncio

import pytest

from faststream_outbox import make_operations_tables
from faststream_outbox.relay import Relay
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import NotAcceptedError, OutageError
from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_paused_queue_is_not_sent_and_others_are(postgres: PostgresBackend, key: str | None) -> None:
    tables = make_operations_tables(postgres.metadata)
    async with postgres.engine.begin() as connection:
        await connection.run_sync(postgres.metadata.create_all)
    records, target = Records(), Memory()
    broker = broker_on(postgres, records, control_table=tables.control)
    await broker.operations.pause("orders", reason="a test")
    await postgres.insert(NewRow("orders", b"1", key=key), NewRow("events", b"2", key=key))
    async with asyncio.timeout(60), Relay(broker, to=target, routes={"orders": "a", "events": "b"}) as relay:
        await until(lambda: target.sent == [b"2"])
        assert len(records.named("queue_paused")) == 1
        await broker.operations.pause("events", reason="a test")
        await until(lambda: len(records.named("queue_paused")) == 2)
        await postgres.insert(NewRow("events", b"3", key=key))
        assert await relay.ping()
        # A claim that was under way may have taken the row; the relay gives it back.
        while await postgres.one("SELECT count(*) FROM outbox WHERE acquired_token IS NULL") != 2:
            await asyncio.sleep(0.05)
        assert target.sent == [b"2"]
        for queue in ("orders", "events"):
            await broker.operations.resume(queue, reason="the test is over")
        await until_empty(postgres)
    assert sorted(target.sent) == [b"1", b"2", b"3"]


class Broken(Memory):
    """Is down, or has a destination that is full, until it is mended."""

    def __init__(self, *, down: bool) -> None:
        super().__init__()
        self._down = down
        self.is_up = not down
        self.mended = False
        self.tries = 0

    def _send(self, message: Outgoing) -> Exception | None:
        if self.mended or message.destination != "broken":
            return super()._send(message)
        self.tries += 1
        return OutageError("down") if self._down else NotAcceptedError("full")

    def mend(self) -> None:
        self.mended = self.is_up = True


@pytest.mark.parametrize("down", [True, False], ids=["the broker is down", "the destination is full"])
@pytest.mark.parametrize("key", [None, "k"])
async def test_rows_that_waited_are_not_sent_if_their_queue_was_paused_meanwhile(
    postgres: PostgresBackend, key: str | None, *, down: bool
) -> None:
    tables = make_operations_tables(postgres.metadata)
    async with postgres.engine.begin() as connection:
        await connection.run_sync(postgres.metadata.create_all)
    records, target = Records(), Broken(down=down)
    broker = broker_on(postgres, records, control_table=tables.control)
    await postgres.insert(*(NewRow("orders", b"%d" % number, key=key) for number in range(3)))
    routes = {"orders": "broken", "events": "good"}
    async with asyncio.timeout(60), Relay(broker, to=target, routes=routes, max_workers=4) as relay:
        await until(lambda: target.tries and relay.paused)
        await broker.operations.pause("orders", reason="a test")
        await until(lambda: records.named("queue_paused"))
        target.mend()
        await postgres.insert(NewRow("events", b"good", key=key))
        await until(lambda: target.sent)
        free = "SELECT count(*) FROM outbox WHERE acquired_token IS NULL AND deliveries_count = 0"
        await until(lambda: postgres.one(free), lambda count: count == 3)
        assert target.sent == [b"good"]
        await broker.operations.resume("orders", reason="the test is over")
        await until_empty(postgres)
    assert sorted(target.sent) == [b"0", b"1", b"2", b"good"]
