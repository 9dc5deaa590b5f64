"""A primary that dies under load, and a synchronous standby that replaces it: nothing is lost, and order is kept."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.failover.cluster import Cluster
from tests.failover.load import Load, Stream, describe
from tests.proxy import proxying
from tests.relay.endpoints import RedisStream
from tests.servers.redis import Redis


async def kill_and_promote(cluster: Cluster, load: Load) -> float:
    """Return when the new primary took writes, on the monotonic clock."""
    await load.until_flowing()
    await asyncio.to_thread(cluster.kill)
    await asyncio.sleep(2)  # every wait between two attempts is at its longest then
    return await asyncio.to_thread(cluster.promote)


async def test_under_load_with_an_address_of_both_servers(cluster: Cluster, driver: str, redis_server: Redis) -> None:
    database = await asyncio.to_thread(cluster.create_database)
    load = Load(cluster.url(database, driver), RedisStream(redis_server))
    async with load.running():
        promoted = await kill_and_promote(cluster, load)
        await load.until_recovered(promoted)
    load.check()
    print(describe(load.recovery(promoted)))  # noqa: T201 - to be read with -s, never asserted


async def test_under_load_with_an_address_that_moves(cluster: Cluster, redis_server: Redis) -> None:
    database = await asyncio.to_thread(cluster.create_database)
    async with proxying(database.url("asyncpg")) as proxy:
        load = Load(make_url(proxy.url(database.url("asyncpg"))), RedisStream(redis_server))
        async with load.running():
            promoted = await kill_and_promote(cluster, load)
            proxy.redirect(cluster.primary.url("asyncpg"))
            await load.until_recovered(promoted)
        load.check()
    print(describe(load.recovery(promoted)))  # noqa: T201 - to be read with -s, never asserted


async def test_what_an_asynchronous_standby_loses(replicated: PostgresBackend, cluster: Cluster, driver: str) -> None:
    """Whole transactions, and the ids of their messages, which are given again unless they are skipped."""
    await replicated.run("CREATE TABLE orders (id bigint)")
    broker = broker_on(replicated)

    async def order() -> int:
        async with replicated.transaction() as session:
            row_id = await broker.publish(driver, queue="q", session=session)
            await session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": row_id})
            return int(str(row_id))

    kept = [await order()]
    await asyncio.to_thread(cluster.detach)
    lost = [await order() for _ in range(50)]
    await asyncio.to_thread(cluster.kill)
    await asyncio.to_thread(cluster.promote)
    await replicated.engine.dispose()
    assert [row.id for row in await replicated.rows()] == kept
    assert await replicated.run("SELECT id FROM orders") == [(row_id,) for row_id in kept]
    assert await order() in lost
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    [skip] = re.findall(r"```sql\n(.*?)```", page.split("### An asynchronous standby")[1], re.DOTALL)
    await replicated.run(skip)
    assert await order() > max(lost)


async def test_a_server_that_is_silent(replicated: PostgresBackend, cluster: Cluster, driver: str) -> None:
    """psycopg goes on to the next server; asyncpg does not."""
    url = cluster.primary.url(driver)
    async with proxying(url) as silent:
        silent.freeze()
        hosts = (f"127.0.0.1:{silent.port}", f"127.0.0.1:{make_url(url).port}")
        address = replicated.engine.url.set(query={"host": hosts, "target_session_attrs": "read-write"})
        limit: dict[str, Any] = {"timeout": 2} if driver == "asyncpg" else {"connect_timeout": 2}
        engine = create_async_engine(address, connect_args=limit)
        if driver == "asyncpg":
            with pytest.raises(TimeoutError):
                await engine.connect()
        else:
            async with engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        await engine.dispose()


@pytest.mark.parametrize(
    ("arrived", "found"),
    [
        ([1, 2, 3], None),
        ([1, 2, 1, 2, 3], None),
        ([1, 2, 3, 4], None),
        ([1, 3], "lost"),
        ([1, 3, 2], "out of order"),
        ([1, 2, 3, 5], "never committed"),
    ],
)
def test_what_the_check_of_a_stream_finds(arrived: list[int], found: str | None) -> None:
    stream = Stream(dict.fromkeys([1, 2, 3], 0.0), {4}, [(number, 0.0) for number in arrived])
    if found is None:
        stream.check("", ordered=True)
        return
    with pytest.raises(AssertionError, match=found):
        stream.check("", ordered=True)
