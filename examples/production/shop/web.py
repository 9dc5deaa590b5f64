"""The web process: it publishes, and has no subscriber. `uvicorn shop.web:app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response, status
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker

from faststream_outbox import OutboxBroker

from .settings import make_engine
from .tables import Order, dlq_table, outbox_table

engine = make_engine(pool_size=10)
sessions = async_sessionmaker(engine, expire_on_commit=False)
# A broker without subscribers: it publishes, and claims nothing.
broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table)


class NewOrder(BaseModel):
    """What a client sends."""

    product: str


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Connect the broker: it then notifies the workers once for many messages, on a connection of its own."""
    async with broker:
        yield
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan)


@app.post("/orders", status_code=status.HTTP_201_CREATED)
async def place_order(new: NewOrder) -> dict[str, int]:
    """Write an order and its message in one transaction."""
    async with sessions.begin() as session:
        order = Order(product=new.product)
        session.add(order)
        await session.flush()  # now it has an id
        await broker.publish(order.id, queue="orders", key=str(order.id), session=session)
    return {"id": order.id}


@app.get("/health/live")
async def live() -> None:
    """Answer while the event loop runs; a database that is away is no reason to restart the process."""


@app.get("/health/ready")
async def ready(response: Response) -> dict[str, bool]:
    """Answer 200 while the database takes writes, and 503 otherwise."""
    answers = await broker.ping(timeout=5.0)
    if not answers:
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    return {"ready": answers}
