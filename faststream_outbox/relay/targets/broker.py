"""What targets that are FastStream brokers have in common."""

from typing import Any

from faststream_outbox.relay.targets.base import Target


class BrokerTarget(Target):
    """A FastStream broker, connected for as long as a relay sends to it unless somebody else has connected it.

    Messages go through its producer, not through its middlewares: these are bytes, not what a handler returned.
    """

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self._connected = False

    async def start(self) -> None:
        """Connect; not more than that: its subscribers are its owner's affair."""
        if self.broker._connection is None:  # noqa: SLF001 - FastStream does not tell it otherwise
            await self.broker.connect()
            self._connected = True

    async def stop(self) -> None:
        """Disconnect, if it was us who connected."""
        if self._connected:
            self._connected = False
            await self.broker.stop()

    @property
    def producer(self) -> Any:
        """What FastStream itself sends with."""
        return self.broker.config.broker_config.producer
