"""A relay from its start to its end: made of its settings, watched, and drained when somebody asks for it."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from faststream_outbox.broker.backlog import BacklogWatch
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.brokers import make_broker
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.figures import Figures
from faststream_outbox.cli.health import Health, serve
from faststream_outbox.cli.logs import LOGGER
from faststream_outbox.cli.outbox import check_tables, in_words, make_engine, make_ordering, make_outbox
from faststream_outbox.cli.progress import ProgressLines
from faststream_outbox.cli.routes import make_route
from faststream_outbox.cli.settings import RelaySettings
from faststream_outbox.cli.status import Status
from faststream_outbox.relay import Relay

if TYPE_CHECKING:
    from faststream_outbox.runtime.loop import Loop

# Counting reads the whole table: seldom, and where somebody watches a little more often. A count that takes long is
# followed by a long rest.
_COUNT_SECONDS: Final = 10.0
_COUNT_SECONDS_WATCHED: Final = 2.0


class Program:
    """One relay, and all that belongs to it."""

    def __init__(self, settings: RelaySettings) -> None:
        self.settings = settings
        self.figures = Figures(settings.routes)
        self.engine = make_engine(settings)
        self.outbox = make_outbox(settings, self.engine, self.figures)
        self.to = make_broker(settings.to, LOGGER)
        self.relay = make_relay(settings, self.outbox, self.to)
        self.status = Status(self.relay, self.figures, settings.to.url)

    async def run(self) -> int:
        """Relay until a signal comes; returns the exit code."""
        if self._watches and not find_spec("rich"):
            raise ProgramError("The live view needs rich: pip install 'faststream-outbox[cli]', or give --no-progress.")
        stop = asyncio.Event()
        _drain_on_signals(stop)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.engine.dispose)
            if self.settings.health is not None:
                server = await serve(Health(self.status, self.outbox, self.relay), self.settings.health)
                stack.push_async_callback(server.stop)
                LOGGER.info("Health is told at port %s.", server.port, extra={"event": "health_served"})
            stack.push_async_callback(self.relay.stop)
            if not await self._start(stop):
                return 0
            async with self._watched():
                await stop.wait()
            await self._drain()
        return 1 if self.figures.cut_short else 0

    async def _start(self, stop: asyncio.Event) -> bool:
        """Start the relay, unless we are stopped first: the database and the broker may take long to answer."""
        starting, stopping = asyncio.create_task(self._check_and_start()), asyncio.create_task(stop.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return False
        await starting
        self.status.phase = "running"
        queues = ", ".join(self.settings.routes)
        LOGGER.info("Relaying %s to %s.", queues, self.status.to, extra={"event": "relay_started"})
        return True

    async def _check_and_start(self) -> None:
        await check_tables(self.outbox)
        self._warn()
        try:
            await self.relay.start()
        except Exception as error:
            raise ProgramError(f"The relay cannot be started: {in_words(error)}") from error

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Count and tell, meanwhile."""
        monitor = self.outbox.config.broker_config.monitor("relay", self.figures.queues)
        store: Any = self.outbox.config.broker_config.store
        watched = self._watches
        interval = _COUNT_SECONDS_WATCHED if watched else _COUNT_SECONDS
        loops: list[Loop] = [BacklogWatch(store, self.figures.queues, monitor, interval=interval)]
        if watched:
            from faststream_outbox.cli.view import ProgressView, make_console  # noqa: PLC0415 - needs rich

            loops.append(ProgressView(self.status, monitor, make_console()))
        else:
            loops.append(ProgressLines(self.status, monitor, interval=self.settings.progress_interval))
        for loop in loops:
            loop.start()
        try:
            yield
        finally:
            for loop in reversed(loops):
                await loop.stop()

    @property
    def _watches(self) -> bool:
        return sys.stderr.isatty() if self.settings.progress is None else self.settings.progress

    async def _drain(self) -> None:
        self.status.phase = "stopping"
        LOGGER.info("Stopping: what is on its way is confirmed first.", extra={"event": "relay_stopping"})
        await self.relay.stop()
        relayed = self.figures.relayed.total()
        LOGGER.info("%s rows were relayed.", f"{relayed:,}", extra={"event": "relay_stopped", "relayed": relayed})

    def _warn(self) -> None:
        if self.settings.dlq_table is None:
            LOGGER.warning(
                "There is no dead-letter table: a message that the broker refuses is deleted, unless its key is "
                "parked. Name one by --dlq-table.",
                extra={"event": "no_dead_letters"},
            )


def make_relay(settings: RelaySettings, outbox: OutboxBroker, to: Any) -> Relay:
    """Make the relay of some settings."""
    try:
        return Relay(
            outbox,
            to=to,
            routes={queue: make_route(queue, destination) for queue, destination in settings.routes.items()},
            source=settings.source,
            ordering=make_ordering(settings),
            on_dead=settings.on_dead,
            lease_ttl_seconds=settings.lease_ttl,
            cloudevents=settings.cloudevents,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _drain_on_signals(stop: asyncio.Event) -> None:
    """Have the first signal drain, and the second end us at once."""
    loop, wanted = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

    def drain(_number: int, _frame: FrameType | None) -> None:
        for each in wanted:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    for each in wanted:
        signal.signal(each, drain)
