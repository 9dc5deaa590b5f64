"""The outbox in a FastAPI application: a router that is also a broker, and annotations for its handlers.

Example:
    from faststream_outbox.fastapi import OutboxMessage, OutboxRouter

    router = OutboxRouter(engine, outbox_table=outbox_table, dlq_table=dlq_table)

    @router.subscriber("orders")
    async def handle(order_id: int, message: OutboxMessage) -> None: ...

    app = FastAPI()
    app.include_router(router)

"""

from typing import Annotated

from faststream_outbox._installation import needs_extra

try:
    import fastapi as _fastapi  # noqa: F401 - imported only to name what is missing
except ImportError as error:
    raise ImportError(needs_extra("faststream_outbox.fastapi", "fastapi")) from error

from faststream.params import NoCast
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.broker.broker import OutboxBroker as _OutboxBroker
from faststream_outbox.client import AbstractOutboxClient as _OutboxClient
from faststream_outbox.fastapi._faststream import Context, ContextRepo, Logger
from faststream_outbox.fastapi.router import OutboxRouter
from faststream_outbox.message import OutboxBatchMessage as _OutboxBatchMessage
from faststream_outbox.message import OutboxMessage as _OutboxMessage
from faststream_outbox.publisher.producer import OutboxProducer as _OutboxProducer
from faststream_outbox.subscriber.signatures import SESSION, SHARES_TRANSACTION

__all__ = [
    "Context",
    "ContextRepo",
    "Logger",
    "NoCast",
    "OutboxBatchMessage",
    "OutboxBroker",
    "OutboxClient",
    "OutboxMessage",
    "OutboxProducer",
    "OutboxRouter",
    "OutboxSession",
]

OutboxMessage = Annotated[_OutboxMessage, Context("message")]
"""The message that is handled."""
OutboxBatchMessage = Annotated[_OutboxBatchMessage, Context("message")]
"""The batch that is handled."""
OutboxSession = Annotated[AsyncSession, Context(SESSION), SHARES_TRANSACTION]
"""The session of the transaction that deletes the message; it is committed after the handler has returned."""
OutboxBroker = Annotated[_OutboxBroker, Context("broker")]
"""The broker of the handler."""
OutboxProducer = Annotated[_OutboxProducer, Context("broker._producer")]
"""The producer of that broker: what its publishers call."""
OutboxClient = Annotated[_OutboxClient, Context("broker.client")]
"""The client of that broker: single operations on rows."""
