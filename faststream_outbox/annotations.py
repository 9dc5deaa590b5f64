"""Annotations for the parameters of handlers.

Example:
    from faststream_outbox.annotations import Logger, OutboxMessage

    @broker.subscriber("orders")
    async def handle(order_id: int, message: OutboxMessage, logger: Logger) -> None: ...

"""

from typing import Annotated

from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from faststream_outbox._faststream import LoopContext
from faststream_outbox.broker.broker import OutboxBroker as _OutboxBroker
from faststream_outbox.client import AbstractOutboxClient as _OutboxClient
from faststream_outbox.inbox import InboxSession
from faststream_outbox.message import OutboxBatchMessage as _OutboxBatchMessage
from faststream_outbox.message import OutboxMessage as _OutboxMessage
from faststream_outbox.publisher.producer import OutboxProducer as _OutboxProducer
from faststream_outbox.subscriber.signatures import OutboxSession

__all__ = [
    "ContextRepo",
    "InboxSession",
    "Logger",
    "NoCast",
    "OutboxBatchMessage",
    "OutboxBroker",
    "OutboxClient",
    "OutboxMessage",
    "OutboxProducer",
    "OutboxSession",
]

OutboxMessage = Annotated[_OutboxMessage, LoopContext("message")]
"""The message that is handled."""
OutboxBatchMessage = Annotated[_OutboxBatchMessage, LoopContext("message")]
"""The batch that is handled."""
OutboxBroker = Annotated[_OutboxBroker, LoopContext("broker")]
"""The broker of the handler."""
OutboxProducer = Annotated[_OutboxProducer, LoopContext("broker._producer")]
"""The producer of that broker: what its publishers call."""
OutboxClient = Annotated[_OutboxClient, LoopContext("broker.client")]
"""The client of that broker: single operations on rows."""
