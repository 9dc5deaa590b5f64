"""Targets that confirm single messages: of a key one is on its way at a time, of different keys many are."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    CONFIRM_SECONDS,
    LeaseLostError,
    OutageError,
    SentRun,
    StillOurs,
)
from faststream_outbox.relay.targets.broker import BrokerTarget


class OneByOneTarget(BrokerTarget):
    """A broker whose confirmations stand for one message each."""

    # When a message is taken for lost, and sent again; None where the client itself sees to it that it arrives.
    lost_after: ClassVar[float | None] = CONFIRM_SECONDS

    @abstractmethod
    async def send(self, message: Outgoing) -> None:
        """Send a message and wait until it is confirmed."""

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all of them, then wait for all."""
        return list(await asyncio.gather(*map(self._error_of, messages)))

    async def send_run(self, run: Sequence[Outgoing], still_ours: StillOurs) -> SentRun:
        """Send each when the one before it is confirmed: otherwise it might be taken, and that one not."""
        for confirmed, message in enumerate(run):
            error = await self._error_of(message) if still_ours() else LeaseLostError()
            if error is not None:
                return SentRun(confirmed, error)
        return SentRun(len(run))

    async def _error_of(self, message: Outgoing) -> Exception | None:
        try:
            async with asyncio.timeout(self.lost_after):
                await self.send(message)
        except TimeoutError:
            return OutageError(f"{message.destination} confirmed nothing for {self.lost_after:g} seconds.")
        except Exception as error:  # noqa: BLE001 - whoever sent it decides
            return self.translate(error)
        return None
