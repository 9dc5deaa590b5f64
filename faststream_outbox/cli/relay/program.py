"""One relay as a process: made from its settings, checked, started, watched, and drained on a signal."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from faststream_outbox._installation import needs_extra
from faststream_outbox.broker.backlog import BacklogWatch
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.database import describe_error, make_engine
from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.relay.brokers import PasswordWatch
from faststream_outbox.cli.relay.health import HealthServer
from faststream_outbox.cli.relay.logs import LOGGER
from faststream_outbox.cli.relay.outbox import check_tables, make_ordering, make_outbox
from faststream_outbox.cli.relay.settings import RelaySettings
from faststream_outbox.cli.relay.status import ProgressLines, Status
from faststream_outbox.cli.relay.strategies import make_retry_strategy, make_route
from faststream_outbox.relay import Relay
from faststream_outbox.relay.targets import Target, make_target
from faststream_outbox.runtime.loop import Loop

if TYPE_CHECKING:
    from faststream_outbox.cli.relay.metrics import RelayMetrics

# Counting may read 100,000 rows of each sort, so rows are counted more often only while a person looks at the view.
_COUNT_SECONDS: Final = 10.0
_COUNT_SECONDS_WITH_VIEW: Final = 2.0
# How long `check` waits for the broker; some clients try for minutes.
_CHECK_SECONDS: Final = 15.0
# How many of its shards `check` names; /status has them all.
_SHOWN_SHARDS: Final = 20


class Program:
    """A relay, its outbox, the broker that it sends to, and its status."""

    def __init__(self, settings: RelaySettings) -> None:
        self.settings = settings
        self._has_view = sys.stderr.isatty() if settings.progress is None else settings.progress
        self.status = Status(settings.routes, settings.to.url)
        self.engine = make_engine(settings)
        self.metrics = self._make_metrics()
        self.outbox = make_outbox(settings, self.engine, self._record)
        with settings.blame("to"):
            watch = PasswordWatch(settings.to, LOGGER)
            self.to = watch.make()
        self._target = self._make_target(watch)
        self.relay = self.status.relay = make_relay(settings, self.outbox, self._target)
        self.status.settings = settings.effective

    def _make_metrics(self) -> "RelayMetrics | None":
        """Return the metrics that the health endpoint serves; None if nothing serves them, or cannot make them."""
        if self.settings.health is None:
            return None
        try:
            from faststream_outbox.cli.relay.metrics import RelayMetrics  # noqa: PLC0415 - needs prometheus_client
        except ImportError:
            return None
        return RelayMetrics(self.status, self.settings.source or self.settings.table)

    def _record(self, event: str, tags: Mapping[str, Any]) -> None:
        """Count an event of the outbox in the status and in the metrics."""
        self.status(event, tags)
        if self.metrics is not None:
            self.metrics(event, tags)

    def _make_target(self, watch: PasswordWatch) -> Target:
        with self.settings.blame("to"):
            target = make_target(self.to)
        if self.settings.to.password_changes:
            target.find_broker = watch.find
        return target

    async def run(self) -> int:
        """Relay until a signal arrives, and return the exit code."""
        if self._has_view and not find_spec("rich"):
            raise ProgramError(f"rich is not installed. {needs_extra('The live view', 'cli')}, or give --no-progress.")
        stop = asyncio.Event()
        _drain_on_signals(stop)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.engine.dispose)
            if self.settings.health is not None:
                server = HealthServer(self.status, self.outbox, self.metrics)
                stack.push_async_callback(server.stop)
                address = await server.start(self.settings.health)
                LOGGER.info("Health endpoint listening on %s.", address, extra={"event": "health_served"})
            stack.push_async_callback(self.relay.stop)
            if not await self._start(stop):
                return 0
            async with AsyncExitStack() as loops:
                for loop in self._make_loops():
                    loop.start()
                    loops.push_async_callback(loop.stop)
                await stop.wait()
            await self._drain()
        return 1 if self.status.drain_timed_out else 0

    async def _start(self, stop: asyncio.Event) -> bool:
        """Start the relay, and return False if `stop` was set first: database and broker may take long to answer."""
        queues = ", ".join(self.settings.routes)
        LOGGER.info("Starting to relay %s to %s.", queues, self.status.to, extra={"event": "relay_starting"})
        starting, stopping = asyncio.create_task(self._check_and_start()), asyncio.create_task(stop.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return False
        await starting
        self.status.phase = "running"
        return True

    async def _check_and_start(self) -> None:
        await check_tables(self.outbox)
        try:
            await self.relay.start()
        except Exception as error:
            raise ProgramError(f"The relay cannot start: {describe_error(error)}") from error

    def _make_loops(self) -> Iterator[Loop]:
        """Return the loops that count the rows, and report progress in a view or in the log."""
        monitor = self.outbox.config.broker_config.monitor("relay", self.status.queues)
        store: Any = self.outbox.config.broker_config.store
        interval = _COUNT_SECONDS_WITH_VIEW if self._has_view else _COUNT_SECONDS
        yield BacklogWatch(store, self.status.queues, monitor, interval=interval)
        if self._has_view:
            from faststream_outbox.cli.relay.view import ProgressView  # noqa: PLC0415 - needs rich

            yield ProgressView(self.status, monitor)
        else:
            yield ProgressLines(self.status, monitor, interval=self.settings.progress_interval)

    async def _drain(self) -> None:
        self.status.phase = "stopping"
        message = "Stopping: waiting until the broker has confirmed the messages that were sent."
        LOGGER.info(message, extra={"event": "relay_stopping"})
        await self.relay.stop()
        relayed = self.status.relayed.total()
        LOGGER.info("%s rows were relayed.", f"{relayed:,}", extra={"event": "relay_stopped", "relayed": relayed})

    async def check(self) -> AsyncIterator[tuple[bool, str]]:
        """Relay nothing; return for settings, tables and broker whether each is right, with a sentence."""
        number = len(self.settings.routes)
        try:
            yield True, f"{number} route{'' if number == 1 else 's'} to {self.status.to}"
            if self.settings.ordering == "hash-shards":
                yield True, self._describe_shards()
            yield await self._check_database()
            yield (checked := await self._check_broker())
            if checked[0]:
                async for each in self._check_destinations():
                    yield each
        finally:
            await self._target.stop()  # if the broker was silent, its client may still try to connect
            await self.outbox.stop()
            await self.engine.dispose()

    def _describe_shards(self) -> str:
        number, own = self.settings.shards, self.status.settings["own_shards"]
        if own is None:
            return f"{number} shards, which the nodes share by the table of shards"
        shown = ", ".join([*map(str, own[:_SHOWN_SHARDS]), *(["…"] if len(own) > _SHOWN_SHARDS else [])])
        return f"this node has {len(own)} of {number} shards: {shown}"

    async def _check_database(self) -> tuple[bool, str]:
        try:
            await check_tables(self.outbox)
            if not find_spec("alembic"):
                return True, f"the tables can be read; {needs_extra('comparing their columns', 'validate')}"
            await self.outbox.validate_schema()
        except (ProgramError, RuntimeError) as error:
            return False, str(error)
        return True, "the tables have the right columns"

    async def _check_broker(self) -> tuple[bool, str]:
        advice = "check that it runs and that this machine can reach it"
        silent = False, f"{self.status.to} did not answer within {_CHECK_SECONDS:g} seconds: {advice}"
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self.to.connect()
        except TimeoutError:
            return silent
        except Exception as error:  # noqa: BLE001 - each client raises its own errors
            return False, f"{self.status.to} cannot be reached: {describe_error(error)}"
        try:
            return (True, "the broker answers") if await self.to.ping(timeout=_CHECK_SECONDS) else silent
        except Exception as error:  # noqa: BLE001 - same
            return False, f"{self.status.to} cannot be reached: {describe_error(error)}"
        finally:
            await self.to.stop()

    async def _check_destinations(self) -> AsyncIterator[tuple[bool, str]]:
        """Return for each destination of the routes whether the broker has it."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                checks = await self.relay.check_destinations()
        except TimeoutError:
            yield False, f"{self.status.to} did not say within {_CHECK_SECONDS:g} seconds which destinations it has"
        except Exception as error:  # noqa: BLE001 - each client raises its own errors
            yield False, f"{self.status.to} cannot be asked for its destinations: {describe_error(error)}"
        else:
            for each in checks:
                yield each.found, each.text


def make_relay(settings: RelaySettings, outbox: OutboxBroker, target: Target) -> Relay:
    """Return the relay of some settings, not started yet."""
    ordering = make_ordering(settings)
    retry = settings.retry_strategy
    with settings.blame("routes", *settings.tuning):
        relay = Relay(
            outbox,
            to=target,
            routes={queue: make_route(destination) for queue, destination in settings.routes.items()},
            source=settings.source,
            ordering=ordering,
            retry_strategy=None if retry is None else make_retry_strategy(retry),
            cloudevents=settings.cloudevents,
            **settings.tuning,
        )
    return relay  # noqa: RET504 - mypy takes a `with` that returns for one that may not


def _drain_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` on the first SIGTERM or SIGINT; the second ends the process at once."""
    loop, wanted = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

    def drain(_number: int, _frame: FrameType | None) -> None:
        for each in wanted:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    for each in wanted:
        signal.signal(each, drain)
