"""What a relay needs of a broker: to be told, message by message, what was confirmed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from faststream_outbox.relay.outgoing import Outgoing

# A confirmation that takes longer may still come, but until then the broker is as good as down.
CONFIRM_SECONDS: Final = 15.0

# Whether rows are still ours: asked before each sending, because an outage may have outlasted their lease.
StillOurs = Callable[[], bool]


class OutageError(Exception):
    """The broker cannot be reached, or does not answer: nobody is to blame for it, and all of it is tried again."""


class RefusedError(Exception):
    """The broker will not take this message, now or later."""


class LeaseLostError(Exception):
    """The rows may be somebody else's by now, so they were not sent."""


class SentRun(NamedTuple):
    """How many of the first messages of a key are confirmed, and what stopped it there."""

    confirmed: int
    error: Exception | None = None


class Target(ABC):
    """One broker, seen by a relay."""

    # Whom to tell that the broker seems to be down; a relay puts itself here.
    on_outage: Callable[[Exception], None] | None = None

    def report_outage(self, error: Exception) -> None:
        """Say that the broker seems to be down, while its confirmation is awaited."""
        if self.on_outage is not None:
            self.on_outage(error)

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
