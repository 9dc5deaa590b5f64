"""Rows relayed by the program."""

import asyncio
import signal
from contextlib import AbstractContextManager

import pytest

from faststream_outbox import OutboxBroker
from tests.cli.programs import TIMEOUT, Program, password_of, relaying
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import in_order, publish, publish_without_keys
from tests.waiting import until_empty, until_rows


async def test_rows_arrive_in_the_order_of_their_keys(setup: RelaySetup) -> None:
    await publish(setup.outbox, range(300))
    await publish_without_keys(setup.outbox, range(300, 320))
    database = ("--dsn", setup.database.dsn, "--dlq-table", "outbox_dlq")
    with relaying(*database, *setup.route, folder=setup.folder) as program:
        numbers = await setup.stream.numbers(320)
        await until_empty(setup.outbox)
        assert await program.stop() == 0, program.output
        assert [line["relayed"] for line in program.lines("relay_stopped")] == [320]
        assert [len(program.lines(event)) for event in ("relay_starting", "relay_started")] == [1, 1]
        assert password_of(setup.database) not in program.output
        assert "no_dead_letters" not in program.output
    assert sorted(numbers) == list(range(320))
    assert in_order(number for number in numbers if number < 300)


async def test_a_signal_drains(setup: RelaySetup) -> None:
    for start in range(0, 20_000, 5000):
        await publish(setup.outbox, range(start, start + 5000))
    with setup.relaying() as program:
        await setup.stream.numbers(1)
        assert await program.stop(signal.SIGINT) == 0, program.output
        assert len(program.lines("no_dead_letters")) == 1
    left = await setup.outbox.run("SELECT convert_from(payload, 'UTF8')::int, acquired_token FROM outbox")
    sent = [int(body) for body, _ in await setup.stream.messages()]
    # Sent rows are deleted and other rows are released; nothing is lost, and nothing is sent twice.
    assert sorted([*sent, *(int(str(number)) for number, _ in left)]) == list(range(20_000))
    assert left
    assert {token for _, token in left} == {None}
    assert in_order(sent)


@pytest.mark.parametrize("ordering", ["head-lease", "advisory-locks", "hash-shards"])
async def test_two_processes_share_the_work(setup: RelaySetup, ordering: str) -> None:
    with (
        setup.relaying("--ordering", ordering, name="one") as one,
        setup.relaying("--ordering", ordering, name="two") as two,
    ):
        published = 0
        shares = [0, 0]
        async with asyncio.timeout(120):
            while not all(shares):  # one may be slow to start
                await publish(setup.outbox, range(published, published + 200))
                published += 200
                numbers = await setup.stream.numbers(published)
                await until_empty(setup.outbox)
                shares = [(await each.wait_for_answer("/status", 200))["relayed"] for each in (one, two)]
        assert sum(shares) == published
        for each in (one, two):
            assert await each.stop() == 0, each.output
    assert sorted(numbers) == list(range(published))
    assert in_order(numbers)


async def test_nodes_with_shards_of_their_own(setup: RelaySetup) -> None:
    # This table is not needed: nothing is shared.
    await setup.outbox.run("DROP TABLE outbox_shards")
    waiting = "SELECT count(*) FROM outbox WHERE hashtext(entity_key) & 3 = 3"

    def node(name: str, shards: str) -> AbstractContextManager[Program]:
        options = ("--ordering", "hash-shards", "--shards", "4", "--own-shards", shards)
        route = ("--to", setup.redis.url, "--route", f"orders={setup.stream.name}-{name}")
        return relaying(*route, *options, folder=setup.folder, name=name, OUTBOX_DSN=setup.database.dsn)

    async def keys_of(name: str) -> set[str]:
        messages = await setup.stream.named(f"{setup.stream.name}-{name}").messages()
        return {headers["outbox_key"] for _, headers in messages}

    broker = OutboxBroker(outbox_table=setup.outbox.outbox_table)
    keys = [f"k{number % 40}" for number in range(200)]
    with node("one", "0-1"), node("two", "2"):
        async with setup.outbox.transaction() as session:
            await broker.publish_batch(*range(200), queue="orders", session=session, keys=keys)
        unserved = await setup.outbox.one(waiting)
        await until_rows(setup.outbox, int(str(unserved)), seconds=TIMEOUT)
        # Nobody has shard 3: its rows wait, untouched.
        assert await setup.outbox.one(waiting) == unserved
        assert await setup.outbox.one("SELECT max(deliveries_count) FROM outbox") == 0
        with node("three", "3/4"):
            await until_empty(setup.outbox)
    parts = [await keys_of(name) for name in ("one", "two", "three")]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40
    for name in ("one", "two", "three"):
        numbers = await setup.stream.named(f"{setup.stream.name}-{name}").numbers(1)
        by_key = {number % 40: [each for each in numbers if each % 40 == number % 40] for number in numbers}
        assert all(each == list(range(key, 200, 40)) for key, each in by_key.items())
