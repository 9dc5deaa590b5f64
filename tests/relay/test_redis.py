"""Rows relayed to Redis."""

import asyncio
from collections import defaultdict
from typing import Any
from uuid import uuid4

from faststream.redis import RedisBroker, StreamSub

from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, until, until_empty
from tests.broker.test_ordering import publish_keyed
from tests.servers.redis import Redis


async def test_rows_go_to_a_stream_in_the_order_of_their_keys(postgres: PostgresBackend, redis_server: Redis) -> None:
    stream, broker = f"s{uuid4().hex}", broker_on(postgres)
    seen = defaultdict[str, list[int]](list)
    there = RedisBroker(redis_server.url, logger=None)

    @there.subscriber(stream=StreamSub(stream, last_id="0"))
    async def receive(body: dict[str, Any]) -> None:
        seen[body["key"]].append(body["number"])

    await publish_keyed(broker, postgres, *((f"k{n % 10}", n) for n in range(200)))
    relay = Relay(broker, to=RedisBroker(redis_server.url, logger=None), routes={"q": stream})
    async with there, relay:
        await there.start()
        await until_empty(postgres)
        await until(lambda: sum(map(len, seen.values())) == 200)
        await asyncio.sleep(0)
    assert seen == {f"k{k}": [n for n in range(200) if n % 10 == k] for k in range(10)}
