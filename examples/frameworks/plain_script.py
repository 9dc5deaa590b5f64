"""A script: publish in a transaction, handle what is there, and end. No framework and no server."""

import asyncio

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from examples.frameworks.shop import Order, dlq_table, outbox_table
from faststream_outbox import OutboxBroker


async def run(engine: AsyncEngine, products: list[str]) -> list[int]:
    """Place orders, and pack them until all are packed; return them in the order of packing."""
    broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, logger=None)
    packed = asyncio.Queue[int]()

    @broker.subscriber("orders")
    async def pack(order_id: int) -> None:
        packed.put_nowait(order_id)

    async with async_sessionmaker(engine).begin() as session:
        for product in products:
            order = Order(product=product)
            session.add(order)
            await session.flush()  # assigns the id
            await broker.publish(order.id, queue="orders", key="shop", session=session)

    await broker.start()
    try:
        async with asyncio.timeout(60):
            return [await packed.get() for _ in products]
    finally:
        await broker.stop()
