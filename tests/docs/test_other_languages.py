"""The SQL for other languages, run as it is printed, by a driver that knows nothing of the package."""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import HashShards, HeadLease, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.embedded import Database
from faststream_outbox.engine.claim.idle_wait import IdleWait
from faststream_outbox.storage.postgres.statements.insert import lock_class
from faststream_outbox.storage.schema.tables import notify_channel, quoted_name
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.waiting import until, until_empty

PAGE = (Path(__file__).parents[2] / "docs" / "other-languages.md").read_text()
BLOCKS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
[WHOLE] = [block for block in BLOCKS if block.startswith("BEGIN;")]
SQL = {block.partition("\n")[0].removeprefix("-- "): block for block in BLOCKS if block.startswith("-- ")}
LOCKS = (
    "SELECT classid::int, objid::int FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = $1 ORDER BY 1, 2"
)
WAITING = (
    "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
    "WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"
)
JSON_HEADERS = '{"content-type": "application/json"}'


@pytest.fixture
def driver() -> str:
    """The driver of the consumer; the producer has its own."""
    return "asyncpg"


@pytest.fixture
async def connect(outbox_postgres: Database) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Open connections of a program in another language."""
    opened: list[Any] = []

    async def connect() -> Any:
        opened.append(await asyncpg.connect(outbox_postgres.dsn))
        return opened[-1]

    yield connect
    for each in opened:
        await each.close()


Connect = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def handled_by(postgres: PostgresBackend, **options: Any) -> AsyncIterator[list[tuple[Any, OutboxMessage]]]:
    """Run a subscriber of `orders`, and yield what its handler got."""
    broker, handled = broker_on(postgres), list[tuple[Any, OutboxMessage]]()

    @broker.subscriber("orders", **options)
    async def handle(body: Any, message: OutboxMessage) -> None:
        handled.append((body, message))

    async with started(broker):
        yield handled


async def test_the_whole_transaction_is_a_message(postgres: PostgresBackend, connect: Connect) -> None:
    program = await connect()
    await program.execute("CREATE TABLE accounts (id int, balance int)")
    await program.execute(WHOLE)
    async with postgres.transaction() as session:
        given: dict[str, Any] = {"queue": "orders", "key": "customer-7", "correlation_id": "request-42"}
        await broker_on(postgres).publish({"order_id": 1}, **given, session=session)
    columns = set(postgres.outbox_table.columns.keys()) - {"id", "created_at", "next_attempt_at", "payload"}
    listed = ", ".join(sorted(columns))
    theirs, ours = await program.fetch(f"SELECT {listed}, next_attempt_at = created_at AS due FROM outbox ORDER BY id")
    assert dict(theirs) == dict(ours)
    async with handled_by(postgres) as handled:
        await until(lambda: len(handled) == 2)
        await until_empty(postgres)
    assert [body for body, _ in handled] == [{"order_id": 1}] * 2
    assert {message.correlation_id for _, message in handled} == {"request-42"}


async def test_what_is_rolled_back_is_no_message(postgres: PostgresBackend, connect: Connect) -> None:
    program = await connect()
    await program.execute("CREATE TABLE accounts (id int, balance int)")
    await program.execute(WHOLE.replace("COMMIT", "ROLLBACK"))
    assert await postgres.rows() == []


@pytest.mark.parametrize(
    ("headers", "payload", "body"),
    [
        (JSON_HEADERS, b'{"a": 1}', {"a": 1}),
        ('{"content-type": "text/plain"}', b"5", "5"),
        (None, b"[1, 2]", [1, 2]),
        (None, b"\xff\x00", b"\xff\x00"),
    ],
    ids=["JSON", "text", "JSON without a header", "bytes without a header"],
)
async def test_a_body_is_decoded_by_its_content_type(
    postgres: PostgresBackend, connect: Connect, headers: str | None, payload: bytes, body: object
) -> None:
    program = await connect()
    row_id = await program.fetchval(SQL["insert"], "orders", None, payload, headers)
    async with handled_by(postgres) as handled:
        await until(lambda: handled)
    assert handled[0][0] == body
    assert handled[0][1].correlation_id == str(row_id)


async def insert(program: Any, body: str, *, lock: bool = True) -> None:
    if lock:
        await program.execute(SQL["lock a key"], "orders", "k")
    await program.execute(SQL["insert"], "orders", "k", json.dumps(body).encode(), JSON_HEADERS)
    await program.execute(SQL["notify"], "orders")


async def publish_in_sql(_: PostgresBackend, connect: Connect, *, lock: bool = True) -> None:
    program = await connect()
    async with program.transaction():
        await insert(program, "second", lock=lock)


async def publish_in_python(postgres: PostgresBackend, _: Connect) -> None:
    async with postgres.transaction() as session:
        await broker_on(postgres).publish("second", queue="orders", key="k", session=session)


@pytest.mark.parametrize("ordering", [HeadLease(), HashShards()], ids=["head lease", "shards"])
@pytest.mark.parametrize("publish_second", [publish_in_sql, publish_in_python])
async def test_two_producers_of_one_key_keep_its_order(
    postgres: PostgresBackend, connect: Connect, publish_second: Callable[..., Coroutine[Any, Any, None]], ordering: Any
) -> None:
    first = await connect()
    async with handled_by(postgres, ordering=ordering) as handled:
        async with first.transaction():
            await insert(first, "first")
            second = asyncio.create_task(publish_second(postgres, connect))
            await until(lambda: postgres.one(WAITING), lambda waiting: second.done() or waiting)
            assert not second.done()
        await second
        await until(lambda: len(handled) == 2)
    assert [body for body, _ in handled] == ["first", "second"]


async def test_without_the_lock_a_key_loses_its_order(postgres: PostgresBackend, connect: Connect) -> None:
    first = await connect()
    async with handled_by(postgres) as handled:
        async with first.transaction():
            await insert(first, "first", lock=False)
            await publish_in_sql(postgres, connect, lock=False)
            await until(lambda: handled)
        await until(lambda: len(handled) == 2)
    assert [body for body, _ in handled] == ["second", "first"]
    # The ids say something else than the handler has seen.
    assert int(handled[0][1].message_id) > int(handled[1][1].message_id)


async def test_the_locks_are_those_of_our_own_producers(postgres: PostgresBackend, connect: Connect) -> None:
    keys = [f"k{number}" for number in range(50)]
    program, watch = await connect(), await connect()
    async with program.transaction():
        await program.execute(SQL["lock several keys"], "orders", keys)
        at_once = await watch.fetch(LOCKS, program.get_server_pid())
    async with program.transaction():
        for key in keys:
            await program.execute(SQL["lock a key"], "orders", key)
        one_by_one = await watch.fetch(LOCKS, program.get_server_pid())
    async with postgres.transaction() as session:
        await broker_on(postgres).publish_batch(*keys, queue="orders", keys=keys, session=session)
        pid = await (await session.connection()).exec_driver_sql("SELECT pg_backend_pid()")
        ours = await watch.fetch(LOCKS, pid.scalar())
    assert len(ours) > 40
    assert at_once == one_by_one == ours


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let subscribers look for rows only when something wakes them."""

    async def wait_for_wake(self: Any, _due: float | None, *, at_most: float = 0.0) -> None:
        del at_most
        await self._woken.wait()

    monkeypatch.setattr(IdleWait, "wait", wait_for_wake)


