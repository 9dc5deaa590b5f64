"""A primary that dies under load, and a synchronous standby that replaces it: nothing is lost, and order is kept."""

import asyncio

from tests.failover.cluster import Cluster
from tests.failover.load import Load, describe
from tests.relay.endpoints import RedisStream
from tests.servers.redis import Redis


async def test_a_promotion_under_load(cluster: Cluster, driver: str, redis_server: Redis) -> None:
    database = await asyncio.to_thread(cluster.create_database)
    load = Load(cluster.url(database, driver), RedisStream(redis_server))
    async with load.running():
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.kill)
        await asyncio.sleep(2)  # long enough for every wait between attempts to be at its longest
        promoted = await asyncio.to_thread(cluster.promote)
        await asyncio.sleep(3)
    load.check()
    print(describe(load.recovery(promoted), [getattr(record, "event", "") for record in load.records.records]))
