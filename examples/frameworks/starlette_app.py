"""Starlette: the broker starts and stops with the application, and handles messages in the same process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.frameworks.shop import Order, dlq_table, outbox_table
from faststream_outbox import OutboxBroker


def create_app(engine: AsyncEngine) -> Starlette:
    """Return the application."""
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table)

    @broker.subscriber("orders")
    async def pack(order_id: int) -> None:
        print(f"packing order {order_id}", flush=True)

    async def place_order(request: Request) -> JSONResponse:
        async with sessions.begin() as session:
            order = Order(product=(await request.json())["product"])
            session.add(order)
            await session.flush()  # assigns the id
            await broker.publish(order.id, queue="orders", session=session)
        return JSONResponse({"id": order.id}, status_code=201)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with broker:
            await broker.start()
            yield

    return Starlette(routes=[Route("/orders", place_order, methods=["POST"])], lifespan=lifespan)
