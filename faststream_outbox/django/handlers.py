"""Connections of Django for handlers: each call has its own, as each request has."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from fast_depends.utils import is_coroutine_callable
from faststream import BaseMiddleware
from faststream.message import StreamMessage

# Whether what runs now was called for a message, and no `def` handler has begun yet.
_for_message: Final = ContextVar("faststream_outbox.for_message", default=False)


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
            token = _for_message.set(True)
            try:
                return await call_next(msg)
            finally:
                _for_message.reset(token)
                # Only where this call has a thread: most handlers that use no models have none, and in a test the
                # connection is that of the test.
                if thread in SyncToAsync.context_to_thread_executor:
                    await sync_to_async(connections.close_all)()


def like_a_request(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler whose connections are treated as those of a request, if it is a plain `def`.

    FastStream runs it in a thread that other calls use later. A connection that stays there is missing in Django's
    pool, and one that was lost there fails the next call.
    """
    if is_coroutine_callable(handler):  # FastStream's rule for what needs no thread
        return handler

    @wraps(handler)
    def handle(*arguments: Any, **named: Any) -> Any:
        # A handler that other code calls uses the connections of that code, which goes on with them.
        if not _for_message.get():
            return handler(*arguments, **named)
        token = _for_message.set(False)
        close_old_connections()
        try:
            return handler(*arguments, **named)
        finally:
            close_old_connections()
            _for_message.reset(token)

    return handle
