"""Another service: reads the statements from Kafka and records them in the order of arrival."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiokafka import AIOKafkaConsumer
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from examples.demo.messages import STATEMENTS, Charge
from examples.demo.tables import Statement

_CATCH_UP_SECONDS = 20.0


class Reader:
    """Reads the topic from its beginning."""

    def __init__(self, engine: AsyncEngine, consumer: Any) -> None:
        self._engine = engine
        self._consumer = consumer

    async def run(self) -> None:
        """Read until cancelled."""
        async for record in self._consumer:
            charge = Charge.model_validate_json(record.value)
            statement = insert(Statement).values(
                customer=charge.customer,
                entry=charge.entry,
                order_number=charge.order_number,
                outbox_id=dict(record.headers)["outbox_id"].decode(),
            )
            async with self._engine.begin() as connection:
                await connection.execute(statement)

    async def catch_up(self) -> None:
        """Wait until everything in the topic has been read."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while await self._is_behind():
                    await asyncio.sleep(0.05)

    async def _is_behind(self) -> bool:
        ends = await self._consumer.end_offsets(self._consumer.assignment())
        return any([await self._consumer.position(partition) < end for partition, end in ends.items()])


@contextlib.asynccontextmanager
async def reading(engine: AsyncEngine, kafka: str) -> AsyncIterator[Reader]:
    """Read in the background while the block runs."""
    consumer = AIOKafkaConsumer(STATEMENTS, bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    reader = Reader(engine, consumer)
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await consumer.stop()
