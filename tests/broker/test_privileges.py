"""Producers, consumers and operators with the rights that the documentation names, and no others."""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox import HashShards, NoRetry, OutboxBroker, Relay
from faststream_outbox.annotations import OutboxSession
from faststream_outbox.embedded import Database
from faststream_outbox.storage.schema.tables import quoted_name
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty

RIGHTS = re.compile(r"`([A-Z, ]+) ON (\w+)`")
TABLES = {"outbox", "outbox_dlq", "outbox_shards"}
# The rights on these are tested in `tests/operations/grants`.
OPERATORS_TABLES = {"outbox_control", "outbox_nodes"}


@asynccontextmanager
async def connecting(
    postgres: PostgresBackend, outbox_postgres: Database, *, publishes: bool
) -> AsyncIterator[AsyncEngine]:
    """Make an engine whose connections have the role of a consumer."""
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    rights = RIGHTS.findall(page[page.index("| a consumer |") :])
    assert {table for _, table in rights} == TABLES | OPERATORS_TABLES
    rights = [each for each in rights if each[1] in TABLES]
    role = f"consumer_{uuid4().hex}"
    await postgres.run(f"CREATE ROLE {role}")
    if not publishes:
        rights.remove(("INSERT", "outbox"))
    for right, table in rights:
        await postgres.run(f"GRANT {right} ON {table} TO {role}")
    driver = postgres.engine.dialect.driver
    arguments = {"server_settings": {"role": role}} if driver == "asyncpg" else {"options": f"-c role={role}"}
    engine = create_async_engine(outbox_postgres.url(driver), connect_args=arguments)
    yield engine
    await engine.dispose()
    await postgres.run(f"DROP OWNED BY {role}")
    await postgres.run(f"DROP ROLE {role}")


