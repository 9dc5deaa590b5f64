"""Middlewares of a single subscriber."""

import inspect
from typing import Any

from faststream import BaseMiddleware
from faststream.exceptions import AckMessage
from faststream.response import ensure_response

from faststream_outbox._faststream import BrokerMiddleware
from faststream_outbox.envelope import THE_MESSAGES_OWN


def as_broker_middleware(middleware: Any) -> BrokerMiddleware[Any]:
    """Take a middleware class (or factory), as a broker does, or a function `async def (call_next, message)`."""
    if not inspect.iscoroutinefunction(middleware):
        factory: BrokerMiddleware[Any] = middleware
        return factory

    class FunctionMiddleware(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            return await middleware(call_next, msg)

    return FunctionMiddleware


class WatchHandler(BaseMiddleware):
    """Tells of what a handler raised, although a middleware around this one may make nothing of it."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Call the handler."""
        try:
            return await call_next(msg)
        except AckMessage:
            raise  # a way to return
        except BaseException:
            for delivery in msg.deliveries:
                delivery.raised = True
            raise


class PropagateHeaders(BaseMiddleware):
    """Gives what a handler returns the headers of the message that it answers; its own ones win."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Call the handler and add the headers to its answer."""
        response = ensure_response(await call_next(msg))
        inbound = {name: value for name, value in msg.headers.items() if name not in THE_MESSAGES_OWN}
        response.headers = inbound | response.headers
        return response
