"""The witness: a middleware that records every message before its handler runs, and the end of the handler."""

from collections.abc import Awaitable, Callable
from typing import Any

from faststream import BaseMiddleware
from faststream.message import StreamMessage
from sqlalchemy import func, insert, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from examples.demo.messages import ACCOUNTS
from examples.demo.tables import Delivery


def make_diary(url: str, name: str) -> AsyncEngine:
    """Make an engine that commits each statement at once: no failure and no kill can roll a record back.

    A commit here does not wait for the disk, because it need not survive a crash of the machine.
    """
    settings = {"application_name": name, "synchronous_commit": "off"}
    return create_async_engine(url, isolation_level="AUTOCOMMIT", connect_args={"server_settings": settings})


class Witness(BaseMiddleware):
    """Writes into the diary that the app put into its context."""

    async def consume_scope(
        self, call_next: Callable[[StreamMessage[Any]], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        """Record a delivery, then run the handler."""
        row = msg.raw_message
        body: Any = await msg.decode()
        delivery = await self._write(
            insert(Delivery)
            .values(
                queue=row.queue,
                message_id=row.id,
                order_number=body["order_number"],
                attempt=row.attempts_count + 1,
                worker=self.context.get("worker"),
            )
            .returning(Delivery.id)
        )
        try:
            return await call_next(msg)
        finally:
            if row.queue == ACCOUNTS:
                await self._write(
                    update(Delivery)
                    .where(Delivery.id == delivery)
                    .values(ended_at=func.clock_timestamp())
                    .returning(Delivery.id)
                )

    async def _write(self, statement: Any) -> int:
        async with self.context.get("diary").connect() as connection:
            return int(await connection.scalar(statement))
