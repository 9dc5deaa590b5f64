"""Brokers of another kind that handlers publish to: connected before the first row is claimed, gone after the last."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from faststream_outbox._faststream import BrokerUsecase, HandlerCallWrapper
from faststream_outbox.publisher.foreign import broker_of, foreign_publishers
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.runtime.timeouts import within

# One that is up answers within this time; one that is down must not keep us from starting.
_SECONDS_TO_CONNECT: Final = 5.0
# How often it is looked whether a client has given up, which takes it minutes.
_BETWEEN_LOOKS: Final = 1.0
# What is sent has been confirmed by now, so there is nothing to wait for.
_SECONDS_TO_DISCONNECT: Final = 5.0


class ForeignBrokers(Loop):
    """Connects those that nobody else has connected, for as long as it takes, and disconnects them again."""

    failure_event = "outlet_unreachable"
    task = "Connecting what handlers publish to"

    def __init__(
        self, owner: BrokerUsecase[Any, Any, Any], handlers: Iterable[HandlerCallWrapper[..., Any]], monitor: Monitor
    ) -> None:
        super().__init__(monitor)
        brokers = list(dict.fromkeys(broker_of(each) for each in foreign_publishers(handlers)))
        # An application starts and stops what it was given, in that order.
        self._of_the_app: list[Any] = getattr(owner.context.get("app"), "brokers", [])
        self._check_order(owner, brokers)
        self._missing = [each for each in brokers if each._connection is None]  # noqa: SLF001 - FastStream does not tell it otherwise
        self._connected: list[Any] = []
        self._tried = asyncio.Event()

    async def open(self) -> None:
        """Connect; those that are down are tried again beside what follows, and what handlers send there fails."""
        if self._missing:
            self.start()
            await self._tried.wait()

    async def step(self) -> None:
        """Try those that are missing."""
        if not self._missing:
            await self._until_one_gives_up()
        try:
            failures = await asyncio.gather(*map(self._connect, self._missing))
        finally:
            self._tried.set()
        if errors := [each for each in failures if each is not None]:
            raise ConnectionError("; ".join(errors))

    async def _until_one_gives_up(self) -> None:
        """Wait for a client that tries no more: what is connected stays so by its client, NATS's for two minutes."""
        while not (gone := [each for each in self._connected if _has_given_up(each)]):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_BETWEEN_LOOKS)
        for broker in gone:
            self._connected.remove(broker)
            broker._connection = None  # noqa: SLF001 - FastStream would keep it
        self._missing += gone

    async def _connect(self, broker: Any) -> str | None:
        """Connect one; tells why it could not be."""
        try:
            await within(_SECONDS_TO_CONNECT, _prepare(broker))
        except Exception as error:  # noqa: BLE001 - their clients raise anything
            if broker in self._of_the_app and not broker.running:
                self._missing.remove(broker)  # it will try itself, and two at once would be one too many
            return f"{type(broker).__name__} is not connected: {describe(error)}"
        self._missing.remove(broker)
        self._connected.append(broker)
        return None

    async def close(self) -> None:
        """Disconnect those that we have connected, unless they have become somebody else's."""
        await self.stop()
        for broker in self._connected:
            if broker in self._of_the_app or (broker.running and broker.subscribers):
                continue
            try:
                await within(_SECONDS_TO_DISCONNECT, broker.stop())
            except Exception as error:  # noqa: BLE001 - nothing depends on it any more
                message = f"{type(broker).__name__} could not be disconnected: {describe(error)}"
                self._monitor.report("outlet_not_closed", message, level=logging.WARNING, error=error)

    def _check_order(self, owner: Any, brokers: list[Any]) -> None:
        order = self._of_the_app
        for broker in brokers:
            if owner in order and broker in order and order.index(broker) < order.index(owner):
                kind = type(broker).__name__
                message = (
                    f"The application stops its {kind} before the outbox, whose handlers publish to it: what they "
                    f"return meanwhile fails and is tried again. Name the outbox first: FastStream(broker, {kind}(…))."
                )
                self._monitor.report("outlet_stops_first", message, level=logging.WARNING)


def _has_given_up(broker: Any) -> bool:
    client = broker._connection  # noqa: SLF001 - FastStream does not tell it otherwise
    return type(client).__module__ == "nats.aio.client" and bool(client.is_closed)


async def _prepare(broker: Any) -> None:
    """Connect a broker, and declare what its publishers publish to, without running its subscribers."""
    if not broker.subscribers:
        await broker.start()
        return
    await broker.connect()
    for publisher in broker.publishers:
        await publisher.start()
