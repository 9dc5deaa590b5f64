"""The functions that publish: the rows, locks and notifications of Python's statements, and its checks."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from faststream_outbox import make_outbox_table, publish_functions_ddl
from faststream_outbox.embedded import Database
from faststream_outbox.operations import grants_sql
from faststream_outbox.storage.schema.functions import publish_functions, read_functions
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.waiting import until

LOCKS = (
    "SELECT classid::int, objid::int FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = $1 ORDER BY 1, 2"
)
WAITING = (
    "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
    "WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"
)
Connect = Callable[[], Awaitable[Any]]


@pytest.fixture
def driver() -> str:
    """One driver: the functions are the server's."""
    return "asyncpg"


@pytest.fixture
async def connect(outbox_postgres: Database) -> AsyncIterator[Connect]:
    """Open connections that know nothing of the package."""
    opened: list[Any] = []

    async def connect() -> Any:
        opened.append(await asyncpg.connect(outbox_postgres.dsn))
        return opened[-1]

    yield connect
    for each in opened:
        await each.close()


@pytest.fixture
async def program(postgres: PostgresBackend, connect: Connect) -> Any:
    """A connection to a database that has the functions."""
    connection = await connect()
    for statement in publish_functions_ddl(postgres.outbox_table):
        await connection.execute(statement)
    return connection


async def test_a_row_is_that_of_our_own_producer(postgres: PostgresBackend, program: Any) -> None:
    headers = '{"content-type": "application/json", "a": 1}'
    row_id = await program.fetchval("SELECT outbox_publish('orders', $1::bytea, $2, 'k')", b'{"id":1}', headers)
    async with postgres.transaction() as session:
        ours = await broker_on(postgres).publish({"id": 1}, queue="orders", headers={"a": 1}, key="k", session=session)
    columns = ", ".join(sorted(set(postgres.outbox_table.columns.keys()) - {"id", "created_at", "next_attempt_at"}))
    rows = await program.fetch(f"SELECT {columns}, next_attempt_at = created_at AS due FROM outbox ORDER BY id")
    assert dict(rows[0]) == dict(rows[1])
    assert ours == row_id + 1


@pytest.mark.parametrize(
    ("payload", "stored", "headers"),
    [
        ("'a\\x'", b"a\\x", None),
        ("'ä'::text", "ä".encode(), None),
        ("'\\xff'::bytea", b"\xff", None),
        ("""'{"a": "ä"}'::jsonb""", '{"a": "ä"}'.encode(), '{"content-type": "application/json"}'),
    ],
    ids=["a literal is text", "text is UTF-8", "bytes stay as they are", "JSON is labelled"],
)
async def test_a_payload_is_text_bytes_or_json(program: Any, payload: str, stored: bytes, headers: str | None) -> None:
    await program.execute(f"SELECT outbox_publish('q', {payload})")
    kind = payload.partition("::")[2] or "text"
    await program.execute(f"SELECT outbox_publish_batch('q', ARRAY[{payload}]::{kind}[])")
    for row in await program.fetch("SELECT payload, headers FROM outbox"):
        assert (row["payload"], row["headers"]) == (stored, headers)


async def test_json_keeps_its_own_label_and_other_headers(program: Any) -> None:
    label = """{"content-type": "application/cloudevents+json", "a": "b"}"""
    await program.execute("SELECT outbox_publish('q', '1'::jsonb, $1)", label)
    assert await program.fetchval("SELECT headers = $1::jsonb FROM outbox", label)


async def test_a_batch_returns_the_ids_in_its_order(program: Any) -> None:
    keys = ["b", None, "a", "b"]
    ids = await program.fetchval(
        "SELECT outbox_publish_batch('q', $1::text[], '{\"a\": 1}', $2)", ["0", "1", "2", "3"], keys
    )
    rows = await program.fetch("SELECT id, payload, entity_key, headers FROM outbox ORDER BY id")
    assert ids == [row["id"] for row in rows]
    assert [row["payload"] for row in rows] == [b"0", b"1", b"2", b"3"]
    assert [row["entity_key"] for row in rows] == keys
    assert {row["headers"] for row in rows} == {'{"a": 1}'}
    assert await program.fetchval("SELECT outbox_publish_batch('q', '{}'::jsonb[])") == []