@pytest.fixture
async def consumer(postgres: PostgresBackend, outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """A consumer whose handlers publish."""
    async with connecting(postgres, outbox_postgres, publishes=True) as engine:
        yield engine


@pytest.fixture
async def silent_consumer(postgres: PostgresBackend, outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """A consumer whose handlers publish nothing."""
    async with connecting(postgres, outbox_postgres, publishes=False) as engine:
        yield engine


async def test_a_consumer_needs_no_more(postgres: PostgresBackend, consumer: AsyncEngine) -> None:
    records, answers = Records(), list[int]()
    producer = broker_on(postgres)
    broker = OutboxBroker(
        consumer,
        outbox_table=postgres.outbox_table,
        dlq_table=postgres.dlq_table,
        shards_table=postgres.shards_table,
        logger=records.logger,
    )

    @broker.publisher("answers")
    @broker.subscriber("q", retry_strategy=NoRetry(), ordering=HashShards())
    async def handle(number: int) -> int:
        if number < 0:
            raise ValueError
        return number

    @broker.subscriber("answers")
    async def collect(number: int) -> None:
        answers.append(number)

    async with started(broker):
        await publish(producer, postgres, 1, -1)
        async with postgres.transaction() as session:
            await producer.publish(2, queue="q", session=session, key="a")
        await until(lambda: sorted(answers) == [1, 2])
        await until_empty(postgres)
        assert await broker.ping()
        await broker.stats()
    assert len(await postgres.dead_letters()) == 1
    failures = [record for record in records.records if getattr(record, "event", "").endswith(("_failed", "_lost"))]
    assert failures == []


KEYED = 5


@pytest.mark.parametrize("kind", ["one by one", "slow last", "parked", "batches", "sessions", "relay"])
async def test_keys_need_no_right_to_insert(postgres: PostgresBackend, silent_consumer: AsyncEngine, kind: str) -> None:
    """The statement that settles a key holds an INSERT only where there is something to insert."""
    records, handled = Records(), list[int]()
    broker = OutboxBroker(
        silent_consumer, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table, logger=records.logger
    )
    producer = broker_on(postgres)
    async with postgres.transaction() as session:
        await producer.publish_batch(*range(KEYED), queue="q", session=session, keys=["k"] * KEYED)
    target = Memory()
    if kind == "relay":
        async with Relay(broker, to=target, routes={"q": "there"}):
            await until_empty(postgres)
        handled = list(map(int, target.sent))
    else:
        subscribe(broker, kind, handled)
        async with started(broker):
            if kind == "parked":
                await until_parked(postgres)
            else:
                await until_empty(postgres)
    assert handled == list(range(KEYED))
    failures = [record for record in records.records if getattr(record, "event", "").endswith(("_failed", "_lost"))]
    assert failures == []


def subscribe(broker: OutboxBroker, kind: str, handled: list[int]) -> None:
    """Add a subscriber that appends what it handles."""
    if kind == "batches":

        @broker.subscriber("q", batch=True)
        async def handle_all(numbers: list[int]) -> None:
            handled.extend(numbers)

    elif kind == "sessions":

        @broker.subscriber("q")
        async def handle_in_transaction(number: int, session: OutboxSession) -> None:
            await session.execute(text("SELECT 1"))
            handled.append(number)

    else:

        @broker.subscriber("q", retry_strategy=NoRetry(), on_dead="park")
        async def handle(number: int) -> None:
            handled.append(number)
            if number == KEYED - 1:
                await asyncio.sleep(0.5 if kind == "slow last" else 0)
                if kind == "parked":
                    raise ValueError


async def until_parked(postgres: PostgresBackend) -> None:
    """Wait until only the row that failed is left, parked."""
    await until(postgres.rows, lambda rows: [row.next_attempt_epoch for row in rows] == [math.inf])


SCHEMA = "Shop's"
NAME = 'Out "box"'


@pytest.fixture
async def shop(engine: AsyncEngine) -> AsyncIterator[PostgresBackend]:
    """Tables whose names need quotes, in a schema that is on no search_path."""
    postgres = PostgresBackend(engine, schema=SCHEMA, table_name=NAME)
    await postgres.create()
    yield postgres
    await postgres.run(f"DROP SCHEMA {quoted_name(SCHEMA)} CASCADE")


@asynccontextmanager
async def with_rights(
    postgres: PostgresBackend, database: Database, *statements: str, options: str = ""
) -> AsyncIterator[PostgresBackend]:
    """Log in as a role that owns nothing, with an empty search_path, after documented grants to `app_…`."""
    role, driver = f"role_{uuid4().hex}", postgres.engine.dialect.driver
    await postgres.run(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' {options}")
    await postgres.run(f"ALTER ROLE {role} SET search_path = ''")
    tables = {name: quoted_name(f"{NAME}{name[6:]}", SCHEMA) for name in ("outbox_dlq", "outbox_shards", "outbox")}
    for statement in statements:
        mine = re.sub(r"\bapp_\w+", role, statement)
        mine = re.sub(r"\bON (outbox\w*)", lambda found: f"ON {tables[found[1]]}", mine)
        await postgres.run(re.sub(r"\bSCHEMA shop\b", lambda _: f"SCHEMA {quoted_name(SCHEMA)}", mine))
    url = make_url(database.url(driver)).set(username=role, password="secret")  # noqa: S106 - of a role that the test drops
    engine = create_async_engine(url, pool_size=20)
    try:
        yield PostgresBackend(engine, schema=SCHEMA, table_name=NAME)
    finally:
        await engine.dispose()
        await postgres.run(f"DROP OWNED BY {role}")
        await postgres.run(f"DROP ROLE {role}")


def documented() -> tuple[str, list[str]]:
    """Return the section on grants, and the statements of its blocks."""
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    section = page.split("## Least privilege")[1].split("\n## ")[0]
    blocks = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    return section, [each.strip() for block in blocks for each in block.split(";") if each.strip()]


async def test_a_producer_needs_no_more(shop: PostgresBackend, outbox_postgres: Database) -> None:
    _, statements = documented()
    producing = [each for each in statements if "app_producer" in each]
    async with with_rights(shop, outbox_postgres, *producing) as mine:
        broker = broker_on(mine, dlq_table=None, shards_table=None)
        async with started(broker), mine.transaction() as session:
            await broker.publish(1, queue="q", session=session)
            await broker.publish(2, queue="q", session=session, key="k")
            await broker.publish_batch(3, 4, queue="q", session=session)
            await broker.publish_batch(5, 6, queue="q", session=session, keys=["k", None])
            assert await broker.publish(7, queue="q", session=session, timer_id="t", activate_in=timedelta(hours=1))
            assert await broker.publish(8, queue="q", session=session, timer_id="t") is None
            assert await broker.ping()
            await broker.validate_schema()
        for refused in ("SELECT payload FROM {}", "UPDATE {} SET queue = 'x'", "DELETE FROM {}"):
            with pytest.raises(ProgrammingError, match="permission denied"):
                await mine.run(refused.format(mine.table))
    assert [row.payload for row in await shop.rows()] == [b"%d" % number for number in range(1, 8)]


@pytest.mark.parametrize("options", ["", "NOINHERIT"], ids=["inherits", "inherits nothing"])
async def test_an_operator_needs_what_a_consumer_needs(
    shop: PostgresBackend, outbox_postgres: Database, options: str
) -> None:
    section, statements = documented()
    documented_rights = [each for each in RIGHTS.findall(section) if each[1] in TABLES]
    rights = [f"GRANT {right} ON {table} TO app_consumer" for right, table in documented_rights]
    rights = [each for each in rights if not each.startswith("GRANT INSERT ON outbox ")]
    usage = [each.replace("app_producer", "app_consumer") for each in statements if "USAGE" in each]
    producer = broker_on(shop)
    async with shop.transaction() as session:
        await producer.publish_batch(*range(3), queue="q", session=session, keys=["k"] * 3)
        await producer.publish(3, queue="q", session=session, timer_id="t", activate_in=timedelta(hours=1))
    async with with_rights(shop, outbox_postgres, *usage, *rights, options=options) as mine:
        broker = broker_on(mine)
        pulled = broker.subscriber("q")
        async with started(broker), mine.transaction() as session:
            key: Any = {"queue": "q", "key": "k", "session": session}
            assert await broker.park_key(**key, reason="by hand")
            assert [each.key for each in await broker.fetch_keys(session=session)] == ["k"]
            assert await broker.release_key(**key)
            assert await broker.retry_key(**key)
            assert await broker.skip_key(**key, reason="not wanted")
            assert await broker.cancel_timer(queue="q", timer_id="t", session=session)
            assert len(await broker.fetch_unprocessed(session=session)) == 2
        [counted] = await broker.stats()
        assert (counted.ready, counted.dead) == (2, 1)
        await broker.validate_schema(check_autovacuum=True)
        async with started(broker):
            message = await pulled.get_one(timeout=30.0)
            assert message is not None
            await message.ack()
    assert len(await shop.rows()) == 1
