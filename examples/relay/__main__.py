"""The command: three accounts, a hundred movements each at the same time, on a Postgres and a mock of Kafka."""

import asyncio
import json

from aiokafka import AIOKafkaConsumer
from sqlalchemy.ext.asyncio import create_async_engine

from examples.demo.kafka import running_kafka
from examples.relay.bank import TOPIC, Bank, Base
from faststream_outbox.embedded import EmbeddedPostgres

OWNERS, MOVEMENTS = ["Ada", "Grace", "Joan"], 100


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as postgres, running_kafka() as kafka:
        engine = create_async_engine(postgres.url("asyncpg"), pool_size=20)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            async with asyncio.timeout(60):
                await _work(Bank(engine, kafka), kafka)
        finally:
            await engine.dispose()


async def _work(bank: Bank, kafka: str) -> None:
    await bank.open(*OWNERS)
    async with bank.relay:
        await asyncio.gather(*(bank.move(owner, 100) for _ in range(MOVEMENTS) for owner in OWNERS))
        print(f"{MOVEMENTS * len(OWNERS)} movements are booked")
        read = await _read(kafka)
    for owner, numbers in sorted(read.items()):
        print(
            f"{owner}: {len(numbers)} read from Kafka, {'in order' if numbers == sorted(numbers) else 'NOT in order'}"
        )


async def _read(kafka: str) -> dict[str, list[int]]:
    """Read the topic, and return the movements of each account."""
    numbers: dict[str, list[int]] = {owner: [] for owner in OWNERS}
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    try:
        while sum(map(len, numbers.values())) < MOVEMENTS * len(OWNERS):
            record = await consumer.getone()
            movement = json.loads(record.value)
            numbers[movement["owner"]].append(movement["number"])
    finally:
        await consumer.stop()
    return numbers


if __name__ == "__main__":
    asyncio.run(main())
