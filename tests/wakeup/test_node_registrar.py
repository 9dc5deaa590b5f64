"""The table of nodes is kept true by the processes themselves, and nothing depends on it."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import OutboxBroker, __version__, make_operations_tables
from faststream_outbox.embedded import Database
from faststream_outbox.relay import Relay
from faststream_outbox.storage.nodes import Node
from faststream_outbox.storage.ordering import AdvisoryLocks
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.broker.killed_subscriber import QUEUE, KilledSubscriber
from tests.killed_processes import ProcessGroup
from tests.observers import LISTENERS
from tests.relay.memory_target import Memory
from tests.roles import acting_without
from tests.waiting import until, until_empty

ROWS = "SELECT name, host, pid, version, queues, strategy FROM outbox_nodes ORDER BY name"


@pytest.fixture
async def nodes(postgres: PostgresBackend) -> Table:
    tables = make_operations_tables(postgres.metadata)
    async with postgres.engine.begin() as connection:
        await connection.run_sync(postgres.metadata.create_all)
    return tables.nodes


def broker_with(postgres: PostgresBackend, nodes: Table, *queues: str, **options: Any) -> OutboxBroker:
    broker = broker_on(postgres, options.pop("records", None), nodes_table=nodes)

    @broker.subscriber(list(queues), **options)
    async def handle(_body: int) -> None: ...

    return broker


async def written(postgres: PostgresBackend, count: int = 1) -> Any:
    return await until(lambda: postgres.run(ROWS), lambda rows: len(rows) == count)


async def test_a_broker_writes_its_row_and_removes_it_when_it_stops(postgres: PostgresBackend, nodes: Table) -> None:
    broker = broker_with(postgres, nodes, "b", "a", ordering=AdvisoryLocks())
    for _ in range(2):  # it is the same node after a restart
        async with started(broker):
            [row] = await written(postgres)
            own = broker.client.store.nodes.own
            assert row == (own.name, socket.gethostname(), os.getpid(), __version__, ["a", "b"], "AdvisoryLocks")
        assert await postgres.run(ROWS) == []


async def test_messages_cost_this_table_no_write(postgres: PostgresBackend, nodes: Table) -> None:
    versions = "SELECT name, xmin, ctid FROM outbox_nodes"
    broker = broker_with(postgres, nodes, "q")
    async with started(broker):
        await written(postgres)
        before = await postgres.run(versions)
        await publish(broker, postgres, *range(500))
        await until_empty(postgres)
        assert await postgres.run(versions) == before


async def test_a_relay_of_the_same_broker_is_in_the_same_row(postgres: PostgresBackend, nodes: Table) -> None:
    broker = broker_with(postgres, nodes, "mine")
    async with started(broker):
        await written(postgres)
        began = "SELECT started_at < now() AND started_at > now() - interval '1 minute' FROM outbox_nodes"
        async with Relay(broker, to=Memory(), routes={"sent": "a"}):
            await until(lambda: postgres.run(ROWS), lambda rows: [row[4] for row in rows] == [["mine", "sent"]])
            assert await postgres.one(began)
        await until(lambda: postgres.run(ROWS), lambda rows: [row[4] for row in rows] == [["mine"]])


async def test_a_relay_alone_writes_a_row_and_removes_it(postgres: PostgresBackend, nodes: Table) -> None:
    broker = broker_on(postgres, nodes_table=nodes)
    async with Relay(broker, to=Memory(), routes={"sent": "a"}):
        [row] = await written(postgres)
        assert row[4] == ["sent"]
    assert await postgres.run(ROWS) == []


async def test_a_row_that_others_removed_is_written_again_with_the_lock(
    postgres: PostgresBackend, nodes: Table
) -> None:
    async with started(broker_with(postgres, nodes, "q")):
        [before] = await written(postgres)
        await postgres.run("DELETE FROM outbox_nodes")
        [[pid]] = await postgres.run(LISTENERS)
        await postgres.run("SELECT pg_terminate_backend(:pid)", pid=pid)
        [after] = await written(postgres)
        assert after == before


async def test_the_row_of_a_killed_process_is_removed_by_another(
    postgres: PostgresBackend, nodes: Table, tmp_path: Path
) -> None:
    url = postgres.engine.url.render_as_string(hide_password=False)
    processes = ProcessGroup(KilledSubscriber(url, str(tmp_path / "log"), tables=["nodes"]))
    try:
        victim = await processes.start()
        await written(postgres)
        async with started(broker_with(postgres, nodes, QUEUE)):
            rows = await written(postgres, 2)
            assert {row[2] for row in rows} == {victim.pid, os.getpid()}
            await processes.kill(victim)
            [left] = await written(postgres)
            assert left[2] == os.getpid()
    finally:
        await processes.kill_all()


async def test_only_rows_without_a_lock_are_removed(postgres: PostgresBackend, nodes: Table) -> None:
    registry = broker_on(postgres, nodes_table=nodes).client.store.registry
    assert registry is not None
    in_grace, new, dead = Node(), Node(), Node()
    for node in (in_grace, new, dead):
        await postgres.run(
            "INSERT INTO outbox_nodes (name, host, pid, version, queues) VALUES (:name, 'h', 1, '1', '{}')",
            name=node.name,
        )
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({new.lock})")
        await registry.remove_dead([in_grace.name])
        assert {row[0] for row in await postgres.run(ROWS)} == {in_grace.name, new.name}
        await connection.exec_driver_sql(f"SELECT pg_advisory_unlock_shared({new.lock})")
    await registry.remove_dead([])
    assert await postgres.run(ROWS) == []


@pytest.fixture
async def restricted(postgres: PostgresBackend, nodes: Table, outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """An engine whose role has all rights but those on the table of nodes."""
    revoke = f"REVOKE ALL ON {nodes.name} FROM {{role}}"
    async with acting_without(postgres, outbox_postgres, revoke) as engine:
        yield engine


async def test_a_role_that_may_not_write_it_says_so_once_and_works(
    postgres: PostgresBackend, nodes: Table, restricted: AsyncEngine
) -> None:
    records, handled = Records(), list[int]()
    mine = PostgresBackend(restricted)
    broker = broker_on(mine, records, nodes_table=nodes)

    @broker.subscriber("q")
    async def handle(body: int) -> None:
        handled.append(body)

    async with started(broker):
        await until(lambda: records.named("node_not_written"))
        await publish(broker, mine, 1)
        await until_empty(postgres)
        [node] = await broker.operations.nodes()
        assert (node.alive, node.pid, node.queues) == (True, os.getpid(), None)
        [[pid]] = await postgres.run(LISTENERS)
        await postgres.run("SELECT pg_terminate_backend(:pid)", pid=pid)
        await until(lambda: records.named("listen_restored"))
        await publish(broker, mine, 2)
        await until_empty(postgres)
    assert handled == [1, 2]
    [record] = records.named("node_not_written")
    assert "schema grants --as consumer" in record.getMessage()
    assert await postgres.run(ROWS) == []
