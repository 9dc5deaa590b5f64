"""Connects the brokers of other kinds that handlers publish to, and disconnects them after the last row."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from faststream_outbox._faststream import BrokerUsecase, HandlerCallWrapper
from faststream_outbox.publisher.foreign import broker_of, foreign_publishers
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.runtime.timeouts import within

# A broker that is up answers within this time; one that is down must not delay the start longer.
_SECONDS_TO_CONNECT: Final = 5.0
# How often to check whether a client has given up reconnecting, which takes it minutes.
_CHECK_EVERY: Final = 1.0
# Every message has been confirmed by now: a longer wait would gain nothing.
_SECONDS_TO_DISCONNECT: Final = 5.0


class ForeignBrokers(Loop):
    """Connects brokers that are not connected, again and again until it works, and disconnects them at the end."""

    failure_event = "outlet_unreachable"
    task = "Connecting the brokers that handlers publish to"

    def __init__(
        self, owner: BrokerUsecase[Any, Any, Any], handlers: Iterable[HandlerCallWrapper[..., Any]], monitor: Monitor
    ) -> None:
        super().__init__(monitor)
        brokers = list(dict.fromkeys(broker_of(each) for each in foreign_publishers(handlers)))
        # An application starts and stops its brokers itself, in this order.
        self._app_brokers: list[Any] = getattr(owner.context.get("app"), "brokers", [])
        self._check_order(owner, brokers)
        self._missing = [each for each in brokers if each._connection is None]  # noqa: SLF001 - FastStream has no public name for it
        self._connected: list[Any] = []
        self._tried = asyncio.Event()

    async def open(self) -> None:
        """Connect all brokers; those that are down are tried again in the background, and publishing to them fails."""
        if self._missing:
            self.start()
            await self._tried.wait()

    async def step(self) -> None:
        """Try to connect the missing brokers."""
        if not self._missing:
            await self._wait_for_a_closed_client()
        try:
            failures = await asyncio.gather(*map(self._connect, self._missing))
        finally:
            self._tried.set()
        if errors := [each for each in failures if each is not None]:
            raise ConnectionError("; ".join(errors))

    async def _wait_for_a_closed_client(self) -> None:
        """Wait until a client stops reconnecting by itself, as that of NATS does after two minutes."""
        while not (gone := [each for each in self._connected if _has_given_up(each)]):  # noqa: ASYNC110 - clients signal no event
            await asyncio.sleep(_CHECK_EVERY)
        for broker in gone:
            self._connected.remove(broker)
            broker._connection = None  # noqa: SLF001 - FastStream would keep it
        self._missing += gone

    async def _connect(self, broker: Any) -> str | None:
        """Connect one broker; return why that failed, or None."""
        try:
            await within(_SECONDS_TO_CONNECT, _prepare(broker))
        except Exception as error:  # noqa: BLE001 - their clients raise anything
            if broker in self._app_brokers and not broker.running:
                self._missing.remove(broker)  # the application starts it later, and both at once would collide
            return f"Could not connect {type(broker).__name__}: {describe(error)}"
        self._missing.remove(broker)
        self._connected.append(broker)
        return None

    async def close(self) -> None:
        """Disconnect the brokers that we connected, unless the application has started them since."""
        await self.stop()
        for broker in self._connected:
            if broker in self._app_brokers or (broker.running and broker.subscribers):
                continue
            try:
                await within(_SECONDS_TO_DISCONNECT, broker.stop())
            except Exception as error:  # noqa: BLE001 - nothing depends on it any more
                message = f"Could not disconnect {type(broker).__name__}: {describe(error)}"
                self._monitor.report("outlet_not_closed", message, level=logging.WARNING, error=error)

    def _check_order(self, owner: Any, brokers: list[Any]) -> None:
        order = self._app_brokers
        for broker in brokers:
            if owner in order and broker in order and order.index(broker) < order.index(owner):
                kind = type(broker).__name__
                message = (
                    f"The application stops its {kind} before the outbox, whose handlers publish to it: their last "
                    f"messages fail and are retried. Name the outbox first: FastStream(broker, {kind}(…))."
                )
                self._monitor.report("outlet_stops_first", message, level=logging.WARNING)


def _has_given_up(broker: Any) -> bool:
    client = broker._connection  # noqa: SLF001 - FastStream has no public name for it
    return type(client).__module__ == "nats.aio.client" and bool(client.is_closed)


async def _prepare(broker: Any) -> None:
    """Connect a broker, and declare what its publishers publish to, without running its subscribers."""
    if not broker.subscribers:
        await broker.start()
        return
    await broker.connect()
    for publisher in broker.publishers:
        await publisher.start()