@pytest.mark.usefixtures("no_polling")
async def test_a_notification_wakes_a_subscriber(postgres: PostgresBackend, connect: Connect) -> None:
    program = await connect()
    async with handled_by(postgres) as handled:
        for number in range(1, 4):
            await until_empty(postgres)
            # The first look may find the first row; nothing but the notification finds the others.
            async with program.transaction():
                await program.execute(SQL["insert"], "orders", None, b"%d" % number, JSON_HEADERS)
                await program.execute(SQL["notify"], "orders")
            await until(lambda: len(handled), number.__eq__)
    assert [body for body, _ in handled] == [1, 2, 3]


async def test_without_a_notification_a_look_finds_the_row(postgres: PostgresBackend, connect: Connect) -> None:
    program = await connect()
    async with handled_by(postgres, min_fetch_interval=0.05, max_fetch_interval=0.05) as handled:
        for number in range(1, 4):
            await program.execute(SQL["insert"], "orders", None, b"%d" % number, JSON_HEADERS)
            await until(lambda: len(handled), number.__eq__)


async def test_timers(postgres: PostgresBackend, connect: Connect) -> None:
    program = await connect()
    timer = ("orders", b'"expire"', JSON_HEADERS, "order-1")
    row_id = await program.fetchval(SQL["insert a timer"], *timer, 3600.0)
    assert row_id is not None
    assert await program.fetchval(SQL["insert a timer"], *timer, 7200.0) is None
    [waiting] = await postgres.rows()
    assert await program.fetchval(SQL["extend a timer"], "orders", "order-1", 60.0) is None
    assert await program.fetchval(SQL["extend a timer"], "orders", "order-1", 7200.0) == row_id
    [later] = await postgres.rows()
    assert later.next_attempt_at > waiting.next_attempt_at
    assert await program.fetchval(SQL["cancel a timer"], "orders", "order-1") == row_id
    assert await program.fetchval(SQL["cancel a timer"], "orders", "order-1") is None
    assert await program.fetchval(SQL["insert a timer"], *timer, 0.2) is not None
    async with handled_by(postgres) as handled:
        await until(lambda: handled)
    assert handled[0][0] == "expire"


