"""A primary that dies under load, and a synchronous standby that replaces it: nothing is lost, and order is kept."""

import asyncio

import pytest
from sqlalchemy import make_url

from tests.failover.cluster import Cluster
from tests.failover.load import Load, Stream, describe
from tests.proxy import proxying
from tests.relay.endpoints import RedisStream
from tests.servers.redis import Redis


async def kill_and_promote(cluster: Cluster) -> float:
    """Return when the new primary took writes, on the monotonic clock."""
    await asyncio.sleep(0.5)
    await asyncio.to_thread(cluster.kill)
    await asyncio.sleep(2)  # every wait between two attempts is at its longest then
    return await asyncio.to_thread(cluster.promote)


async def test_under_load_with_an_address_of_both_servers(cluster: Cluster, driver: str, redis_server: Redis) -> None:
    database = await asyncio.to_thread(cluster.create_database)
    load = Load(cluster.url(database, driver), RedisStream(redis_server))
    async with load.running():
        promoted = await kill_and_promote(cluster)
        await load.until_recovered(promoted)
    load.check()
    print(describe(load.recovery(promoted)))


async def test_under_load_with_an_address_that_moves(cluster: Cluster, redis_server: Redis) -> None:
    database = await asyncio.to_thread(cluster.create_database)
    async with proxying(database.url("asyncpg")) as proxy:
        load = Load(make_url(proxy.url(database.url("asyncpg"))), RedisStream(redis_server))
        async with load.running():
            promoted = await kill_and_promote(cluster)
            proxy.redirect(cluster.primary.url("asyncpg"))
            await load.until_recovered(promoted)
        load.check()
    print(describe(load.recovery(promoted)))


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