async def test_a_timer_waits_once_and_a_delay_is_kept(program: Any) -> None:
    timer = "SELECT outbox_publish('q', 'expire', deliver_at => now() + interval '1 hour', timer_id => 'order-1')"
    assert await program.fetchval(timer) is not None
    assert await program.fetchval(timer) is None
    later = "SELECT outbox_publish_batch('q', ARRAY['x'], deliver_at => '2040-01-01T00:00Z')"
    await program.execute(later)
    due = await program.fetch("SELECT next_attempt_at > now() + interval '59 minutes' AS later FROM outbox")
    assert [row["later"] for row in due] == [True, True]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("outbox_publish('', 'x')", "queue is empty."),
        ("outbox_publish(NULL, 'x')", "queue is empty."),
        ("outbox_publish(repeat('ä', 256), 'x')", "queue has 256 characters and the column holds 255."),
        ("outbox_publish('q', 'x', key => '')", "key is empty."),
        ("outbox_publish('q', 'x', key => repeat('k', 300))", "key has 300 characters and the column holds 255."),
        ("outbox_publish('q', 'x', timer_id => '')", "timer_id is empty."),
        ("outbox_publish('q', NULL::bytea)", "payload is NULL: a message has a body, which may be empty."),
        ("outbox_publish('q', NULL::jsonb)", "payload is NULL: a message has a body, which may be empty."),
        ("outbox_publish('q', 'x', '[1]')", "headers is a JSON array, not an object."),
        ("outbox_publish('q', '1'::jsonb, '5')", "headers is a JSON number, not an object."),
        ("""outbox_publish_batch('q', '{1}'::jsonb[], '"s"')""", "headers is a JSON string, not an object."),
        (
            """outbox_publish('q', 'x', '{"outbox-parked": 1}')""",
            "The header outbox-parked is where the outbox keeps why a key is parked.",
        ),
        ("outbox_publish('q', 'x', deliver_at => 'infinity')", "deliver_at is infinity, which stands for no instant."),
        (
            "outbox_publish('q', 'x', deliver_at => '-infinity')",
            "deliver_at is -infinity, which stands for no instant.",
        ),
        (
            "outbox_publish('q', 'x', deliver_at => '4000-01-01 00:00Z BC')",
            "deliver_at is 4000-01-01 00:00:00+00 BC, which stands for no instant.",
        ),
        (
            "outbox_publish_batch('q', ARRAY['x'], deliver_at => '0001-01-01 00:00Z')",
            "deliver_at is 0001-01-01 00:00:00+00, which stands for no instant.",
        ),
        ("outbox_publish_batch('', ARRAY['x'])", "queue is empty."),
        (
            "outbox_publish_batch('q', ARRAY['x', NULL])",
            "payloads is an array without NULL: one payload for each message.",
        ),
        (
            "outbox_publish_batch('q', NULL::jsonb[])",
            "payloads is an array without NULL: one payload for each message.",
        ),
        *(
            (
                f"outbox_publish_batch('q', {arguments})",
                "payloads and keys have one dimension: one payload and one key for each message.",
            )
            for arguments in (
                "'{{1,2},{3,4}}'::jsonb[]",
                "'{{1,2},{3,4}}'::text[]",
                "'{{1,2},{3,4}}'::bytea[]",
                "'{1,2}'::jsonb[], keys => '{{a,b}}'",
            )
        ),
        (
            "outbox_publish_batch('q', ARRAY['x'], keys => '{a,b}')",
            "keys has 2 entries for 1 messages: one each, NULL for no key.",
        ),
        ("outbox_publish_batch('q', ARRAY['x'], keys => ARRAY[''])", "A key has 0 characters: a key has 1 to 255."),
    ],
)
async def test_what_publish_refuses_is_refused(program: Any, call: str, error: str) -> None:
    await program.execute("SET timezone = 'UTC'")
    with pytest.raises(asyncpg.PostgresError) as refused:
        await program.execute(f"SELECT {call}")
    assert str(refused.value).splitlines()[0] == error
    assert isinstance(refused.value, asyncpg.InvalidParameterValueError | asyncpg.NullValueNotAllowedError)
    assert await program.fetchval("SELECT count(*) FROM outbox") == 0


