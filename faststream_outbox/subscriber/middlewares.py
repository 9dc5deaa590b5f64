"""The middlewares that a subscriber adds by itself."""

import inspect
from typing import Any

from faststream import BaseMiddleware
from faststream.exceptions import AckMessage
from faststream.response import ensure_response

from faststream_outbox._faststream import BrokerMiddleware
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.envelope import PER_MESSAGE_HEADERS
from faststream_outbox.publisher.answers import inherit_correlation_id
from faststream_outbox.publisher.foreign import ForeignPublishing
from faststream_outbox.response import OutboxPublishCommand


def as_broker_middleware(middleware: Any) -> BrokerMiddleware[Any]:
    """Return a broker middleware for a class, a factory, or a function `async def (call_next, message)`."""
    if not inspect.iscoroutinefunction(middleware):
        factory: BrokerMiddleware[Any] = middleware
        return factory

    class FunctionMiddleware(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            return await middleware(call_next, msg)

    return FunctionMiddleware


class WatchHandler(BaseMiddleware):
    """Marks deliveries whose handler, or its publisher, raised, even if another middleware hides the exception."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Call the handler, and mark its deliveries if it raises."""
        try:
            return await call_next(msg)
        except BaseException as error:
            self._mark(error)
            raise

    async def after_processed(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> bool | None:
        """Mark the deliveries before outer middlewares can hide the exception."""
        if exc_val is not None:
            self._mark(exc_val)
        return await super().after_processed(exc_type, exc_val, exc_tb)

    def _mark(self, error: BaseException) -> None:
        if isinstance(error, AckMessage):
            return  # by this exception a handler acknowledges
        for delivery in self.msg if isinstance(self.msg, tuple) else (self.msg,):
            delivery.raised = True


class PropagateHeaders(BaseMiddleware):
    """Copies the headers of a message to the answer of its handler; headers of the answer win."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Call the handler, and add the headers to its answer."""
        response = ensure_response(await call_next(msg))
        inbound = {name: value for name, value in msg.headers.items() if name not in PER_MESSAGE_HEADERS}
        response.headers = inbound | response.headers
        return response


class PublishToForeignBroker(BaseMiddleware):
    """Runs next to the producer of another broker, or another outbox, when a handler's answer is published there."""

    def __init__(self, msg: Any, /, *, context: Any, config: OutboxBrokerConfig, publishing: ForeignPublishing) -> None:
        super().__init__(msg, context=context)
        self._answered = msg
        self._config = config
        self._publishing = publishing

    async def publish_scope(self, call_next: Any, msg: Any) -> Any:
        """Publish to the other broker; a message for an outbox passes, with a correlation id that is unique there."""
        if isinstance(msg, OutboxPublishCommand):
            first = self._answered[0] if isinstance(self._answered, tuple) else self._answered
            inherit_correlation_id(msg, first, source=self._config.source)
            return await call_next(msg)
        return await self._publishing.send(call_next, msg, self._answered, source=self._config.source)
