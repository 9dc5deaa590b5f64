"""What a relay needs of a broker: to be told, message by message, what was confirmed."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.runtime.telemetry import PlainError

# Whether rows are still ours: asked before each sending, because an outage may have outlasted their lease.
StillOurs = Callable[[], bool]


class OutageError(Exception):
    """The broker cannot be reached, or does not answer: nobody is to blame for it, and all of it is tried again."""


class RefusedError(PlainError):
    """The broker will not take this message, now or later."""


class LeaseLostError(Exception):
    """The rows may be somebody else's by now, so they were not sent."""


class SentRun(NamedTuple):
    """How many of the first messages of a key are confirmed, and what stopped it there."""

    confirmed: int
    error: Exception | None = None


class Target(ABC):
    """One broker, seen by a relay."""

    # A confirmation that takes longer, in seconds, may still come; until then the broker is as good as down.
    patience: float = 15.0
    # Whom to tell that the broker seems to be down; a relay puts itself here.
    on_outage: Callable[[Exception], None] | None = None

    async def confirmed(self, confirmation: Awaitable[Any], where: str) -> None:
        """Wait for a confirmation as long as it takes, and tell when it takes long.

        For a client that goes on sending by itself: what were sent again would be there twice.
        """
        future = asyncio.ensure_future(confirmation)
        while not (await asyncio.wait({future}, timeout=self.patience))[0]:
            if self.on_outage is not None:
                self.on_outage(self.silence(where))
        future.result()

    def silence(self, where: str) -> OutageError:
        """Make an error of a confirmation that does not come."""
        return OutageError(f"{where} has confirmed nothing for {self.patience:g} seconds.")

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
    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send messages that have no order; tells what went wrong with each."""

    @abstractmethod
    async def send_run(self, run: Sequence[Outgoing], still_ours: StillOurs) -> SentRun:
        """Send the messages of one key; none is sent whose predecessor may not have been taken."""

    @abstractmethod
    def translate(self, error: Exception) -> Exception:
        """Make an `OutageError` or a `RefusedError` of an error, where it is one of them."""
