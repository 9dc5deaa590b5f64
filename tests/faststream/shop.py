"""An application as a user would write it, for `faststream run` and `faststream docs`."""

import asyncio
import os

from faststream import FastStream
from faststream.asgi import AsgiFastStream, make_ping_asgi
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import OutboxBroker, OutboxRouter, make_outbox_table

engine = create_async_engine(os.environ["SHOP_DATABASE"])
broker = OutboxBroker(engine, outbox_table=make_outbox_table(MetaData()), graceful_timeout=1.5)
app = FastStream(broker)
asgi = AsgiFastStream(broker, asgi_routes=[("/health", make_ping_asgi(broker, timeout=5))], asyncapi_path="/docs")
router = OutboxRouter("shop.")


async def note(event: str, number: int) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO notes VALUES (:event, :number, :process)"),
            {"event": event, "number": number, "process": os.getpid()},
        )


@broker.subscriber(["orders", "returns"], fetch_batch_size=1)
@broker.publisher("confirmations")
async def handle(number: int) -> dict[str, int]:
    """Confirm an order."""
    await note("handled", number)
    return {"confirmed": number}


@router.subscriber("slow")
async def handle_slowly(number: int) -> None:
    await note("started", number)
    await asyncio.sleep(1)
    await note("finished", number)


broker.include_router(router)
