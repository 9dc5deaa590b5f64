"""The service: `uvicorn --factory examples.fastapi_app.app:create_app`, with DATABASE_URL set."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, status
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.fastapi_app.tables import Base, Order, dlq_table, outbox_table
from faststream_outbox import OutboxRouter as Handlers
from faststream_outbox.fastapi import Logger, OutboxRouter

# Paths and handlers are declared without a database, as in a module that others import.
paths = APIRouter()
handlers = Handlers()


class NewOrder(BaseModel):
    """What a client sends."""

    product: str


class PlacedOrder(BaseModel):
    """What a client gets, and what the message holds."""

    id: int
    product: str
    status: str


async def get_session(request: Request) -> AsyncIterator[AsyncSession]:
    """Yield a session in a transaction, which is committed unless the path raises."""
    async with request.app.state.sessions.begin() as session:
        yield session


# The scope commits before the response is sent: no response confirms an order that was not committed.
Session = Annotated[AsyncSession, Depends(get_session, scope="function")]


@paths.post("/orders", status_code=status.HTTP_201_CREATED)
async def place_order(new: NewOrder, session: Session, request: Request) -> PlacedOrder:
    """Write an order and its message in one transaction."""
    order = Order(product=new.product)
    session.add(order)
    await session.flush()  # now it has an id
    placed = PlacedOrder.model_validate(order, from_attributes=True)
    await request.app.state.broker.publish(placed, queue="orders", session=session)
    if new.product == "nothing":
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "Nothing cannot be ordered.")  # rolls all back
    return placed


@paths.get("/orders/{order_id}")
async def get_order(order_id: int, session: Session) -> PlacedOrder:
    """Return the state of an order."""
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND)
    return PlacedOrder.model_validate(order, from_attributes=True)


@handlers.subscriber("orders", max_workers=4)
async def confirm_order(placed: PlacedOrder, session: Session, logger: Logger) -> None:
    """Confirm an order. A message may come twice; a second confirmation changes nothing."""
    order = await session.get_one(Order, placed.id)
    order.status = "confirmed"
    logger.info("Order %s confirmed", placed.id)


def create_app(url: str | None = None) -> FastAPI:
    """Make the application for the database at this address."""
    engine = create_async_engine(url or os.environ["DATABASE_URL"], pool_size=10)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with engine.begin() as connection:  # a real service uses Alembic
            await connection.run_sync(Base.metadata.create_all)
        yield {}
        await engine.dispose()  # after the broker has drained

    router = OutboxRouter(engine, outbox_table=outbox_table, dlq_table=dlq_table, lifespan=lifespan)
    router.include_router(handlers)
    router.include_router(paths)
    app = FastAPI(title="Orders")
    app.include_router(router)
    app.state.broker, app.state.sessions = router.broker, async_sessionmaker(engine)
    return app
