"""Rows that wait: queues that nobody serves, leases of dead nodes, dead letters, pauses."""

import asyncio
from datetime import UTC, datetime

import pytest

from faststream_outbox.operations import DoctorLimits, OutboxOperations
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.nodes import Node
from faststream_outbox.storage.schema.operations_tables import OperationsTables
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.operations.doctor.visits import cured, find, named, run, visit
from tests.waiting import until

LIMITS = DoctorLimits(waiting_seconds=0.0)


@pytest.mark.parametrize("key", [None, "k"])
async def test_rows_of_a_queue_that_nobody_serves_are_named(postgres: PostgresBackend, key: str | None) -> None:
    await postgres.insert(NewRow("ordres", b"1", key=key))
    assert await visit(postgres) == []  # a subscriber may come for them
    await postgres.pass_time(3600)
    finding = await named(postgres, "queues")
    assert finding.severity == "error"
    assert finding.what == "1 due message or key waits in queue 'ordres'. No process with subscribers is connected."
    assert finding.since is not None
    assert "faststream-outbox messages move --queue ordres --to QUEUE --reason WHY" in finding.commands


async def test_rows_that_are_claimed_or_not_due_are_not_named(postgres: PostgresBackend) -> None:
    await postgres.insert(NewRow("claimed", b"1"), NewRow("later", b"1"))
    await postgres.run("UPDATE outbox SET next_attempt_at = now() + interval '1 day' WHERE queue = 'later'")
    await postgres.claim("claimed")
    assert await visit(postgres, limits=LIMITS) == []