async def test_the_locks_are_those_of_our_own_producers(
    postgres: PostgresBackend, program: Any, connect: Connect
) -> None:
    keys, watch = [f"k{number}" for number in range(50)], await connect()
    async with program.transaction():
        await program.execute("SELECT outbox_publish_batch('orders', $1::text[], keys => $1)", keys)
        at_once = await watch.fetch(LOCKS, program.get_server_pid())
    async with program.transaction():
        for key in keys:
            await program.execute("SELECT outbox_publish('orders', 'x', key => $1)", key)
        one_by_one = await watch.fetch(LOCKS, program.get_server_pid())
    async with postgres.transaction() as session:
        await broker_on(postgres).publish_batch(*keys, queue="orders", keys=keys, session=session)
        pid = await (await session.connection()).exec_driver_sql("SELECT pg_backend_pid()")
        ours = await watch.fetch(LOCKS, pid.scalar())
    assert len(ours) > 40
    assert at_once == one_by_one == ours


async def publish_in_sql(_: PostgresBackend, connection: Any, body: str) -> None:
    await connection.execute("SELECT outbox_publish('orders', $1::text, key => 'k')", body)


async def publish_batch_in_sql(_: PostgresBackend, connection: Any, body: str) -> None:
    await connection.execute("SELECT outbox_publish_batch('orders', ARRAY[$1]::text[], keys => ARRAY['k'])", body)


async def publish_in_python(postgres: PostgresBackend, _: Any, body: str) -> None:
    async with AsyncSession(postgres.engine) as session, session.begin():
        await broker_on(postgres).publish(body, queue="orders", key="k", session=session)


@pytest.mark.parametrize("publish_second", [publish_in_sql, publish_batch_in_sql, publish_in_python])
@pytest.mark.parametrize("publish_first", [publish_in_sql, publish_batch_in_sql])
async def test_the_ids_of_a_key_follow_the_commits_of_producers_in_sql_and_python(
    postgres: PostgresBackend, program: Any, connect: Connect, publish_first: Any, publish_second: Any
) -> None:
    async with program.transaction():
        await publish_first(postgres, program, "first")
        second = asyncio.create_task(publish_second(postgres, await connect(), "second"))
        await until(lambda: postgres.one(WAITING), lambda waiting: second.done() or waiting)
        assert not second.done()
    await second
    rows = await program.fetch("SELECT payload FROM outbox ORDER BY id")
    assert [row["payload"] for row in rows] == [b"first", b"second"]


async def test_batches_of_the_same_keys_in_other_orders_do_not_deadlock(program: Any, connect: Connect) -> None:
    keys = [f"k{number}" for number in range(40)]
    others = [await connect() for _ in range(3)]

    async def publish(connection: Any, keys: list[str]) -> None:
        for _ in range(10):
            await connection.execute("SELECT outbox_publish_batch('q', $1::text[], keys => $1)", keys)

    await asyncio.gather(
        *(publish(each, keys if number % 2 else keys[::-1]) for number, each in enumerate([program, *others]))
    )
    assert await program.fetchval("SELECT count(*) FROM outbox") == 4 * 10 * 40


async def test_a_message_notifies_the_channel_of_its_table(
    postgres: PostgresBackend, program: Any, connect: Connect
) -> None:
    heard, listener = list[tuple[str, str]](), await connect()
    await listener.add_listener("outbox_outbox", lambda _, __, channel, payload: heard.append((channel, payload)))
    async with program.transaction():
        await program.execute("SELECT outbox_publish('a', 'x', timer_id => 't')")
        await program.execute("SELECT outbox_publish_batch('b', ARRAY['x', 'y'])")
    await program.execute("SELECT outbox_publish('a', 'x', timer_id => 't')")
    await program.execute("SELECT outbox_publish('c', 'x')")
    await until(lambda: ("outbox_outbox", "c") in heard)
    assert [queue for _, queue in heard] == ["a", "b", "c"]
    assert len(await postgres.rows()) == 4


