"""A process with a relay, which is killed, paused and cut off as any other."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from faststream_outbox.storage import OutboxRow, Settlement
from tests.order.settings import QUEUE
from tests.order.worker import OrderWorker
from tests.relay.faults.settings import SOURCE, RelayRoundSettings

# They tell at length of what is done to them.
CLIENTS: Final = ("aio_pika", "aiormq", "aiokafka", "nats")


class BusyRelay(Relay):
    """A relay whose process has other things to do, before it sends and before it says that it has."""

    before_sending: Callable[[], Awaitable[None]]
    before_settling: Callable[[], Awaitable[None]]

    async def _forward(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        await self.before_sending()
        handled = await super()._forward(rows)
        await self.before_settling()
        return handled


class RelayWorker(OrderWorker):
    """Relays until told to stop; a relay that does not start is made anew, as by whatever runs an application."""

    settings: RelayRoundSettings
    _relay: Relay | None = None

    async def work(self) -> None:
        """Relay, and let no client talk."""
        for noisy in CLIENTS:
            logging.getLogger(noisy).setLevel(logging.CRITICAL + 1)
        await super().work()

    def subscribe(self, broker: OutboxBroker) -> None:
        """Handle nothing: rows go straight through."""

    async def begin(self, broker: OutboxBroker) -> None:
        """Start to send."""
        endpoint = self.settings.endpoint
        relay = BusyRelay(
            broker,
            to=endpoint.broker(),
            routes={QUEUE: endpoint.destination},
            source=SOURCE,
            ordering=self.settings.ordering(self._number),
            lease_ttl_seconds=self.settings.lease_seconds,
        )
        relay.before_sending = relay.before_settling = self.take_time
        self.settings.broken(relay)
        await relay.start()
        self._relay = relay

    async def end(self, broker: OutboxBroker) -> None:
        """Let what is on its way be confirmed."""
        if self._relay is not None:
            await self._relay.stop()
        await broker.stop()