async def test_living_nodes_that_serve_other_queues_do_not_hide_it(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("orders")
    async def handle(_order: int) -> None: ...

    await publish(broker_on(postgres), postgres, 1, queue="ordres")
    await postgres.pass_time(3600)
    async with started(broker):
        [finding] = await until(lambda: find(postgres, "queues"), lambda found: "living node" in found[0].what)
    assert "The one living node does not claim them" in finding.what


async def test_a_queue_that_a_living_node_names_is_served(postgres: PostgresBackend, tables: OperationsTables) -> None:
    await postgres.insert(NewRow("orders", b"1"))
    await postgres.pass_time(3600)
    node = Node()
    await postgres.run(
        "INSERT INTO outbox_nodes (name, host, pid, version, queues) VALUES (:name, 'h', 1, '1', '{orders}')",
        name=node.name,
    )
    assert len(await find(postgres, "queues", nodes_table=tables.nodes)) == 1  # it is dead
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({node.lock})")
        assert await find(postgres, "queues", nodes_table=tables.nodes) == []


async def test_a_backlog_of_a_queue_that_is_read_is_named(postgres: PostgresBackend) -> None:
    await postgres.insert(*(NewRow("orders", b"1") for _ in range(3)))
    await postgres.pass_time(3600)
    await postgres.claim("orders", limit=1)
    finding = await named(postgres, "backlog")
    assert finding.severity == "warning"
    assert finding.what == "2 due messages or keys wait in queue 'orders', which is read: 1 is in flight."
    assert finding.since is not None
    assert "faststream-outbox messages list --queue orders --state in_flight" in finding.commands
    assert await find(postgres, "backlog", limits=DoctorLimits(backlog_seconds=7200)) == []


async def test_a_message_that_is_in_hand_for_long_is_worth_knowing(postgres: PostgresBackend) -> None:
    node = Node()
    node.locked = True
    await postgres.insert(NewRow("orders", b"1"))
    await postgres.run(
        "UPDATE outbox SET acquired_token = :token, acquired_at = now() - interval '2 h', "
        "lease_expires_at = now() + interval '1 h'",
        token=node.make_token(),
    )
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({node.lock})")
        finding = await named(postgres, "handlers")
        assert (finding.severity, f"Node {node.name} has had" in finding.what) == ("info", True)
        assert finding.commands == (f"faststream-outbox messages list --queue orders --node {node.name}",)
        assert await find(postgres, "handlers", limits=DoctorLimits(handling_seconds=10_000)) == []


async def test_leases_of_a_dead_node_are_named(postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faststream_outbox.operations.doctor.rows.RECOVERY_SECONDS", 0.0)
    node = Node()
    node.locked = True
    await postgres.insert(NewRow("plain", b"1"), NewRow("plain", b"2"), NewRow("keyed", b"3", key="k"))
    await postgres.run(
        "UPDATE outbox SET acquired_token = :token, acquired_at = now(), lease_expires_at = now() + interval '1 h'",
        token=node.make_token(),
    )
    finding = await named(postgres, "leases")
    assert finding.what == f"Node {node.name} is dead and still holds 3 messages or keys of 'keyed', 'plain'."
    assert finding.since is not None
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({node.lock})")
        assert await visit(postgres) == []  # it lives
        await connection.exec_driver_sql(f"SELECT pg_advisory_unlock_shared({node.lock})")
    assert await cured(postgres, finding)
    assert all(
        row.lease_expires_epoch < row.acquired_epoch + 3600 for row in await postgres.rows() if row.acquired_epoch
    )


async def test_a_dead_node_is_named_with_where_it_ran(
    postgres: PostgresBackend, tables: OperationsTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faststream_outbox.operations.doctor.rows.RECOVERY_SECONDS", 0.0)
    node = Node()
    node.locked = True
    await postgres.insert(NewRow("q", b"1"))
    await postgres.run(
        "UPDATE outbox SET acquired_token = :token, acquired_at = now(), lease_expires_at = now() + interval '1 h'",
        token=node.make_token(),
    )
    await postgres.run(
        "INSERT INTO outbox_nodes (name, host, pid, version, queues) VALUES (:name, 'shop-1', 7, '1', '{q}')",
        name=node.name,
    )
    finding = await named(postgres, "leases", nodes_table=tables.nodes)
    assert finding.what == f"Node {node.name} (shop-1:7) is dead and still holds 1 message or key of 'q'."


async def test_leases_that_living_nodes_take_over_are_not_named(postgres: PostgresBackend) -> None:
    node = Node()
    node.locked = True
    await postgres.insert(NewRow("q", b"1"))
    await postgres.run(
        "UPDATE outbox SET acquired_token = :token, acquired_at = now(), lease_expires_at = now() + interval '1 h'",
        token=node.make_token(),
    )
    visiting = asyncio.create_task(visit(postgres))
    broker = broker_on(postgres)
    handled = asyncio.Event()

    @broker.subscriber("q")
    async def handle(_number: int) -> None:
        handled.set()

    async with started(broker):
        assert await visiting == []
        await handled.wait()


async def test_dead_letters_that_grow_are_named(postgres: PostgresBackend) -> None:
    insert = (
        "INSERT INTO outbox_dlq (original_id, queue, payload, created_at, failure_reason, failed_at) "
        "SELECT n, :queue, '', now(), 'rejected', now() - n * CAST(:apart AS interval) FROM generate_series(1, 12) n"
    )
    await postgres.run(insert.replace(":apart", "'1 day'"), queue="old")
    assert await visit(postgres) == []
    await postgres.run(insert.replace(":apart", "'1 minute'"), queue="new")
    finding = await named(postgres, "dead_letters")
    assert finding.severity == "warning"
    assert "12 messages of queue 'new' failed for good in the last 60 minutes" in finding.what
    assert "'rejected'" in finding.what
    assert finding.since is not None
    assert "faststream-outbox dlq replay --queue new --reason WHY" in finding.commands


async def test_a_pause_that_was_forgotten_is_named(postgres: PostgresBackend, tables: OperationsTables) -> None:
    pause = 'INSERT INTO outbox_control (queue, reason, "by", since, until) VALUES (:queue, :reason, :by, {}, {})'
    await postgres.run(
        pause.format("now() - interval '2 days'", "NULL"), queue="orders", reason="migration", by="ann@desk"
    )
    await postgres.run(
        pause.format("now() - interval '2 days'", "now() + interval '1 h'"), queue="ends", reason="r", by="b"
    )
    await postgres.run(pause.format("now()", "NULL"), queue="new", reason="r", by="b")
    await postgres.insert(NewRow("orders", b"1"))
    await postgres.pass_time(3600)
    finding = await named(postgres, "pauses", control_table=tables.control)
    assert finding.what == "Queue 'orders' is paused without an end, by ann@desk: migration."
    assert finding.since is not None
    assert finding.commands == ("faststream-outbox queues resume orders --reason WHY",)
    await run(postgres.engine, "DELETE FROM outbox_control WHERE queue = 'orders';\n")
    assert await find(postgres, "pauses", control_table=tables.control) == []


async def test_messages_that_wait_for_the_end_of_a_pause_are_worth_knowing(
    postgres: PostgresBackend, tables: OperationsTables
) -> None:
    operations = OutboxOperations(
        postgres.engine, outbox_table=postgres.outbox_table, control_table=tables.control, dlq_table=postgres.dlq_table
    )
    await operations.pause("my orders", reason="a deploy", by="ann")
    await postgres.insert(NewRow("my orders", b"1"), NewRow("my orders", b"2", key="k"))
    assert await visit(postgres, control_table=tables.control) == []  # nothing waits for long
    await postgres.pass_time(3600)
    finding = await named(postgres, "pauses", control_table=tables.control)
    assert finding.severity == "info"
    assert finding.what == (
        "2 due messages or keys wait in queue 'my orders'. It is paused until it is resumed, by ann: a deploy."
    )
    assert finding.commands == ("faststream-outbox queues resume 'my orders' --reason WHY",)
    await operations.pause("my orders", datetime(2100, 1, 1, tzinfo=UTC), reason="a deploy", by="ann")
    finding = await named(postgres, "pauses", control_table=tables.control)
    assert "paused until 2100-01-01 00:00:00Z, by ann" in finding.what