async def test_a_table_with_other_names(outbox_postgres: Database, connect: Connect) -> None:
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    postgres = PostgresBackend(engine, schema="My shop")
    await postgres.create()
    program, watch = await connect(), await connect()
    for statement in publish_functions_ddl(postgres.outbox_table):
        await program.execute(statement)
    heard = list[str]()
    await watch.add_listener("outbox_My shop_outbox", lambda _, __, ___, payload: heard.append(payload))
    async with program.transaction():
        await program.execute("""SELECT "My shop".outbox_publish('orders', 'x', key => 'k')""")
        locked = await watch.fetch(LOCKS, program.get_server_pid())
    async with postgres.transaction() as session:
        await broker_on(postgres).publish("x", queue="orders", key="k", session=session)
        pid = await (await session.connection()).exec_driver_sql("SELECT pg_backend_pid()")
        assert locked == await watch.fetch(LOCKS, pid.scalar())
    await until(lambda: "orders" in heard)
    await engine.dispose()


async def test_names_of_a_caller_are_not_found(program: Any, postgres: PostgresBackend) -> None:
    await program.execute("CREATE TEMP TABLE outbox (id bigint, queue text)")
    await program.execute("CREATE FUNCTION public.hashtextextended(text, int) RETURNS bigint LANGUAGE sql RETURN 1/0")
    await program.execute("SET search_path = public, pg_catalog")
    await program.execute("SELECT public.outbox_publish('q', 'x', key => 'k')")
    assert len(await postgres.rows()) == 1


async def test_a_producer_needs_execute_and_no_more(program: Any, postgres: PostgresBackend) -> None:
    role = "function_caller"
    async with program.transaction():  # a role belongs to the whole server
        await program.execute(f"CREATE ROLE {role}")
        await program.execute(grants_sql(role, "producer", outbox_table=postgres.outbox_table))
        await program.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="function outbox_publish"):
            async with program.transaction():
                await program.execute("SELECT outbox_publish('q', 'x')")
        await program.execute("RESET ROLE")
        with_functions = grants_sql(role, "producer", outbox_table=postgres.outbox_table, functions_schema="public")
        await program.execute(with_functions)
        await program.execute(f"SET LOCAL ROLE {role}")
        assert await program.fetchval("SELECT outbox_publish('q', 'x', key => 'k', timer_id => 't')")
        assert await program.fetchval("SELECT outbox_publish_batch('q', ARRAY['x'::jsonb])".replace("'x'", "'1'"))
        await program.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    assert len(await postgres.rows()) == 2


async def read(engine: AsyncEngine, postgres: PostgresBackend) -> list[str]:
    async with engine.connect() as connection:
        return (await connection.run_sync(read_functions, postgres.outbox_table)).outdated


async def test_functions_of_another_version_are_noticed_and_replaced(postgres: PostgresBackend, program: Any) -> None:
    assert await read(postgres.engine, postgres) == []
    first, *_, last = publish_functions(postgres.outbox_table)
    await program.execute(f"COMMENT ON FUNCTION {first.signature} IS 'ours (faststream-outbox functions 0)'")
    await program.execute(f"DROP FUNCTION {last.signature}")
    assert await read(postgres.engine, postgres) == [
        f"{first.signature} is of version 0, not 2",
        f"{last.signature} is missing",
    ]
    for statement in publish_functions_ddl(postgres.outbox_table):
        await program.execute(statement)
    assert await read(postgres.engine, postgres) == []


async def test_a_database_without_the_functions_lacks_nothing(postgres: PostgresBackend) -> None:
    assert await read(postgres.engine, postgres) == []


def test_a_name_that_postgres_would_cut_is_refused() -> None:
    table = make_outbox_table(MetaData(), "o" * 52)
    with pytest.raises(ValueError, match="The function name"):
        publish_functions_ddl(table)
    assert len(set(itertools.chain(publish_functions_ddl(make_outbox_table(MetaData()))))) == 13
