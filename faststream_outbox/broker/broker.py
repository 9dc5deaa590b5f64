"""`OutboxBroker`: publishes in the user's transaction, and delivers what was published."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, cast

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream import ContextRepo
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec, Tag, TagDict
from sqlalchemy import URL, Table
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from faststream_outbox._faststream import (
    EMPTY,
    BrokerMiddleware,
    CodecProto,
    CustomCallable,
    FastDependsConfig,
    IdGenerator,
    LoggerProto,
    make_logger_state,
)
from faststream_outbox.broker.backlog import BacklogWatch, wanted_interval
from faststream_outbox.broker.foreign_brokers import ForeignBrokers
from faststream_outbox.broker.key_admin import KeyAdmin
from faststream_outbox.broker.pool import check_pool, compare_pool
from faststream_outbox.broker.queue_warnings import UnservedQueues, warn_of_shared_queues
from faststream_outbox.broker.registrator import OutboxRegistrator
from faststream_outbox.broker.table_reports import report_tables
from faststream_outbox.client import AbstractOutboxClient, FakeOutboxClient, OutboxClient
from faststream_outbox.configs import LastExceptionRenderer, OutboxBrokerConfig, OutboxLoggerStorage
from faststream_outbox.message import OutboxBatchMessage, OutboxMessage
from faststream_outbox.metrics import MetricsRecorder, check_recorder
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.publisher.producer import OutboxProducer
from faststream_outbox.storage import QueueStats
from faststream_outbox.storage.checks import check_name, check_number
from faststream_outbox.storage.ordering import HashShards
from faststream_outbox.storage.schema.operations_tables import check_operations_tables
from faststream_outbox.storage.schema.tables import check_tables
from faststream_outbox.subscriber.usecase import OutboxSubscriber
from faststream_outbox.wakeup.wakeup import Wakeup

_NO_DEAD_LETTERS: Final = (
    "There is no dead-letter table: a message that is given up is deleted, unless its key is parked. "
    "Name a table: dlq_table= of the broker, --dlq-table of the program."
)


class OutboxBroker(OutboxRegistrator, KeyAdmin):
    """The outbox as a FastStream broker.

    Example:
        broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table)
        app = FastStream(broker)

        @broker.subscriber("orders")
        async def handle(order_id: int) -> None: ...

        async with session_factory() as session, session.begin():
            session.add(Order(id=1))
            await broker.publish(1, queue="orders", session=session)

    """

    def __init__(
        self,
        engine: AsyncEngine | None = None,
        *,
        outbox_table: Table,
        dlq_table: Table | None = None,
        shards_table: Table | None = None,
        control_table: Table | None = None,
        audit_table: Table | None = None,
        nodes_table: Table | None = None,
        graceful_timeout: float | None = 15.0,
        metrics_recorder: MetricsRecorder | None = None,
        last_exception_renderer: LastExceptionRenderer | None = None,
        source: str | None = None,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[OutboxRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator | None = None,
        # AsyncAPI
        specification_url: str | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        security: BaseSecurity | None = None,
        # Logging
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        # FastDepends
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        """Make a broker on the tables of an outbox; nothing is connected yet.

        Args:
            engine: The engine that subscribers claim through; yours to dispose of. Without it the broker only
                publishes.
            outbox_table: The table of messages: `make_outbox_table(metadata)`.
            dlq_table: The table of dead letters: `make_dlq_table(metadata)`. Without one, messages that failed for
                good are deleted.
            shards_table: The table of shard leases, for `HashShards()`: `make_shards_table(metadata)`.
            control_table: The table of paused queues: `make_operations_tables(metadata).control`. Without one, queues
                cannot be paused.
            audit_table: The table of what operators did: `make_operations_tables(metadata).audit`. Without one, it is
                logged only.
            nodes_table: The table of running processes, for people: `make_operations_tables(metadata).nodes`.
            graceful_timeout: How many seconds `stop()` waits for running handlers; None waits without a limit.
            metrics_recorder: A function that is called with each metrics event and its tags.
            last_exception_renderer: A function that returns the text of an exception for the dead-letter table and for
                the broker's own log records, which then have no traceback.
            source: The name of this outbox in the ids of messages to other brokers; by default the name of the table.
            decoder: A function that makes a body from a message, for all subscribers.
            parser: A function that makes a message from a row, for all subscribers.
            codec: Encodes and decodes bodies, in place of a decoder.
            dependencies: Dependencies of every handler.
            middlewares: Middlewares of every handler and every publish.
            routers: Routers to include.
            ack_policy: What becomes of a message whose handler gave no verdict; by default an error is retried.
            id_generator: A function that makes the correlation id of a message that is published without one; by
                default that message uses its row's id.
            specification_url: The address of the database in the AsyncAPI document; by default that of the engine,
                without user and password.
            protocol: The protocol in that document; "postgresql" by default.
            protocol_version: The version of that protocol.
            description: The description of the broker in that document.
            tags: The tags of the broker in that document.
            security: The security scheme in that document.
            logger: The logger for the broker's records; None logs nothing. By default one is made.
            log_level: The level at which FastStream logs each message.
            apply_types: Whether FastDepends converts and validates what handlers are called with.
            serializer: Converts bodies to types and back: Pydantic's by default, where it is installed.
            provider: FastDepends' provider, which overrides dependencies in tests.
            context: FastStream's context, to share with another broker.

        """
        check_tables(outbox_table, dlq_table, shards_table)
        check_operations_tables(control_table, audit_table, nodes_table)
        if graceful_timeout is not None:
            check_number("graceful_timeout", graceful_timeout)
        check_recorder(metrics_recorder)
        client = OutboxClient(
            engine,
            outbox_table,
            dlq_table=dlq_table,
            shards_table=shards_table,
            control_table=control_table,
            audit_table=audit_table,
            nodes_table=nodes_table,
        )
        config = OutboxBrokerConfig(
            client=client,
            metrics_recorder=metrics_recorder,
            last_exception_renderer=last_exception_renderer,
            source=check_name("source", source or outbox_table.name),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=make_logger_state(logger, log_level, OutboxLoggerStorage),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=provider or dependency_provider,
                context=context or ContextRepo(),
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            id_generator=id_generator or gen_cor_id,
            generates_ids=id_generator is not None,
            extra_context={"broker": self},
            default_driver_annotations={
                each: f"faststream_outbox.annotations.{name}" for each, name in _INJECTED.items()
            },
        )
        config.wakeup = Wakeup(client.store, config.monitor())
        config.producer = OutboxProducer(config)
        self._backlog: BacklogWatch | None = None
        self._unserved: UnservedQueues | None = None
        self._foreign_brokers: ForeignBrokers | None = None
        self._reported_no_dead_letters = False
        # What was logged once is not logged again when the broker is stopped and started.
        self._reported_shared: set[str] = set()
        self._reported_unserved: set[str] = set()
        super().__init__(
            config=config,
            specification=BrokerSpec(
                url=[specification_url or _public_url(engine)],
                protocol=protocol or "postgresql",
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
            routers=routers,
        )

    @property
    def fake_client(self) -> FakeOutboxClient:
        """Return the client whose rows are in memory, inside `async with TestOutboxBroker(broker)`."""
        if not isinstance(self.client, FakeOutboxClient):
            raise AttributeError("Use fake_client inside `async with TestOutboxBroker(broker)`.")  # noqa: TRY004 - it is missing
        return self.client

    @property
    def _outbox_subscribers(self) -> list[OutboxSubscriber]:
        return cast("list[OutboxSubscriber]", self.subscribers)

    async def _connect(self) -> AbstractOutboxClient:
        # Connected brokers are stopped, and stop() sends the last wake-ups: from now on they can be collected.
        self.config.wakeup.start(listen=False)
        return self.client

    async def start(self) -> None:
        """Connect, and start every subscriber."""
        await self.connect()
        if self.subscribers:
            if isinstance(self.client, OutboxClient):
                check_pool(self.client.engine, self._outbox_subscribers)
            await report_tables(self.client.store, self.config.broker_config.monitor(), shards=self._shares_shards)
            self._report_no_dead_letters()
            monitor = self.config.broker_config.monitor()
            warn_of_shared_queues(self._outbox_subscribers, monitor, self._reported_shared)
            await self._watch_queues()
        await self._open_foreign_brokers()
        await super().start()
        self._watch_backlog()

    async def _open_foreign_brokers(self) -> None:
        """Connect the brokers that handlers publish to, except in a test in memory, which replaces them."""
        if self._foreign_brokers is None and isinstance(self.client, OutboxClient):
            handlers = (handler for each in self._outbox_subscribers for handler in each.handlers)
            self._foreign_brokers = ForeignBrokers(self, handlers, self.config.broker_config.monitor())
            await self._foreign_brokers.open()

    def _watch_backlog(self) -> None:
        """Start to count rows for the metrics recorder, if it asks for that and there is an engine."""
        config = self.config.broker_config
        interval = wanted_interval(config.metrics_recorder)
        without_engine = isinstance(self.client, OutboxClient) and self.client.engine is None
        if interval is None or without_engine or self._backlog is not None:
            return
        queues = [queue for each in self._outbox_subscribers for queue in each.queues]
        self._backlog = BacklogWatch(config.store, queues, config.monitor(), interval=interval)
        self._backlog.start()

    async def _watch_queues(self) -> None:
        """Warn of rows in queues that neither this broker nor a relay of it reads, now and later."""
        config = self.config.broker_config
        if self._unserved is not None:
            return
        self._unserved = UnservedQueues(
            config.store,
            self.config.wakeup,
            self._known_queues,
            config.monitor(),
            reported=self._reported_unserved,
        )
        await self._unserved.look_at_start()
        self._unserved.start()

    def _known_queues(self) -> list[str]:
        handled = {queue for each in self._outbox_subscribers for queue in each.queues}
        return sorted(handled | self.config.broker_config.relayed_queues)

    @property
    def _shares_shards(self) -> bool:
        orderings = (each.config.options.ordering for each in self._outbox_subscribers)
        return any(isinstance(each, HashShards) and each.is_shared for each in orderings)

    def _report_no_dead_letters(self) -> None:
        """Log, once for this broker and its relays, that a message that is given up is deleted.

        No ack policy and no retry strategy excludes it: a handler may reject any message.
        """
        in_memory = not isinstance(self.client, OutboxClient)  # a test, in which nothing is lost
        if in_memory or self.client.store.keeps_dead or self._reported_no_dead_letters:
            return
        self._reported_no_dead_letters = True
        self.config.broker_config.monitor().report("no_dead_letters", _NO_DEAD_LETTERS)

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Drain all subscribers side by side, within `graceful_timeout`, and send the last wake-ups.

        Then disconnect the brokers that were connected for the handlers' publishers.

        Args:
            exc_type: The class of the exception for which the application stops, if there is one; FastStream gives it.
            exc_val: That exception.
            exc_tb: Its traceback.

        """
        try:
            for watch in (self._backlog, self._unserved):
                if watch is not None:
                    await watch.stop()
            self._backlog = self._unserved = None
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            if self._foreign_brokers is not None:
                await self._foreign_brokers.close()
                self._foreign_brokers = None
            await self.config.wakeup.stop()
            self._connection = None

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - FastStream's signature
        """Return whether the database answers and takes writes, and every loop runs and has claimed lately.

        With subscribers, it is False too while the role lacks a right that they need to claim and settle.

        Args:
            timeout: After how many seconds the answer is False; 5 by default.

        """
        try:
            async with asyncio.timeout(timeout or 5.0):
                alive = all(each.alive for each in self._outbox_subscribers)
                return alive and await self.client.ping() and await self._may_settle()
        except TimeoutError:
            return False

    async def _may_settle(self) -> bool:
        try:
            return not (self.subscribers and await self.client.store.missing_rights(shards=self._shares_shards))
        except Exception:  # noqa: BLE001 - any error means that the database does not answer
            return False

    @property
    def operations(self) -> OutboxOperations:
        """Return what an operator can read and do with this outbox; in a test, with its rows in memory."""
        operations = super().operations
        if isinstance(self.client, OutboxClient) and self.client.engine is not None and self.subscribers:
            operations.examine_for_broker(compare_pool(self.client.engine, self._outbox_subscribers))
        return operations

    async def stats(self) -> list[QueueStats]:
        """Count the rows of every queue: ready, scheduled, in flight, blocked, dead; up to 100,000 of each sort."""
        async with self.client.store.connect() as lane:
            return await lane.stats()

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Raise `RuntimeError` with everything that the live tables lack, and the rights of subscribers; needs Alembic.

        Args:
            check_autovacuum: Whether other autovacuum settings than those of a new table are an error too.

        """
        await self.client.validate_schema(check_autovacuum=check_autovacuum)
        if self.subscribers and (missing := await self.client.store.missing_rights(shards=self._shares_shards)):
            raise RuntimeError("Subscribers cannot settle messages: " + " ".join(map(str, missing)))


# Handlers annotate what is injected with these names; the class itself would be taken for the type of the body.
_INJECTED = {
    OutboxMessage: "OutboxMessage",
    OutboxBatchMessage: "OutboxBatchMessage",
    OutboxBroker: "OutboxBroker",
    OutboxClient: "OutboxClient",
    AbstractOutboxClient: "OutboxClient",
    OutboxProducer: "OutboxProducer",
    AsyncSession: "OutboxSession",
}


def _public_url(engine: AsyncEngine | None) -> str:
    """Return the address of the database for the AsyncAPI document: without user and password."""
    if engine is None:
        return "postgresql://"
    url = engine.url
    return URL.create("postgresql", host=url.host, port=url.port, database=url.database).render_as_string()