async def test_a_timer_that_is_being_delivered_is_left_alone(postgres: PostgresBackend, connect: Connect) -> None:
    program = await connect()
    await program.execute(SQL["insert a timer"], "orders", b"1", JSON_HEADERS, "order-1", 0.0)
    assert len((await postgres.claim("orders")).rows) == 1
    assert await program.fetchval(SQL["extend a timer"], "orders", "order-1", 7200.0) is None
    assert await program.fetchval(SQL["cancel a timer"], "orders", "order-1") is None


async def test_the_privileges_are_enough(postgres: PostgresBackend, connect: Connect) -> None:
    program = await connect()
    role = "other_language"
    grants = re.findall(r"`(GRANT [^`]+)`", PAGE)
    assert len(grants) == 2
    async with program.transaction():  # a role belongs to the whole server
        await program.execute(f"CREATE ROLE {role}")
        for grant in grants:
            await program.execute(f"{grant} TO {role}")
        await program.execute(f"SET LOCAL ROLE {role}")
        await insert(program, "body")
        assert await program.fetchval(SQL["insert a timer"], "orders", b"1", JSON_HEADERS, "timer", 1.0)
        await program.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    assert len(await postgres.rows()) == 2


def test_numbers_and_channels_of_tables() -> None:
    rows = re.findall(r"^\| `make_outbox_table\((.*?)\)` \| `(.*?)` \| (-?\d+) \| `(.*?)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for arguments, name, number, channel in rows:
        names = {"make": make_outbox_table, "metadata": MetaData()}
        table = eval(f"make({arguments})", names)  # noqa: S307 - our own documentation
        assert name == quoted_name(table.name, table.schema)
        assert int(number) == lock_class(name)
        assert channel == notify_channel(table.name, table.schema)


def test_the_number_in_python() -> None:
    [expression] = re.findall(r"^\| Python \| `(.*?)` \|$", PAGE, re.MULTILINE)
    assert eval(expression, {"zlib": zlib}) == lock_class('"outbox"')  # noqa: S307 - our own documentation


@pytest.mark.usefixtures("no_polling")
async def test_a_table_with_a_schema(outbox_postgres: Database, connect: Connect) -> None:
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    postgres = PostgresBackend(engine, schema="shop")
    await postgres.create()
    program = await connect()

    def of_the_schema(statement: str) -> str:
        renamed = statement.replace("INTO outbox ", "INTO shop.outbox ").replace("outbox_outbox", "outbox_shop_outbox")
        return renamed.replace(str(lock_class('"outbox"')), str(lock_class('"shop"."outbox"')))

    async with handled_by(postgres) as handled:
        for number in range(1, 4):
            await until_empty(postgres)
            async with program.transaction():
                await program.execute(of_the_schema(SQL["lock a key"]), "orders", "k")
                await program.execute(of_the_schema(SQL["insert"]), "orders", "k", b"%d" % number, JSON_HEADERS)
                await program.execute(of_the_schema(SQL["notify"]), "orders")
            await until(lambda: len(handled), number.__eq__)
        async with program.transaction():
            await program.execute(of_the_schema(SQL["lock a key"]), "orders", "k")
            second = asyncio.create_task(publish_in_python(postgres, connect))
            await until(lambda: postgres.one(WAITING), lambda waiting: second.done() or waiting)
            assert not second.done()
        await second
    assert [body for body, _ in handled][:3] == [1, 2, 3]
    await engine.dispose()
