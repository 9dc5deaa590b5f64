"""Targets that confirm single messages: of a key one is on its way at a time, of different keys many are."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    LeaseLostError,
    SentRun,
    StillOurs,
)
from faststream_outbox.relay.targets.broker import BrokerTarget


class OneByOneTarget(BrokerTarget):
    """A broker whose confirmations stand for one message each."""

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

    @property
    def _lost_after(self) -> float | None:
        """When a message is taken for lost, and sent again."""
        return self.patience

    async def _error_of(self, message: Outgoing) -> Exception | None:
        try:
            async with asyncio.timeout(self._lost_after):
                await self.send(message)
        except TimeoutError:
            return self.silence(message.destination)
        except Exception as error:  # noqa: BLE001 - whoever sent it decides
            return self.translate(error)
        return None
