"""Connections of Django for handlers: each call has its own, as each request has."""

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections
from faststream import BaseMiddleware
from faststream.message import StreamMessage


class HandlerConnections(BaseMiddleware):
    """Runs what a handler does with models in a thread of this call, with connections that end with it.

    Otherwise all handlers of the process would share one connection: a handler would write into the transaction that
    another one holds open and may roll back, and a connection that was lost would never be replaced.

    Example:
        broker = OutboxBroker(
            engine,
            outbox_table=outbox_table,
            dlq_table=dlq_table,
            middlewares=(HandlerConnections,),
        )

    """

    async def consume_scope(
        self, call_next: Callable[[StreamMessage[Any]], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        """Call the handler, and close the connections that it has opened."""
        async with ThreadSensitiveContext() as thread:
            try:
                return await call_next(msg)
            finally:
                # Only where this call has a thread: most handlers that use no models have none, and in a test the
                # connection is that of the test.
                if thread in SyncToAsync.context_to_thread_executor:
                    await sync_to_async(connections.close_all)()
