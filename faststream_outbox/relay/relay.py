"""The relay: sends the rows of some queues to another broker, with FastStream's clients and without a handler."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self
from unittest import mock

from faststream.middlewares import AckPolicy

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.relay.destinations import Destinations
from faststream_outbox.relay.forwarder import Forwarder
from faststream_outbox.relay.isolation import Isolation
from faststream_outbox.relay.outage import Outage, answers
from faststream_outbox.relay.routing import Route, Routes
from faststream_outbox.relay.targets import OutageError, make_target
from faststream_outbox.relay.targets.base import DestinationCheck
from faststream_outbox.retry import AnyRetryStrategy
from faststream_outbox.runtime.telemetry import describe
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import OutboxRow, Settlement
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.ordering import Ordering
from faststream_outbox.storage.outcomes import OnDead
from faststream_outbox.subscriber.judge import Judge

# How long a start waits for the broker before it counts as down.
_CONNECT_SECONDS: Final = 10.0
# How long a stop waits to disconnect; messages without a confirmation will be sent again.
_DISCONNECT_SECONDS: Final = 10.0
# How long rows may take to be given back when the relay stops while the broker is down.
_GIVE_BACK_SECONDS: Final = 1.0
# How long after its start a relay that has claimed nothing yet counts as alive.
_FIRST_CLAIM_SECONDS: Final = 30.0

# The options of a relay; those that are not here have a subscriber's defaults.
RELAY_DEFAULTS: Final = SubscriberOptions(
    # Keys sent at the same time: enough that their messages fill batches.
    max_workers=256,
    # Rows in one claim, as many as in one settle statement; more rows save nothing further.
    fetch_batch_size=500,
    # Half of a subscriber's: a relay often is the only poller of its queues, and other services wait for what it sends.
    min_fetch_interval=0.5,
    batch=True,
    # Rows of one key, or without a key, that are sent together; after a crash all of them are sent again.
    max_records=100,
)


class Relay:
    """Sends the rows of some queues to another broker, those of a key in order; deletes a row when it is confirmed.

    Payload and headers are sent as stored: nothing is decoded, and no handler is called. Each message carries
    `outbox_id`, which stays the same when its row is sent again, and with a key `outbox_key` and `outbox_sequence`.

    The options that a subscriber has too have the same names and the same checks; some of the defaults differ.

    Args:
        broker: The outbox.
        to: A `KafkaBroker` of either kind, a `RabbitBroker`, a `NatsBroker` or a `RedisBroker`.
        routes: Where the rows of each queue go: a destination, `by_header(…)`, or a function of a row.
        source: The name of this outbox in `outbox_id` and `outbox_source`, which must never change; by default the
            broker's.
        max_workers: How many keys, or batches of rows without a key, are sent side by side; 256 by default.
        fetch_batch_size: How many rows one statement claims at most; 500 by default.
        min_fetch_interval: Seconds until an idle queue is looked at again at first (0.5 by default); the interval
            doubles from look to look.
        max_fetch_interval: The longest such interval in seconds; 10 by default. Notifications usually wake the relay
            earlier.
        lease_ttl_seconds: After how many seconds others may claim the rows of a process that stalls; 60 by default.
            Leases are renewed while the broker is down, so an outage may take longer than this.
        max_deliveries: After how many deliveries a row is dead without being sent again; by default no limit. A relay
            that dies with the row in hand counts as one.
        on_dead: What becomes of a message with a key that the broker refuses: "skip" (the default) moves it to the
            dead-letter table and its key goes on; "park" keeps it at the head of its key, which waits for an operator.
        retry_strategy: When a message is sent again that failed for another reason than an outage; by default
            `ExponentialRetry` with ten attempts.
        terminal_batch_size: How many finished rows one statement settles at most; 500 by default.
        terminal_flush_interval_ms: How long a finished row may wait to share its statement; 0 by default.
        retry_batch_size: How many failed rows one statement reschedules at most; 100 by default.
        retry_flush_interval_ms: How long a failed row may wait to share its statement; 100 by default.
        max_records: How many rows of one key, or without a key, are sent together; 100 by default.
        ordering: How processes share messages with a key: `HeadLease()` (the default), `AdvisoryLocks()` or
            `HashShards()`. With each of them the messages of one key are sent in order.
        cloudevents: Whether headers of CloudEvents are added.

    Example:
        relay = Relay(
            broker, to=KafkaBroker("localhost:9092"), routes={"orders": "orders-topic"}
        )
        app = FastStream(broker, after_startup=[relay.start], on_shutdown=[relay.stop])

    """

    def __init__(
        self,
        broker: OutboxBroker,
        *,
        to: Any,
        routes: Mapping[str, Route],
        source: str | None = None,
        max_workers: int = RELAY_DEFAULTS.max_workers,
        fetch_batch_size: int | None = RELAY_DEFAULTS.fetch_batch_size,
        min_fetch_interval: float = RELAY_DEFAULTS.min_fetch_interval,
        max_fetch_interval: float = RELAY_DEFAULTS.max_fetch_interval,
        lease_ttl_seconds: float = RELAY_DEFAULTS.lease_ttl_seconds,
        max_deliveries: int | None = RELAY_DEFAULTS.max_deliveries,
        on_dead: OnDead = RELAY_DEFAULTS.on_dead,
        retry_strategy: AnyRetryStrategy | None = RELAY_DEFAULTS.retry_strategy,
        terminal_batch_size: int = RELAY_DEFAULTS.terminal_batch_size,
        terminal_flush_interval_ms: float = RELAY_DEFAULTS.terminal_flush_interval_ms,
        retry_batch_size: int = RELAY_DEFAULTS.retry_batch_size,
        retry_flush_interval_ms: float = RELAY_DEFAULTS.retry_flush_interval_ms,
        max_records: int | None = RELAY_DEFAULTS.max_records,
        ordering: Ordering = RELAY_DEFAULTS.ordering,
        cloudevents: bool = False,
    ) -> None:
        if not isinstance(broker, OutboxBroker):
            raise TypeError(f"A relay reads from an OutboxBroker, not a {type(broker).__name__}.")
        self._broker = broker
        self._routes = Routes(routes)
        self._to = to
        self._target = make_target(to)
        for destination in self._routes.fixed:
            self._target.check(destination)
        self._source = check_name("source", source or broker.config.broker_config.source)
        self._cloudevents = cloudevents
        self._options = SubscriberOptions(
            batch=True,
            max_workers=max_workers,
            fetch_batch_size=fetch_batch_size,
            min_fetch_interval=min_fetch_interval,
            max_fetch_interval=max_fetch_interval,
            lease_ttl_seconds=lease_ttl_seconds,
            max_deliveries=max_deliveries,
            on_dead=on_dead,
            retry_strategy=retry_strategy,
            terminal_batch_size=terminal_batch_size,
            terminal_flush_interval_ms=terminal_flush_interval_ms,
            retry_batch_size=retry_batch_size,
            retry_flush_interval_ms=retry_flush_interval_ms,
            max_records=max_records,
            ordering=ordering,
        )
        broker.config.broker_config.relayed_queues.update(self._routes.queues)
        self._monitor = broker.config.broker_config.monitor("relay", self._routes.queues)
        self._pipeline: Pipeline | None = None
        self._outage: Outage | None = None
        self._destinations: Destinations | None = None
        self._forwarder: Forwarder | None = None
        self._noting: set[asyncio.Task[None]] = set()
        self._started_at = 0.0
        self._owns_broker = False
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Connect both brokers, and start to claim and send rows."""
        if self._pipeline is not None:
            raise RuntimeError("This relay is running: stop it before you start it again.")
        handled = {queue for each in self._broker._outbox_subscribers for queue in each.queues}  # noqa: SLF001 - ours
        if shared := sorted(handled.intersection(self._routes.queues)):
            raise RuntimeError(
                f"A subscriber of this broker reads queue {shared[0]!r}, and this relay does too: each row would reach "
                "only one of them. Publish to two queues, one for each."
            )
        _check_real(self._to)
        self._owns_broker = self._broker._connection is None  # noqa: SLF001 - FastStream has no public name for it
        await self._broker.connect()
        self._broker._report_no_dead_letters()  # noqa: SLF001 - ours
        failure = await self._connect_target()
        if failure is None and (risk := await self._find_risk()):
            self._monitor.report("unsafe_broker", f"{risk}.", level=logging.WARNING)
        await self._broker._watch_queues()  # noqa: SLF001 - ours
        config, monitor = self._broker.config.broker_config, self._monitor
        pipeline = Pipeline(config.store, self._routes.queues, self._forward, options=self._options, monitor=monitor)
        self._pipeline = pipeline
        self._outage = Outage(self._target, monitor, pause=pipeline.pause, resume=pipeline.resume)
        self._destinations = Destinations(
            self._routes,
            monitor,
            pause_queues=pipeline.pause_queues,
            suspect_waits=pipeline.suspect_waits,
            max_waiting=self._options.max_workers // 2,  # the other workers send to other destinations
        )
        judge = Judge(AckPolicy.NACK_ON_ERROR, self._options, config.last_exception_renderer, monitor)
        self._forwarder = Forwarder(
            target=self._target,
            routes=self._routes,
            judge=judge,
            outage=self._outage,
            destinations=self._destinations,
            isolation=Isolation(self._target),
            pipeline=pipeline,
            source=self._source,
            cloudevents=self._cloudevents,
        )
        self._target.on_outage = self._note_silence
        if failure is not None:
            self._outage.begin(failure)
        self._outage.start()
        if config.wakeup is not None:
            config.wakeup.start(listen=True)
            self._unsubscribe = config.wakeup.subscribe(self._routes.queues, pipeline.wake)
        pipeline.start()
        self._started_at = time.monotonic()
        kind = type(self._to).__name__
        queues = ", ".join(map(repr, self._routes.queues))
        monitor.report("relay_started", f"Relaying the rows of {queues} to a {kind}.", level=logging.INFO, to=kind)

    async def _connect_target(self) -> OutageError | None:
        """Connect to the target; return the error if it is down, because a relay starts without its broker."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._target.start()
        except TimeoutError:
            return OutageError(f"The broker did not accept a connection within {_CONNECT_SECONDS:g} seconds.")
        except Exception as error:
            failure = self._target.translate(error)
            if isinstance(failure, OutageError):
                return failure
            raise
        return None

    async def _find_risk(self) -> str:
        """Return how the broker may lose what it confirms; "" also if it does not let the relay ask."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await self._target.find_risk(self._routes.known)
        except Exception:  # noqa: BLE001 - each client raises its own errors
            return ""

    def _note_silence(self, destination: str, error: OutageError) -> None:
        """Pause a destination that confirms nothing, or all of them if the broker does not answer."""
        task = asyncio.create_task(self._ask_about(destination, error))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _ask_about(self, destination: str, error: OutageError) -> None:
        outage, destinations = self._outage, self._destinations
        if outage is None or destinations is None:
            return
        if await outage.broker_answers():
            destinations.begin(destination, error)
        else:
            outage.begin(error)

    async def _forward(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        assert self._forwarder is not None  # noqa: S101 - made before the pipeline starts
        return await self._forwarder.forward(rows)

    async def stop(self) -> None:
        """Stop claiming, wait until sent rows are confirmed and settled, and disconnect what `start` connected."""
        pipeline, outage, self._pipeline, self._outage = self._pipeline, self._outage, None, None
        self._unsubscribe()
        if self._destinations is not None:
            self._destinations.close()
        if outage is not None:
            outage.close()
        if pipeline is not None:
            # While the broker is down nothing is confirmed, so waiting for more than the rows' return is useless.
            down = outage is not None and outage.ongoing
            await pipeline.stop(_GIVE_BACK_SECONDS if down else self._broker.config.graceful_timeout)
        if outage is not None:
            await outage.stop()
        try:
            await within(_DISCONNECT_SECONDS, self._target.stop())
        except Exception as error:  # noqa: BLE001 - the relay stops without it
            message = f"Disconnecting from the broker failed; the relay stops without it: {describe(error)}"
            self._monitor.report("relay_not_closed", message, level=logging.WARNING, error=error)
        if self._owns_broker:
            self._owns_broker = False
            await self._broker.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def down(self) -> bool:
        """Whether the broker that rows are sent to is down, or accepts nothing at all."""
        return self._outage is not None and self._outage.reason is not None

    @property
    def paused(self) -> bool:
        """Whether rows wait because the broker is down, or because a destination accepts nothing."""
        return self.pause_reason is not None

    @property
    def pause_reason(self) -> Exception | None:
        """The error for which rows wait; None while none do."""
        if self._outage is None:
            return None
        return self._outage.reason or next(iter(self.paused_destinations.values()), None)

    @property
    def paused_destinations(self) -> dict[str, Exception]:
        """The destinations that accept nothing while the broker answers, each with its error; others are sent to."""
        return {} if self._outage is None or self._destinations is None else self._destinations.paused

    @property
    def paused_queues(self) -> dict[str, str]:
        """The queues that operators have paused, each with who did it, until when and why; others are sent."""
        pauses = self._broker.config.broker_config.store.control.pauses
        return {queue: str(pauses[queue]) for queue in self._routes.queues if queue in pauses}

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as FastStream's brokers have it
        """Return whether the broker that rows are sent to answers.

        Args:
            timeout: After how many seconds the answer is False; by default no limit.

        """
        return await answers(self._target.alive, timeout)

    async def check_destinations(self) -> list[DestinationCheck]:
        """Ask the broker for each destination that the routes name; create nothing and send nothing.

        A queue whose destinations only its rows name has a sentence that says so, and so has a broker whose settings
        may lose what it has confirmed.

        Example:
            for text, found in await relay.check_destinations():
                print("ok" if found else "wrong", text)

        """
        try:
            await self._target.start()
            checks = [await self._check_destination(each) for each in self._routes.known]
            if risk := await self._find_risk():
                checks.append(DestinationCheck(risk, found=False))
        finally:
            if self._pipeline is None:
                await within(_DISCONNECT_SECONDS, self._target.stop())
        unchecked = "the rows of queue {!r} name destinations, which are not checked"
        return [*checks, *(DestinationCheck(unchecked.format(queue)) for queue in self._routes.open)]

    async def _check_destination(self, destination: str) -> DestinationCheck:
        try:
            self._target.check(destination)
            return await self._target.look_up(destination)
        except Exception as error:  # noqa: BLE001 - each client raises its own errors
            return DestinationCheck(f"{destination!r} cannot be checked: {describe(error)}", found=False)

    @property
    def alive(self) -> bool:
        """Whether every loop is running; a relay that waits for its broker counts as alive."""
        if self._pipeline is None or self._outage is None:
            return False
        just_started = time.monotonic() - self._started_at < _FIRST_CLAIM_SECONDS
        return (self._pipeline.alive or just_started) and self._outage.alive


def _check_real(broker: Any) -> None:
    """Raise `RuntimeError` if FastStream's test broker has replaced the methods of the broker to send to."""
    if isinstance(getattr(broker, "start", None), mock.Mock):
        raise RuntimeError(  # noqa: TRY004 - its state is wrong, not its type
            f"The {type(broker).__name__} of this relay is in a test broker of FastStream, which cannot stand in for "
            "it: a relay sends through the client itself. Leave the relay stopped in this test and look at the rows "
            "that it would send, in broker.fake_client.rows of a TestOutboxBroker; or let it send to a real server, "
            "without the test broker."
        )
