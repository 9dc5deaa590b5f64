"""`python -m examples.standalone.shop tea coffee`: an order for each product, in one transaction with its message."""

import asyncio
import sys
from collections.abc import Iterable

from examples.standalone.database import Order, create_tables, engine, outbox_table, sessions
from examples.standalone.messages import ORDERS, OrderPlaced
from faststream_outbox import OutboxBroker

# It publishes through the shop's own sessions and needs no engine.
broker = OutboxBroker(outbox_table=outbox_table)


async def place_order(product: str) -> int:
    """Insert an order and its message: both, or neither."""
    async with sessions() as session, session.begin():
        order = Order(product=product)
        session.add(order)
        await session.flush()  # assigns the id
        await broker.publish(OrderPlaced(order_id=order.id, product=product), queue=ORDERS, session=session)
        if not product:
            raise ValueError("nobody orders nothing")
        return order.id


async def main(products: Iterable[str]) -> None:
    await create_tables()
    for product in products:
        try:
            print(f"order {await place_order(product)}: {product}")
        except ValueError as error:
            print(f"rolled back: {error}")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
