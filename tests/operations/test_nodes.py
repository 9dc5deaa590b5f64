"""Which nodes there are, what they read and what they hold: with the table of nodes and without."""

import asyncio
import os
import socket
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Table

from faststream_outbox import make_operations_tables
from faststream_outbox.operations import Count, NodeOverview, OutboxOperations
from faststream_outbox.storage import MemoryStore, NewRow
from faststream_outbox.storage.nodes import Node
from tests.backends import MemoryBackend, PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.waiting import until

HOST = socket.gethostname()


@pytest.fixture
async def nodes(postgres: PostgresBackend) -> Table:
    tables = make_operations_tables(postgres.metadata)
    async with postgres.engine.begin() as connection:
        await connection.run_sync(postgres.metadata.create_all)
    return tables.nodes


def operations_on(postgres: PostgresBackend, nodes: Table | None = None) -> OutboxOperations:
    return OutboxOperations(postgres.engine, outbox_table=postgres.outbox_table, nodes_table=nodes)


async def lease(postgres: PostgresBackend, token: UUID, where: str, *, seconds: int = 3600) -> None:
    await postgres.run(
        "UPDATE outbox SET acquired_token = :token, acquired_at = now(), "
        f"lease_expires_at = now() + make_interval(secs => {seconds}) WHERE {where}",
        token=token,
    )


def token_of(node: Node) -> UUID:
    node.locked = True
    return node.make_token()


