"""The options of a relay, seen by what its broker and its table get."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from faststream_outbox import HashShards
from faststream_outbox.relay import Relay
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import HoldsLease, SentRun
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty, until_rows


class Gate(Memory):
    """Keeps every send waiting until it is opened, and records how many messages each had."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.sizes: list[int] = []
        self.waiting = 0

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        async with self._pass(len(messages)):
            return await super().send_each(messages)

    async def send_run(self, run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        async with self._pass(len(run)):
            return await super().send_run(run, holds_lease)

    @asynccontextmanager
    async def _pass(self, size: int) -> AsyncIterator[None]:
        self.sizes.append(size)
        self.waiting += 1
        await self.opened.wait()
        self.waiting -= 1
        yield


async def publish(postgres: PostgresBackend, count: int, *, keys: int) -> None:
    """Publish rows of some keys; without a key where `keys` is 0."""
    names = [f"k{number % keys}" if keys else None for number in range(count)]
    async with postgres.transaction() as session:
        bodies = (b"%d" % number for number in range(count))
        await broker_on(postgres).publish_batch(*bodies, queue="q", keys=names, session=session)


@pytest.mark.parametrize("keys", [0, 1])
async def test_max_records_are_sent_together(postgres: PostgresBackend, keys: int) -> None:
    await publish(postgres, 30, keys=keys)
    target = Gate()
    target.opened.set()
    async with Relay(broker_on(postgres), to=target, routes={"q": "t"}, max_records=4):
        await until_empty(postgres)
    assert len(target.sent) == 30
    assert max(target.sizes) == 4


async def test_max_workers_keys_are_sent_side_by_side(postgres: PostgresBackend) -> None:
    await publish(postgres, 40, keys=20)
    target = Gate()
    async with Relay(broker_on(postgres), to=target, routes={"q": "t"}, max_workers=3):
        await until(lambda: target.waiting, lambda waiting: waiting == 3)
        # More keys are in hand than are sent.
        claimed = "SELECT count(*) FROM outbox WHERE acquired_token IS NOT NULL"
        await until(lambda: postgres.one(claimed), lambda found: int(str(found)) > 3)
        assert target.waiting == 3
        target.opened.set()
        await until_empty(postgres)
    assert len(target.sent) == 40


async def test_rows_in_hand_are_bounded(postgres: PostgresBackend) -> None:
    await publish(postgres, 50, keys=0)
    target = Gate()
    options = {"max_workers": 2, "max_records": 3, "fetch_batch_size": 4}
    async with Relay(broker_on(postgres), to=target, routes={"q": "t"}, **options):  # type: ignore[arg-type]
        await until(lambda: target.waiting, lambda waiting: waiting == 2)
        claimed = await postgres.one("SELECT count(*) FROM outbox WHERE acquired_token IS NOT NULL")
        assert int(str(claimed)) <= 2 * 2 * 3
        target.opened.set()
        await until_empty(postgres)
    assert sorted(target.sent, key=int) == [b"%d" % number for number in range(50)]


async def test_a_row_that_was_delivered_too_often_is_dead(postgres: PostgresBackend) -> None:
    await publish(postgres, 3, keys=0)
    await postgres.run("UPDATE outbox SET deliveries_count = 5 WHERE payload = '1'")
    target = Memory()
    async with Relay(broker_on(postgres), to=target, routes={"q": "t"}, max_deliveries=5):
        await until_empty(postgres)
    assert sorted(target.sent) == [b"0", b"2"]
    assert [dead.payload for dead in await postgres.dead_letters()] == [b"1"]


async def test_a_relay_sends_the_keys_of_its_own_shards_only(postgres: PostgresBackend) -> None:
    await publish(postgres, 64, keys=64)
    one, other = Memory(), Memory()
    half = await postgres.one("SELECT count(*) FROM outbox WHERE hashtext(entity_key) & 1 = 1")
    async with Relay(broker_on(postgres), to=one, routes={"q": "t"}, ordering=HashShards(count=2, shards=[0])):
        await until_rows(postgres, int(str(half)))
        async with Relay(broker_on(postgres), to=other, routes={"q": "t"}, ordering=HashShards(count=2, shards=[1])):
            await until_empty(postgres)
    assert len(other.sent) == half
    assert sorted(one.sent + other.sent, key=int) == [b"%d" % number for number in range(64)]
