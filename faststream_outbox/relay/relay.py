"""The relay: sends the rows of some queues to another broker, with FastStream's clients and without a handler."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from faststream.middlewares import AckPolicy

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.engine.options import DEFAULTS, SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.relay.forwarder import Forwarder
from faststream_outbox.relay.outage import Outage, answers
from faststream_outbox.relay.routing import Route, Routes
from faststream_outbox.relay.targets import OutageError, make_target
from faststream_outbox.retry import AnyRetryStrategy
from faststream_outbox.runtime.telemetry import describe
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import OutboxRow, Settlement
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.ordering import Ordering
from faststream_outbox.storage.outcomes import OnDead
from faststream_outbox.subscriber.judge import Judge

# Rows in one claim and in one settle statement; more rows save nothing further.
_CLAIMED_AT_ONCE: Final = 500
# Rows of one key, or without a key, that are sent together; after a crash all of them are sent again.
_SENT_AT_ONCE: Final = 100
# How long a start waits for the broker before it counts as down.
_CONNECT_SECONDS: Final = 10.0
# How long a stop waits to disconnect; messages without a confirmation will be sent again.
_DISCONNECT_SECONDS: Final = 10.0
# How long after its start a relay that has claimed nothing yet counts as alive.
_FIRST_CLAIM_SECONDS: Final = 30.0
# Keys sent at the same time: enough that their messages fill batches.
_KEYS_AT_ONCE: Final = 256
# Half of a subscriber's: a relay often is the only poller of its queues, and other services wait for what it sends.
_MIN_FETCH_INTERVAL: Final = 0.5


class Relay:
    """Sends the rows of some queues to another broker, those of a key in order; deletes a row when it is confirmed.

    Payload and headers are sent as stored: nothing is decoded, and no handler is called. Each message carries
    `outbox_id`, which stays the same when its row is sent again, and with a key `outbox_key` and `outbox_sequence`.

    Args:
        broker: The outbox.
        to: A `KafkaBroker` of either kind, a `RabbitBroker`, a `NatsBroker` or a `RedisBroker`.
        routes: Where the rows of each queue go: a destination, `by_header(…)`, or a function of a row.
        source: The name of this outbox in `outbox_id` and `outbox_source`, which must never change; by default the
            broker's.
        ordering: How several relays share the keys; `HeadLease()` by default.
        on_dead: What becomes of a key whose message the broker refuses: `"skip"` (the default) goes on without the
            message, `"park"` waits for an operator.
        retry_strategy: When a message is sent again that failed for another reason than an outage; by default
            `ExponentialRetry` with ten attempts.
        lease_ttl_seconds: After how many seconds another relay may claim a row whose relay died; 60 by default.
        cloudevents: Whether headers of CloudEvents are added.

    Example:
        relay = Relay(broker, to=KafkaBroker("localhost:9092"), routes={"orders": "orders-topic"})
        app = FastStream(broker, after_startup=[relay.start], on_shutdown=[relay.stop])

    """

    def __init__(
        self,
        broker: OutboxBroker,
        *,
        to: Any,
        routes: Mapping[str, Route],
        source: str | None = None,
        ordering: Ordering = DEFAULTS.ordering,
        on_dead: OnDead = DEFAULTS.on_dead,
        retry_strategy: AnyRetryStrategy | None = DEFAULTS.retry_strategy,
        lease_ttl_seconds: float = DEFAULTS.lease_ttl_seconds,
        cloudevents: bool = False,
    ) -> None:
        if not isinstance(broker, OutboxBroker):
            raise TypeError(f"A relay reads from an OutboxBroker, not a {type(broker).__name__}.")
        self._broker = broker
        self._routes = Routes(routes)
        self._target = make_target(to)
        for destination in self._routes.fixed:
            self._target.check(destination)
        self._source = check_name("source", source or broker.config.broker_config.source)
        self._cloudevents = cloudevents
        # The other options have a subscriber's defaults.
        self._options = SubscriberOptions(
            max_workers=_KEYS_AT_ONCE,
            batch=True,
            max_records=_SENT_AT_ONCE,
            fetch_batch_size=_CLAIMED_AT_ONCE,
            min_fetch_interval=_MIN_FETCH_INTERVAL,
            lease_ttl_seconds=lease_ttl_seconds,
            ordering=ordering,
            on_dead=on_dead,
            retry_strategy=retry_strategy,
        )
        broker.config.broker_config.relayed_queues.update(self._routes.queues)
        self._monitor = broker.config.broker_config.monitor("relay", self._routes.queues)
        self._pipeline: Pipeline | None = None
        self._outage: Outage | None = None
        self._forwarder: Forwarder | None = None
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
        self._owns_broker = self._broker._connection is None  # noqa: SLF001 - FastStream has no public name for it
        await self._broker.connect()
        failure = await self._connect_target()
        config, monitor = self._broker.config.broker_config, self._monitor
        pipeline = Pipeline(config.store, self._routes.queues, self._forward, options=self._options, monitor=monitor)
        self._pipeline = pipeline
        self._outage = Outage(self._target, monitor, pause=pipeline.pause, resume=pipeline.resume)
        judge = Judge(AckPolicy.NACK_ON_ERROR, self._options, config.last_exception_renderer, monitor)
        self._forwarder = Forwarder(
            target=self._target,
            routes=self._routes,
            judge=judge,
            outage=self._outage,
            holds_lease=pipeline.holds,
            source=self._source,
            cloudevents=self._cloudevents,
        )
        self._target.on_outage = self._outage.begin
        if failure is not None:
            self._outage.begin(failure)
        self._outage.start()
        if config.wakeup is not None:
            config.wakeup.start(listen=True)
            self._unsubscribe = config.wakeup.subscribe(self._routes.queues, pipeline.wake)
        pipeline.start()
        self._started_at = time.monotonic()

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

    async def _forward(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        assert self._forwarder is not None  # noqa: S101 - made before the pipeline starts
        return await self._forwarder.forward(rows)

    async def stop(self) -> None:
        """Stop claiming, wait until sent rows are confirmed and settled, and disconnect what `start` connected."""
        pipeline, outage, self._pipeline, self._outage = self._pipeline, self._outage, None, None
        self._unsubscribe()
        if pipeline is not None:
            # While the broker is down nothing is confirmed, so waiting is useless.
            await pipeline.stop(0.0 if outage is not None and outage.ongoing else self._broker.config.graceful_timeout)
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
    def paused(self) -> bool:
        """Whether claims are stopped because the broker is down."""
        return self._outage is not None and self._outage.ongoing

    @property
    def pause_reason(self) -> Exception | None:
        """The error for which claims are stopped; None while they are not."""
        return None if self._outage is None else self._outage.reason

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as FastStream's brokers have it
        """Return whether the broker that rows are sent to answers."""
        return await answers(self._target, timeout)

    @property
    def alive(self) -> bool:
        """Whether every loop is running; a relay that waits for its broker counts as alive."""
        if self._pipeline is None or self._outage is None:
            return False
        just_started = time.monotonic() - self._started_at < _FIRST_CLAIM_SECONDS
        return (self._pipeline.alive or just_started) and self._outage.alive
