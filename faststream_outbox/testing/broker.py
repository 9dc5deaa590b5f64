"""The broker without a database."""

from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, cast, overload
from unittest import mock

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from faststream_outbox._faststream import EnterType, TestBroker
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.client import AbstractOutboxClient, FakeOutboxClient, OutboxClient
from faststream_outbox.publisher.producer import OutboxProducer
from faststream_outbox.publisher.usecase import OutboxPublisher
from faststream_outbox.storage import NewRow
from faststream_outbox.subscriber.usecase import OutboxSubscriber
from faststream_outbox.testing.producer import CommittingProducer, DeliveringProducer
from faststream_outbox.wakeup.wakeup import Wakeup


class TestOutboxBroker(TestBroker[OutboxBroker, EnterType], broker=OutboxBroker):
    """Runs a broker, or several, on rows in memory; `session` may be left out.

    By default `publish` runs the handler before it returns, timers fire at once, and what the handler raises surfaces.
    With `run_loops=True` the real loops run on those rows: retries are scheduled, timers wait, leases expire. With
    `with_real=True` the real database is used, that of `engine` where one is given, and a publish without a session is
    committed at once.

    Example:
        async with TestOutboxBroker(broker) as test_broker:
            await test_broker.publish(1, queue="orders")
            handle.mock.assert_called_once_with(1)

    """

    @overload
    def __init__(
        self: "TestOutboxBroker[OutboxBroker]",
        broker: OutboxBroker,
        /,
        *,
        run_loops: bool = False,
        with_real: bool = False,
        engine: AsyncEngine | None = None,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "TestOutboxBroker[tuple[OutboxBroker, ...]]",
        *brokers: OutboxBroker,
        run_loops: bool = False,
        with_real: bool = False,
        engine: AsyncEngine | None = None,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(
        self,
        *brokers: OutboxBroker,
        run_loops: bool = False,
        with_real: bool = False,
        engine: AsyncEngine | None = None,
        connect_only: bool | None = None,
    ) -> None:
        _check_brokers(brokers)
        if engine is not None and not with_real:
            raise ValueError("engine is what with_real=True runs on: in memory there is none.")
        if run_loops and with_real:
            raise ValueError("with_real runs the loops anyway, on the real database: leave run_loops out.")
        # To FastStream a broker whose loops run is a real one: it starts and stops it, where it fakes the others.
        super().__init__(*brokers, with_real=with_real or run_loops, connect_only=connect_only)
        self._in_memory = not with_real
        self._engine = engine
        self._run_loops = run_loops
        self._clients = {} if with_real else _clients(brokers)

    @property
    def fake_client(self) -> FakeOutboxClient:
        """The rows, and the dead ones, of the only broker; with several, each has its own `fake_client`."""
        clients = set(self._clients.values())
        if len(clients) != 1:
            raise RuntimeError("There is a fake client per table, and none with with_real: ask the broker for its own.")
        return clients.pop()

    def feed(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: dict[str, Any] | None = None,
        next_attempt_at: datetime | None = None,
        timer_id: str | None = None,
    ) -> int:
        """Put a row in as somebody else's program would; with `run_loops` it is delivered, otherwise it stays."""
        row = NewRow(queue, payload, headers, timer_id=timer_id, activate_at=next_attempt_at)
        return self.fake_client.feed(row)

    @asynccontextmanager
    async def _create_ctx(self) -> AsyncGenerator[list[OutboxBroker], None]:
        with ExitStack() as stack:
            for broker in self.brokers:
                if self._in_memory:
                    stack.enter_context(_on_client(broker, self._clients[broker]))
                else:
                    if self._engine is not None:
                        stack.enter_context(_on_client(broker, _client_on(self._engine, broker)))
                    stack.enter_context(_producer_of(broker, CommittingProducer.of(broker)))
            async with super()._create_ctx() as brokers:
                yield brokers

    @contextmanager
    def _patch_producer(self, broker: OutboxBroker) -> Generator[None, None, None]:
        peers = [each for each in self.brokers if self._clients[each] is self._clients[broker]]
        with _producer_of(broker, DeliveringProducer.of(broker, peers)):
            yield

    def create_publisher_fake_subscriber(
        self, broker: OutboxBroker, publisher: OutboxPublisher
    ) -> tuple[OutboxSubscriber, bool]:
        """Find who takes what a publisher sends, or make somebody who does."""
        for subscriber in (each for one in self.brokers for each in one.subscribers):
            real = cast("OutboxSubscriber", subscriber)
            if publisher.queue in real.queues and real.calls:
                return real, True
        return broker.subscriber(publisher.queue, persistent=False), False

    async def _fake_connect(self, broker: OutboxBroker, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - FastStream's signature
        return broker.client


@contextmanager
def _producer_of(broker: OutboxBroker, producer: OutboxProducer) -> Generator[None, None, None]:
    """Lend a broker a producer, and give it its own back even if the test fails, where FastStream would not."""
    config = broker.config.broker_config
    own, config.producer = config.producer, producer
    try:
        yield
    finally:
        config.producer = own


def _check_brokers(brokers: tuple[Any, ...]) -> None:
    if not brokers:
        raise TypeError("TestOutboxBroker(broker) needs a broker, or several.")
    for broker in brokers:
        if not isinstance(broker, OutboxBroker):
            kind = type(broker).__name__
            raise TypeError(f"TestOutboxBroker takes OutboxBrokers, not {kind}: give the broker that it belongs to.")
        if isinstance(broker.client, FakeOutboxClient):
            raise RuntimeError("This broker runs in a TestOutboxBroker already: one at a time.")  # noqa: TRY004 - its state is wrong, not its type


@contextmanager
def _on_client(broker: OutboxBroker, client: AbstractOutboxClient) -> Generator[None, None, None]:
    """Let a broker work on other rows for a while, and wake its subscribers from there."""
    config = broker.config.broker_config
    real: tuple[AbstractOutboxClient | None, Wakeup | None] = config.client, config.wakeup
    config.client, config.wakeup = client, Wakeup(client.store, config.monitor())
    try:
        yield
    finally:
        config.client, config.wakeup = real


def _client_on(engine: AsyncEngine, broker: OutboxBroker) -> OutboxClient:
    """Make a client for a broker's tables in another database."""
    store: Any = broker.client.store
    return OutboxClient(engine, store.outbox_table, dlq_table=store.dlq_table, shards_table=store.shards_table)


def _clients(brokers: tuple[OutboxBroker, ...]) -> dict[OutboxBroker, FakeOutboxClient]:
    """One client per table: brokers that share one see each other's messages."""
    by_table: dict[str, FakeOutboxClient] = {}
    clients = {}
    for broker in brokers:
        store: Any = broker.client.store
        keeps_dead = store.dlq_table is not None
        clients[broker] = by_table.setdefault(str(store.outbox_table), FakeOutboxClient(dlq_enabled=keeps_dead))
    return clients


def fake_session() -> Any:
    """Make a session for code under test that insists on one: it does nothing, and says that it is in a transaction."""
    session = mock.AsyncMock(spec=AsyncSession)
    session.in_transaction.return_value = True
    return session
