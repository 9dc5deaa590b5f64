"""Who else may work on the same table: an older version, a clock that jumped, a subscriber that came late."""

import asyncio
from collections import Counter
from functools import partial
from operator import contains

import pytest

from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.client import OutboxClient
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty, until_rows


async def test_an_older_consumer_on_the_same_table(postgres: PostgresBackend) -> None:
    """The columns are the protocol: whoever claims and settles by them can share a queue with a broker."""
    broker, handled = broker_on(postgres), Counter[bytes]()
    ends = asyncio.Event()

    @broker.subscriber("q", max_workers=4, fetch_batch_size=10)
    async def handle(message: OutboxMessage) -> None:
        handled[message.body] += 1

    async def older() -> int:
        client, taken = OutboxClient(postgres.engine, postgres.outbox_table), 0
        async with postgres.engine.connect() as connection:
            while not ends.is_set():
                for row in await client.fetch(connection, ["q"], limit=10, lease_ttl_seconds=60):
                    handled[row.payload] += 1
                    assert row.acquired_token is not None
                    assert await client.delete_with_lease(connection, row.id, row.acquired_token)
                    taken += 1
                await asyncio.sleep(0.001)
        return taken

    consumer = asyncio.create_task(older())
    async with started(broker):
        for first in range(0, 1000, 50):
            await publish(broker, postgres, *(b"%d" % number for number in range(first, first + 50)))
        await until_empty(postgres)
        ends.set()
        assert await consumer > 0
    assert handled == {b"%d" % number: 1 for number in range(1000)}


async def test_a_server_whose_clock_jumps_ahead(postgres: PostgresBackend) -> None:
    """All leases seem to be over: rows in hand may run twice, the late settle is fenced, nothing is lost."""
    records, handled = Records(), Counter[int]()
    running, go_on = asyncio.Event(), asyncio.Event()
    first, second = broker_on(postgres, records), broker_on(postgres)

    @first.subscriber("q", fetch_batch_size=1)
    async def hold(number: int) -> None:
        handled[number] += 1
        running.set()
        await go_on.wait()

    @second.subscriber("q", min_fetch_interval=0.05, max_fetch_interval=0.1)
    async def handle(number: int) -> None:
        handled[number] += 1

    async with started(first):
        await publish(first, postgres, *range(10))
        await running.wait()
        await postgres.pass_time(600)
        async with started(second):
            await until_empty(postgres)
        go_on.set()
        await until(lambda: records.named("lease_lost"))
    assert sorted(handled) == list(range(10))


async def test_a_server_whose_clock_jumps_back(postgres: PostgresBackend) -> None:
    """What was due is due again when the clock is there again: schedules follow it, and nothing is lost."""
    broker, handled = broker_on(postgres), list[int]()

    @broker.subscriber("q", min_fetch_interval=0.05, max_fetch_interval=0.1)
    async def handle(number: int) -> None:
        handled.append(number)

    await publish(broker, postgres, *range(10))
    await postgres.pass_time(-600)
    async with started(broker):
        await publish(broker, postgres, 10)
        await until(lambda: handled)
        assert handled == [10]
        await until_rows(postgres, 10)  # settled too: what is in hand when a clock jumps may run twice
        await postgres.pass_time(600)
        await until_empty(postgres)
    assert sorted(handled) == list(range(11))


@pytest.mark.parametrize("driver", ["asyncpg"])
async def test_a_subscriber_that_is_added_to_a_running_broker_is_woken(postgres: PostgresBackend) -> None:
    broker, other, handled = broker_on(postgres), broker_on(postgres), list[int]()
    async with started(broker), started(other):
        subscriber = broker.subscriber("q", min_fetch_interval=300, max_fetch_interval=300)  # nobody polls

        @subscriber
        async def handle(number: int) -> None:
            handled.append(number)

        await subscriber.start()
        for number in range(3):
            await publish(other, postgres, number)
            await until(partial(contains, handled, number))
        assert await broker.ping()