async def test_a_living_node_is_known_by_its_connection(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(_body: int) -> None: ...

    operations = operations_on(postgres)
    assert await operations.nodes() == []
    async with started(broker):
        [node] = await until(operations.nodes)
        assert (node.name, node.alive) == (broker.client.store.nodes.own.name, True)
        assert (node.host, node.pid, node.process) == (HOST, os.getpid(), f"{HOST}:{os.getpid()}")
        assert node.started_at is not None
        assert (node.version, node.queues, node.ordering) == (None, None, None)
    assert await operations.nodes() == []


async def test_a_node_that_holds_messages_is_named_with_its_process(postgres: PostgresBackend, nodes: Table) -> None:
    broker, began, go_on = broker_on(postgres, nodes_table=nodes), asyncio.Event(), asyncio.Event()

    @broker.subscriber("q")
    async def handle(_body: int) -> None:
        began.set()
        await go_on.wait()

    operations = broker.operations
    async with started(broker):
        [node] = await until(operations.nodes, lambda found: found and found[0].queues)
        assert (node.queues, node.ordering, node.in_hand) == (("q",), "HeadLease", Count(0))
        await until(lambda: broker.client.store.nodes.own.locked)
        [row_id] = await postgres.insert(NewRow("q", b"1"))
        await began.wait()
        [node] = await operations.nodes()
        assert node.in_hand == Count(1)
        message = await operations.message(row_id)
        assert message is not None
        assert (message.holder, message.holder_process, message.holder_alive) == (node.name, node.process, True)
        [queue] = await operations.queues()
        assert (queue.in_flight, queue.nodes) == (Count(1), 1)
        go_on.set()


async def test_an_empty_queue_is_listed_while_a_living_node_reads_it(postgres: PostgresBackend, nodes: Table) -> None:
    node, operations = Node(), operations_on(postgres, nodes)
    await postgres.run(
        "INSERT INTO outbox_nodes (name, host, pid, version, queues) VALUES (:name, 'h', 1, '1', '{orders}')",
        name=node.name,
    )
    assert await operations.queues() == []  # it is dead
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({node.lock})")
        [queue] = await operations.queues()
        assert await operations.queue("orders") == queue
        assert await operations.queue("other") is None
    assert (queue.queue, queue.ready, queue.nodes) == ("orders", Count(0), 1)


async def test_what_nodes_hold_is_counted(postgres: PostgresBackend) -> None:
    one, other = Node(), Node()
    await postgres.insert(*(NewRow("a", b"") for _ in range(5)), *(NewRow("b", b"") for _ in range(2)))
    await postgres.insert(*(NewRow("c", b"", key=key) for key in ("k", "k", "l", "m")))
    await lease(postgres, token_of(one), "queue = 'a' AND id % 2 = 0")
    await lease(postgres, token_of(one), "entity_key = 'l'")
    await lease(postgres, token_of(other), "queue = 'b'")
    await lease(postgres, token_of(other), "entity_key = 'm'", seconds=-1)
    held = {node.name: node.in_hand for node in await operations_on(postgres).nodes()}
    a = await postgres.one("SELECT count(*) FROM outbox WHERE queue = 'a' AND acquired_token IS NOT NULL")
    assert isinstance(a, int)
    assert held == {one.name: Count(a + 1), other.name: Count(2)}


async def test_a_count_says_that_there_may_be_more(postgres: PostgresBackend) -> None:
    one, other = Node(), Node()
    await postgres.fill(10_001, queue="plain", payload_bytes=1, due="now() - make_interval(secs => n)")
    await lease(postgres, token_of(one), "id = (SELECT max(id) FROM outbox)")
    await postgres.insert(NewRow("short", b""))
    await lease(postgres, token_of(other), "queue = 'short'")
    held = {node.name: str(node.in_hand) for node in await operations_on(postgres).nodes()}
    assert held == {one.name: "1+", other.name: "1"}


async def test_a_dead_node_that_holds_messages_is_listed_as_dead(postgres: PostgresBackend, nodes: Table) -> None:
    dead, living = Node(), Node()
    [row_id] = await postgres.insert(NewRow("q", b""))
    await lease(postgres, token_of(dead), "true")
    operations = operations_on(postgres, nodes)
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({living.lock})")
        first, second = await operations.nodes()
        assert (first.name, first.alive, first.in_hand) == (living.name, True, Count(0))
        assert second == NodeOverview(dead.name, alive=False, in_hand=Count(1))
    message = await operations.message(row_id)
    assert message is not None
    assert (message.holder, message.holder_process, message.holder_alive) == (dead.name, None, False)
    await _register(postgres, dead, ["q"])
    message = await operations.message(row_id)
    assert message is not None
    assert message.holder_process == "shop-1:7"


async def test_queues_are_served_by_living_nodes_only(postgres: PostgresBackend, nodes: Table) -> None:
    one, other, dead = Node(), Node(), Node()
    await postgres.insert(NewRow("a", b""), NewRow("b", b""), NewRow("c", b""))
    for node, queues in ((one, ["a", "b"]), (other, ["a"]), (dead, ["a", "c"])):
        await _register(postgres, node, queues)
    async with postgres.engine.connect() as connection:
        for node in (one, other):
            await connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({node.lock})")
        served = {each.queue: each.nodes for each in await operations_on(postgres, nodes).queues()}
    assert served == {"a": 2, "b": 1, "c": 0}
    assert [each.nodes for each in await operations_on(postgres).queues()] == [None, None, None]


async def test_a_message_whose_token_names_no_node_has_an_unknown_holder(postgres: PostgresBackend) -> None:
    [row_id] = await postgres.insert(NewRow("q", b""))
    await postgres.claim("q")
    message = await operations_on(postgres).message(row_id)
    assert message is not None
    assert (message.holder, message.holder_process, message.holder_alive) == ("unknown", None, None)


async def test_a_store_in_memory_has_no_nodes() -> None:
    backend = MemoryBackend()
    operations = OutboxOperations.on_store(backend.store)
    assert isinstance(backend.store, MemoryStore)
    await backend.insert(NewRow("q", b""))
    assert await operations.nodes() == []
    assert [each.nodes for each in await operations.queues()] == [None]


async def _register(postgres: PostgresBackend, node: Node, queues: list[str]) -> None:
    values: dict[str, Any] = {"name": node.name, "queues": queues}
    await postgres.run(
        "INSERT INTO outbox_nodes (name, host, pid, version, queues) VALUES (:name, 'shop-1', 7, '1', :queues)",
        **values,
    )
