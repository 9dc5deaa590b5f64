"""`TestOutboxBroker`: runs brokers in tests, in memory or on a real database."""

from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Literal, cast, overload
from unittest import mock

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from faststream_outbox._faststream import EnterType, TestBroker
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.client import AbstractOutboxClient, FakeOutboxClient, OutboxClient
from faststream_outbox.publisher.usecase import OutboxPublisher
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.checks import check_time
from faststream_outbox.subscriber.usecase import OutboxSubscriber
from faststream_outbox.testing.producer import CommittingProducer, DeliveringProducer, Takers
from faststream_outbox.wakeup.wakeup import Wakeup


class TestOutboxBroker(TestBroker[OutboxBroker, EnterType], broker=OutboxBroker):
    """Runs a broker, or several, on rows in memory; `session` may be left out.

    By default `publish` runs the handler before it returns, timers fire at once, and `publish` raises what the handler
    raised. Rows that no handler takes stay in `fake_client.rows`, also those of a queue that has a publisher.

    Args:
        brokers: The broker to test, or several; those with the same table see each other's messages.
        run_loops: Run the real loops on the rows in memory: retries are scheduled, timers wait, leases expire.
        capture: The queues whose rows are kept instead of being handled; True for all queues. Only in the default mode.
        handler_session: What handlers get as `OutboxSession`: a session of yours, which you commit, or a mock.
        with_real: Use the real database. A publish without a session is committed at once.
        engine: The database to use instead of the broker's; only for `with_real=True`.
        connect_only: Connect the brokers without starting them, as FastStream does beside a `TestApp`.

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
        capture: bool | str | Collection[str] = False,
        handler_session: Any = None,
        with_real: bool = False,
        engine: AsyncEngine | None = None,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "TestOutboxBroker[tuple[OutboxBroker, ...]]",
        *brokers: OutboxBroker,
        run_loops: bool = False,
        capture: bool | str | Collection[str] = False,
        handler_session: Any = None,
        with_real: bool = False,
        engine: AsyncEngine | None = None,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(
        self,
        *brokers: OutboxBroker,
        run_loops: bool = False,
        capture: bool | str | Collection[str] = False,
        handler_session: Any = None,
        with_real: bool = False,
        engine: AsyncEngine | None = None,
        connect_only: bool | None = None,
    ) -> None:
        _check_brokers(brokers, in_memory=not with_real)
        if engine is not None and not with_real:
            raise ValueError("engine= is for with_real=True; a test in memory uses no engine: leave it out.")
        if run_loops and with_real:
            raise ValueError("with_real=True runs the loops already, on the real database: leave run_loops out.")
        if capture and (run_loops or with_real):
            raise ValueError("capture= is for the default mode; the loops handle every row: leave one of the two out.")
        if handler_session is not None and with_real:
            raise ValueError("with_real=True opens a real session for each handler: leave handler_session out.")
        _check_handler_session(handler_session)
        # FastStream starts and stops a broker with `with_real`, as one whose loops run needs; it fakes all others.
        super().__init__(*brokers, with_real=with_real or run_loops, connect_only=connect_only)
        self._engine = engine
        self._captured: Literal[True] | frozenset[str] = (
            True if capture is True else frozenset({capture} if isinstance(capture, str) else capture or ())
        )
        self._clients = {} if with_real else _clients(brokers, handler_session)

    @property
    def fake_client(self) -> FakeOutboxClient:
        """Return the client with the rows in memory; with several brokers, use `broker.fake_client`."""
        clients = set(self._clients.values())
        if len(clients) != 1:
            raise RuntimeError(
                "There is one fake client per table, and none under with_real=True: use broker.fake_client."
            )
        return clients.pop()

    def feed(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: dict[str, Any] | None = None,
        next_attempt_at: datetime | None = None,
        timer_id: str | None = None,
        key: str | None = None,
    ) -> int | None:
        """Insert a row as another program would; return its id, or None if its timer waits already.

        With `run_loops` it is delivered: at once, or at `next_attempt_at`. Otherwise it stays.

        Args:
            queue: The name of the queue.
            payload: The encoded body.
            headers: Names with values that JSON can hold.
            next_attempt_at: When it is due; by default now.
            timer_id: A name that at most one waiting message of the queue has.
            key: The key, for messages that are handled in order.

        """
        if next_attempt_at is not None:
            check_time("next_attempt_at", next_attempt_at)
        row = NewRow(queue, payload, headers, key=key, timer_id=timer_id, activate_at=next_attempt_at)
        return self.fake_client.feed(row)

    @asynccontextmanager
    async def _create_ctx(self) -> AsyncGenerator[list[OutboxBroker], None]:
        _check_captured(self._captured, self.brokers)
        with ExitStack() as stack:
            for broker in self.brokers:
                config = broker.config.broker_config
                if self._clients:
                    stack.enter_context(_with_client(broker, self._clients[broker]))
                else:
                    if self._engine is not None:
                        stack.enter_context(_with_client(broker, _client_on(self._engine, broker)))
                    stack.enter_context(mock.patch.object(config, "producer", CommittingProducer(config)))
            async with super()._create_ctx() as brokers:
                yield brokers

    @contextmanager
    def _patch_producer(self, broker: OutboxBroker) -> Generator[None, None, None]:
        config, session = broker.config.broker_config, self._clients[broker].store.handler_session
        producer = DeliveringProducer(config, self._takers(broker), fake_session() if session is None else session)
        with mock.patch.object(config, "producer", producer):
            yield

    def _takers(self, broker: OutboxBroker) -> Takers:
        client = self._clients.get(broker)
        peers = [each for each in self.brokers if self._clients.get(each) is client]
        return Takers(peers, self._fake_subscribers, self._captured)

    def create_publisher_fake_subscriber(
        self, broker: OutboxBroker, publisher: OutboxPublisher
    ) -> tuple[OutboxSubscriber, bool]:
        """Return the subscriber of a publisher's queue, or make one; and whether it was there."""
        if (real := self._takers(broker).real(publisher.queue)) is not None:
            return real, True
        return broker.subscriber(publisher.queue, persistent=False), False

    async def _fake_connect(self, broker: OutboxBroker, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - FastStream's signature
        return broker.client


def _check_brokers(brokers: tuple[Any, ...], *, in_memory: bool) -> None:
    if not brokers:
        raise TypeError("TestOutboxBroker(broker) needs a broker, or several.")
    for broker in brokers:
        if not isinstance(broker, OutboxBroker):
            kind = type(broker).__name__
            raise TypeError(f"TestOutboxBroker takes an OutboxBroker, not {kind}: give the broker it belongs to.")
        if isinstance(broker.client, FakeOutboxClient):
            raise RuntimeError("This broker is in a TestOutboxBroker already: leave that one first.")  # noqa: TRY004 - its state is wrong, not its type
        if in_memory and broker.running:
            # FastStream's page to try out messages wants such a test, in the running application.
            raise RuntimeError(
                "This broker is running: what the application publishes during a test in memory would be lost. Stop it "
                "first. For this reason the page of the AsyncAPI document cannot try out an outbox: publish in a "
                "transaction of yours."
            )


def _check_captured(captured: Literal[True] | frozenset[str], brokers: Sequence[OutboxBroker]) -> None:
    """Raise `ValueError` for a queue that no broker has: its name is misspelled, and another one would be handled."""
    if captured is True:
        return
    known = set[str]().union(*(_queues(broker) for broker in brokers))
    if unknown := sorted(captured - known):
        names = ", ".join(map(repr, sorted(known))) or "no queue at all"
        raise ValueError(
            f"capture= names {unknown[0]!r}, a queue that no subscriber, publisher or relay of this broker has. It has "
            f"{names}. Rows of a queue without a subscriber stay without being captured."
        )


def _queues(broker: OutboxBroker) -> set[str]:
    """Return the queues of a broker's subscribers, publishers and relays."""
    subscribers = cast("list[OutboxSubscriber]", broker.subscribers)
    publishers = cast("list[OutboxPublisher]", broker.publishers)
    handled = {queue for each in subscribers for queue in each.queues}
    return handled | {each.queue for each in publishers} | broker.config.broker_config.relayed_queues


def _with_client(broker: OutboxBroker, client: AbstractOutboxClient) -> AbstractContextManager[Any]:
    """Replace the client of a broker, and the wake-ups of its subscribers."""
    config = broker.config.broker_config
    return mock.patch.multiple(config, client=client, wakeup=Wakeup(client.store, config.monitor()))


def _client_on(engine: AsyncEngine, broker: OutboxBroker) -> OutboxClient:
    """Return a client for the tables of a broker in another database."""
    store: Any = broker.client.store
    names = ("dlq_table", "shards_table", "control_table", "audit_table", "nodes_table")
    return OutboxClient(engine, store.outbox_table, **{name: getattr(store, name) for name in names})


def _check_handler_session(session: Any) -> None:
    if isinstance(session, Session | Connection | AsyncConnection | AsyncEngine | async_sessionmaker):
        raise TypeError(
            f"handler_session is an AsyncSession, or a mock of one, not {type(session).__name__}. Open a session: "
            "async with async_sessionmaker(engine)() as session: …"
        )


def _clients(brokers: tuple[OutboxBroker, ...], handler_session: Any) -> dict[OutboxBroker, FakeOutboxClient]:
    """Return a client for each broker; brokers with the same table share one and see each other's messages."""
    by_table: dict[str, FakeOutboxClient] = {}
    clients = {}
    for broker in brokers:
        store: Any = broker.client.store
        keeps_dead = store.dlq_table is not None
        clients[broker] = by_table.setdefault(str(store.outbox_table), FakeOutboxClient(dlq_enabled=keeps_dead))
        clients[broker].store.handler_session = handler_session
    return clients


def fake_session() -> Any:
    """Return a session for code under test that needs one: it does nothing, and is in a transaction."""
    session = mock.AsyncMock(spec=AsyncSession)
    session.in_transaction.return_value = True
    return session
