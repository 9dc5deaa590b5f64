"""A broker that speaks Kafka's protocol, inside this process: the mock cluster that comes with confluent-kafka."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from confluent_kafka import Producer

_START_SECONDS = 10.0


@asynccontextmanager
async def running_kafka() -> AsyncIterator[str]:
    """Run the mock and return its address. It creates topics on demand and keeps everything in memory."""
    # The mock lives in the client that made it; this client is used for nothing else.
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    metadata = await asyncio.to_thread(cluster.list_topics, timeout=_START_SECONDS)
    broker = next(iter(metadata.brokers.values()))
    yield f"{broker.host}:{broker.port}"
    await asyncio.to_thread(cluster.flush, 0)
