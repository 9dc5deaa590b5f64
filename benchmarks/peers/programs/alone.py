"""FastStream alone: rows that are there already go through its own machinery, one by one; no database, nothing of ours.

What ours adds to FastStream is left out: its loops, and its shortcut through FastStream.
"""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Never

from serving import QUEUE, Contestant, Message, Work, message, serve, task_of
from sqlalchemy import MetaData

from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox._faststream import SubscriberUsecase
from faststream_outbox.message import OutboxDelivery

_HEADERS = json.dumps({"content-type": "application/json", "correlation_id": "9c1f6e0e-5d0c-4c55-9d6a-2f4f7d1f4c3b"})


class Alone(Contestant):
    """A subscriber of a broker without a database. Options: `apply_types`."""

    package = "faststream"
    module = "faststream"

    async def create(self) -> None:
        """There is nothing to create."""

    @asynccontextmanager
    async def working(self, work: Work) -> AsyncIterator[None]:
        """Let rows through, as many as are expected."""
        options: dict[str, Any] = dict(work.options)
        broker = OutboxBroker(outbox_table=make_outbox_table(MetaData(), self.table), logger=None, **options)

        @broker.subscriber(QUEUE)
        async def count(_: Message) -> None:
            work.notes.count()

        # What a broker's start does, but the loops of ours.
        broker.config.logger._setup(broker.config.context)  # noqa: SLF001 - as FastStream does
        subscriber: Any = broker.subscribers[0]
        await SubscriberUsecase.start(subscriber)
        rows = [_row(number) for number in range(work.notes.expected)]

        async def consume() -> None:
            await work.notes.awaited.wait()
            for row in rows:
                await SubscriberUsecase.process_message(subscriber, row)

        async with task_of(consume(), lambda: None):
            yield

    def publishing(self, clients: int) -> Never:
        """Refuse: nothing is published here."""
        raise NotImplementedError


def _row(number: int) -> OutboxDelivery:
    now = time.time()
    return OutboxDelivery(
        id=number,
        queue=QUEUE,
        entity_key=None,
        payload=json.dumps(message(number)).encode(),
        headers_json=_HEADERS,
        timer_id=None,
        created_epoch=now,
        next_attempt_epoch=now,
        acquired_epoch=now,
        acquired_token=None,
        lease_expires_epoch=now,
        attempts_count=0,
        deliveries_count=1,
        first_attempt_epoch=None,
        last_attempt_epoch=None,
    )


if __name__ == "__main__":
    serve(Alone)
