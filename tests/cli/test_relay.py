"""Rows relayed by the program."""

import asyncio
import signal
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import until_empty
from tests.cli.programs import password_of, relaying
from tests.cli.redis_stream import RedisStream
from tests.cli.rows import in_order, publish
from tests.servers.redis import Redis


async def test_rows_arrive_in_the_order_of_their_keys(
    outbox: PostgresBackend, outbox_postgres: Database, redis_server: Redis, stream: RedisStream, tmp_path: Path
) -> None:
    await publish(outbox, range(300))
    where = ("--dsn", outbox_postgres.dsn, "--to", redis_server.url, "--dlq-table", "outbox_dlq")
    with relaying(*where, "--route", f"orders={stream.name}", folder=tmp_path) as program:
        numbers = await stream.numbers(300)
        await until_empty(outbox)
        assert await program.stop() == 0, program.said
        assert [line["relayed"] for line in program.lines("relay_stopped")] == [300]
        assert password_of(outbox_postgres) not in program.said
        assert "no_dead_letters" not in program.said
    assert sorted(numbers) == list(range(300))
    assert in_order(numbers)


async def test_a_signal_drains(
    outbox: PostgresBackend, outbox_postgres: Database, redis_server: Redis, stream: RedisStream, tmp_path: Path
) -> None:
    for start in range(0, 20_000, 5000):
        await publish(outbox, range(start, start + 5000))
    where = ("--to", redis_server.url, "--route", f"orders={stream.name}")
    with relaying(*where, folder=tmp_path, OUTBOX_DSN=outbox_postgres.dsn) as program:
        await stream.numbers(1)
        assert await program.stop(signal.SIGINT) == 0, program.said
    left = await outbox.run("SELECT convert_from(payload, 'UTF8')::int, acquired_token FROM outbox")
    sent = [int(body) for body, _ in await stream.messages()]
    # What was sent is gone, what was not is free for others; nothing is lost, and nothing comes twice.
    assert sorted([*sent, *(number for number, _ in left)]) == list(range(20_000))
    assert left
    assert {token for _, token in left} == {None}
    assert in_order(sent)


@pytest.mark.parametrize("ordering", ["head-lease", "advisory-locks", "hash-shards"])
async def test_two_processes_share_the_work(
    outbox: PostgresBackend,
    outbox_postgres: Database,
    redis_server: Redis,
    stream: RedisStream,
    tmp_path: Path,
    ordering: str,
) -> None:
    options = ("--dsn", outbox_postgres.dsn, "--to", redis_server.url, "--route", f"orders={stream.name}")
    with (
        relaying(*options, "--ordering", ordering, folder=tmp_path, name="one") as one,
        relaying(*options, "--ordering", ordering, folder=tmp_path, name="two") as two,
    ):
        published = 0
        shares = [0, 0]
        async with asyncio.timeout(120):
            while not all(shares):  # one may be slow to start
                await publish(outbox, range(published, published + 200))
                published += 200
                numbers = await stream.numbers(published)
                await until_empty(outbox)
                shares = [(await each.until("/status", 200))["relayed"] for each in (one, two)]
        assert sum(shares) == published
        for each in (one, two):
            assert await each.stop() == 0, each.said
    assert sorted(numbers) == list(range(published))
    assert in_order(numbers)
