"""What a handler says of its message by itself, and when the broker hears of it."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from faststream.message import AckStatus, StreamMessage

# NATS has two.
_ACKS: Final[tuple[str, ...]] = ("ack", "ack_sync")
_NOT_HANDLED: Final = (AckStatus.NACKED, AckStatus.REJECTED)


class HeldAck:
    """Keeps the ack of a handler back until the commit: the broker would forget a message that may yet be rolled back.

    A nack or a reject goes through, because whatever is rolled back may come again.
    """

    def __init__(self, message: StreamMessage[Any]) -> None:
        self._message = message
        self._given: Callable[[], Awaitable[Any]] | None = None
        # A middleware may have put its own in their place.
        self._before = {name: vars(message)[name] for name in _ACKS if name in vars(message)}
        for name in _ACKS:
            if hasattr(message, name):
                vars(message)[name] = partial(self._hold, getattr(message, name))

    async def _hold(self, ack: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> None:
        self._given = self._given or partial(ack, *args, **options)

    @property
    def refused(self) -> bool:
        """Whether the handler has said that it did not handle the message."""
        return self._message.committed in _NOT_HANDLED

    def drop(self) -> None:
        """Forget what was said; from here on the broker hears."""
        for name in _ACKS:
            vars(self._message).pop(name, None)
        vars(self._message).update(self._before)

    async def pass_on(self) -> None:
        """Tell the broker what was said, if anything was."""
        self.drop()
        if self._given is not None:
            await self._given()
