"""Litestar: a dependency opens the transaction of a request; it ends before the answer is sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, post
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from examples.frameworks.shop import Order, dlq_table, outbox_table
from faststream_outbox import OutboxBroker


def create_app(engine: AsyncEngine) -> Litestar:
    """Return the application."""
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table)

    @broker.subscriber("orders")
    async def pack(order_id: int) -> None:
        print(f"packing order {order_id}", flush=True)

    async def provide_session() -> AsyncIterator[AsyncSession]:
        async with sessions.begin() as session:
            yield session

    @post("/orders", dependencies={"session": Provide(provide_session)})
    async def place_order(data: dict[str, Any], session: AsyncSession) -> dict[str, int]:
        order = Order(product=data["product"])
        session.add(order)
        await session.flush()  # assigns the id
        await broker.publish(order.id, queue="orders", session=session)
        return {"id": order.id}

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with broker:
            await broker.start()
            yield

    return Litestar([place_order], lifespan=[lifespan], openapi_config=None, logging_config=None)
