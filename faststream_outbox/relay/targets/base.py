"""What a relay needs of a broker: to be told, message by message, what was confirmed."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Final

from faststream_outbox.relay.outgoing import Outgoing

# A confirmation that takes longer will not come: the broker is gone, or silent.
CONFIRM_SECONDS: Final = 15.0


class OutageError(Exception):
    """The broker cannot be reached, or does not answer: nobody is to blame for it, and all of it is tried again."""


class RefusedError(Exception):
    """The broker will not take this message, now or later."""


class Target(ABC):
    """One broker, seen by a relay."""

    # Whether the messages of a key may be sent one behind the other before the first is confirmed: only where none can
    # be taken that comes behind one which was not.
    gapless: ClassVar[bool] = False

    @abstractmethod
    def check(self, destination: str) -> None:
        """Refuse a destination that cannot be, before there is a message for it."""

    @abstractmethod
    async def start(self) -> None:
        """Connect, unless somebody has done so."""

    @abstractmethod
    async def stop(self) -> None:
        """Disconnect, if we have connected."""

    @abstractmethod
    async def alive(self) -> bool:
        """Tell whether the broker answers."""

    @abstractmethod
    async def post(self, message: Outgoing) -> Awaitable[Any]:
        """Hand a message over; what is returned is awaited for its confirmation."""

    @abstractmethod
    def translate(self, error: Exception) -> Exception:
        """Make an `OutageError` or a `RefusedError` of an error, where it is one of them."""

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send messages that have no order; tells what went wrong with each."""
        return await self._confirmed([await self._post(message) for message in messages])

    async def send_run(self, run: Sequence[Outgoing]) -> tuple[int, Exception | None]:
        """Send the messages of one key; tells how many of the first ones are confirmed, and what stopped it."""
        if self.gapless:
            results = await self._confirmed([await self._post(message) for message in run])
        else:
            results = []
            for message in run:
                results += await self._confirmed([await self._post(message)])
                if results[-1] is not None:
                    break
        for confirmed, error in enumerate(results):
            if error is not None:
                return confirmed, error
        return len(results), None

    async def _post(self, message: Outgoing) -> "Awaitable[Any] | Exception":
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                return await self.post(message)
        except TimeoutError as error:
            return OutageError(f"{message.destination} took no message for {CONFIRM_SECONDS:g} seconds: {error}")
        except Exception as error:  # noqa: BLE001 - whoever sent it decides
            return self.translate(error)

    async def _confirmed(self, posted: Sequence["Awaitable[Any] | Exception"]) -> list[Exception | None]:
        waiting = {n: asyncio.ensure_future(each) for n, each in enumerate(posted) if not isinstance(each, Exception)}
        if waiting:
            await asyncio.wait(waiting.values(), timeout=CONFIRM_SECONDS)
        return [each if isinstance(each, Exception) else self._result(waiting[n]) for n, each in enumerate(posted)]

    def _result(self, future: "asyncio.Future[Any]") -> Exception | None:
        if not future.done():
            future.cancel()
            return OutageError(f"No confirmation came in {CONFIRM_SECONDS:g} seconds.")
        if future.cancelled():
            return OutageError("The confirmation was cancelled: the broker's client has gone.")
        error = future.exception()
        if error is None:
            return None
        return self.translate(error) if isinstance(error, Exception) else OutageError(repr(error))
