"""The lock of a node on the listening connection: who sees it, and what a node does that cannot see it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.embedded import Database
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.nodes import GRACE, Node
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.observers import NotifiedQueues
from tests.roles import acting_without
from tests.waiting import until_empty


@pytest.fixture
async def blind(postgres: PostgresBackend, outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """An engine whose role may take locks, and may not read which there are."""
    async with acting_without(postgres, outbox_postgres, "REVOKE SELECT ON pg_locks FROM PUBLIC") as engine:
        yield engine


async def test_nodes_see_each_other(postgres: PostgresBackend) -> None:
    one, other = Node(), Node()
    async with postgres.store.listen(NotifiedQueues()) as listening, postgres.store.listen(NotifiedQueues()) as second:
        await second.look(other)
        look = await listening.look(one)
    assert look is not None
    assert look.names == {one.name, other.name}
    assert one.locked
    assert one.make_token().version == 8


async def test_a_node_whose_lock_cannot_be_seen_relies_on_leases(postgres: PostgresBackend) -> None:
    """As behind a pooler that passes on the process id of the server, and shares its connections."""
    node = Node()
    async with postgres.store.listen(NotifiedQueues()) as listening:
        assert await listening.look(node) is not None
        await listening._listener.fetch(Statement("SELECT pg_advisory_unlock_all()::text"))  # type: ignore[attr-defined]
        assert await listening.look(node) is None, "what it sees says nothing about other nodes either"
        assert await listening.look(node) is None
    assert not node.locked
    assert node.make_token().version == 4


async def test_a_node_that_may_not_read_locks_relies_on_leases(blind: AsyncEngine) -> None:
    node, store = Node(), PostgresBackend(blind).store
    async with store.listen(NotifiedQueues()) as listening:
        assert await listening.look(node) is None
    assert not node.locked
    assert node.make_token().version == 4


async def test_a_subscriber_that_may_not_read_locks_goes_on(postgres: PostgresBackend, blind: AsyncEngine) -> None:
    """For longer than the grace, with rows that were claimed before its end and are started after it."""
    broker, handled = broker_on(PostgresBackend(blind), dlq_table=None, shards_table=None), list[bytes]()

    @broker.subscriber("q", max_workers=2)
    async def handle(message: OutboxMessage) -> None:
        handled.append(message.body)
        await asyncio.sleep(0.1)

    async with started(broker):
        await postgres.insert(*(NewRow("q", b"%d" % n) for n in range(int(2 * 2 * GRACE / 0.1))))
        await until_empty(postgres, seconds=45)
    assert len(set(handled)) == len(handled)


async def test_a_node_keeps_its_rows_while_handlers_have_all_connections_of_the_pool(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    """It opens another connection to listen, and takes its lock again."""
    engine = create_async_engine(outbox_postgres.url(postgres.engine.dialect.driver), pool_size=2, max_overflow=0)
    node, store = Node(), PostgresBackend(engine).store
    async with engine.connect(), engine.connect(), asyncio.timeout(20):
        async with store.listen(NotifiedQueues()) as listening:
            assert await listening.look(node) is not None
        assert node.locked
    await engine.dispose()
