"""A process with a relay, which is killed, paused and cut off as any other."""

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from tests.order.settings import QUEUE
from tests.order.worker import OrderWorker
from tests.relay.storm.settings import StormSettings


class RelayWorker(OrderWorker):
    """Relays until told to stop; a relay that does not start is made anew, as by whatever runs an application."""

    settings: StormSettings
    _relay: Relay | None = None

    def subscribe(self, broker: OutboxBroker) -> None:
        """Handle nothing: rows go straight through."""

    async def begin(self, broker: OutboxBroker) -> None:
        """Start to send."""
        place = self.settings.place
        relay = Relay(
            broker,
            to=place.broker(),
            routes={QUEUE: place.destination},
            source="storm",
            ordering=self.settings.ordering(self._number),
            lease_ttl_seconds=self.settings.lease_seconds,
        )
        self.settings.broken(relay)
        await relay.start()
        self._relay = relay

    async def end(self, broker: OutboxBroker) -> None:
        """Let what is on its way be confirmed."""
        if self._relay is not None:
            await self._relay.stop()
        await broker.stop()
