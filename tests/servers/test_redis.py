from typing import Any

import pytest
from faststream.redis import RedisBroker
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.servers.redis import Redis
from tests.servers.round_trips import echoed, received


@pytest.mark.parametrize("kind", ["channel", "list", "stream"])
async def test_a_message_goes_there_and_back(redis_server: Redis, name: str, kind: str) -> None:
    broker = RedisBroker(redis_server.url)
    where: dict[str, Any] = {kind: name}
    assert await echoed(broker, broker.subscriber(**where), "hello", **where) == ["hello"]


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_it_comes_back_with_its_data(redis_server: Redis, name: str, end: str) -> None:
    async with RedisBroker(redis_server.url) as broker:
        await broker.publish("hello", list=name)
        await getattr(redis_server, end)()
        with pytest.raises(RedisConnectionError):
            await broker.publish("lost", list=name)
        await redis_server.start()
        await broker.publish("again", list=name)
    broker = RedisBroker(redis_server.url)
    assert await received(broker, broker.subscriber(list=name), 2) == ["hello", "again"]
