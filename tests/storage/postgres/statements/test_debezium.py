"""The outbox under Debezium's names: who inserts there publishes, who reads there sees what waits."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import JSON, Column, MetaData, Table, Text, Uuid, delete, insert, select, text
from sqlalchemy.exc import DBAPIError

from faststream_outbox.storage import NewRow
from faststream_outbox.storage.postgres.statements.debezium import debezium_view_ddl
from tests.backends import PostgresBackend

EVENTS = Table(
    "outboxevent",
    MetaData(),
    Column("id", Uuid, primary_key=True),
    Column("aggregatetype", Text),
    Column("aggregateid", Text),
    Column("type", Text),
    Column("payload", JSON),
)


@pytest.fixture
async def events(postgres: PostgresBackend) -> Table:
    """A view where Debezium's table was."""
    for statement in debezium_view_ddl(postgres.outbox_table):
        await postgres.run(statement)
    return EVENTS


def event(number: int, **columns: Any) -> dict[str, Any]:
    return {"aggregatetype": "order", "aggregateid": "7", "type": "paid", "payload": {"n": number}, **columns}


async def test_what_is_inserted_there_is_published(postgres: PostgresBackend, events: Table) -> None:
    identity = uuid4()
    async with postgres.transaction() as session:
        await session.execute(insert(events).values(event(1, id=identity)))
        await session.execute(delete(events).where(events.c.id == identity))
    [row] = await postgres.rows()
    assert (row.queue, row.entity_key, row.payload) == ("order", "7", b'{"n": 1}')
    assert row.headers == {"id": str(identity), "type": "paid", "content-type": "application/json"}


async def test_what_waits_can_be_read_there(postgres: PostgresBackend, events: Table) -> None:
    async with postgres.transaction() as session:
        row = NewRow("order", b'{"n": 1}', key="7", headers={"type": "paid"})
        await postgres.store.insert(session, row)
        [read] = (await session.execute(select(*events.c))).all()
    assert tuple(read)[1:] == ("order", "7", "paid", {"n": 1})


@pytest.mark.parametrize("identity", ["7", "paid twice", str(UUID(int=7))])
async def test_every_id_can_be_read_there(postgres: PostgresBackend, events: Table, identity: str) -> None:
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("order", b"1", headers={"id": identity}))
        [read] = await session.scalars(select(events.c.id))
    [row] = await postgres.rows()
    assert read == UUID(int=7 if identity.endswith("-000000000007") else row.id)


async def test_ids_that_are_text(postgres: PostgresBackend) -> None:
    for statement in debezium_view_ddl(postgres.outbox_table, "events", id_type="text"):
        await postgres.run(statement)
    await postgres.run("INSERT INTO events (id, aggregatetype, payload) VALUES ('order-7', 'order', '1')")
    await postgres.run("DELETE FROM events WHERE id = 'order-7'::varchar")
    [row] = await postgres.rows()
    assert row.headers == {"id": "order-7", "content-type": "application/json"}


async def test_what_was_published_does_not_change(postgres: PostgresBackend, events: Table) -> None:
    async with postgres.transaction() as session:
        await session.execute(insert(events).values(event(1, id=uuid4())))
    with pytest.raises(DBAPIError, match="does not change"):
        await postgres.run("UPDATE outboxevent SET aggregatetype = 'x'")


async def test_the_order_of_a_key_is_that_of_the_commits(postgres: PostgresBackend, events: Table) -> None:
    """Who inserts there waits for who publishes the same key, and the other way round."""
    async with postgres.transaction() as first:
        await first.execute(insert(events).values(event(1, id=uuid4())))

        async def publish() -> None:
            async with postgres.transaction() as session:
                await postgres.store.insert(session, NewRow("order", b"2", key="7"))

        publishing = asyncio.create_task(publish())
        done, _ = await asyncio.wait({publishing}, timeout=0.3)
        assert not done
        await first.execute(insert(events).values(event(3, id=uuid4())))
    await publishing
    assert [row.payload for row in await postgres.rows()] == [b'{"n": 1}', b'{"n": 3}', b"2"]


@pytest.mark.parametrize("payload", ["text", "bytea"])
async def test_payloads_of_other_types(postgres: PostgresBackend, payload: Any) -> None:
    for statement in debezium_view_ddl(postgres.outbox_table, "events", payload=payload):
        await postgres.run(statement)
    async with postgres.transaction() as session:
        await session.execute(
            text(
                "INSERT INTO events (id, aggregatetype, payload) "
                f"VALUES (gen_random_uuid(), 'order', CAST('\\x6f6b' AS {payload}))"
            )
        )
    [row] = await postgres.rows()
    assert row.payload == (b"ok" if payload == "bytea" else b"\\x6f6b")
    assert row.entity_key is None


def test_another_type_of_payload_is_refused(postgres: PostgresBackend) -> None:
    payload: Any = "xml"
    with pytest.raises(ValueError, match="jsonb, json, text, bytea"):
        debezium_view_ddl(postgres.outbox_table, payload=payload)
