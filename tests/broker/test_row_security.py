"""Row-level security: a role without a policy finds no rows, which is reported; the documented policies suffice."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox import HashShards, NoRetry
from faststream_outbox.embedded import Database
from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty

TABLES = ("outbox", "outbox_dlq", "outbox_shards")
PRODUCER = ("INSERT, SELECT ON outbox",)
CONSUMER = (
    "SELECT, INSERT, UPDATE, DELETE ON outbox",
    "INSERT, SELECT ON outbox_dlq",
    "SELECT, INSERT, UPDATE ON outbox_shards",
)

MakeRole = Callable[..., Awaitable[PostgresBackend]]


@pytest.fixture
async def as_role(postgres: PostgresBackend, outbox_postgres: Database) -> AsyncIterator[MakeRole]:
    """Make a role with some grants, and an outbox on connections of that role."""
    roles, engines = list[str](), list[AsyncEngine]()
    driver = postgres.engine.dialect.driver

    async def make(role: str, *grants: str, options: str = "") -> PostgresBackend:
        roles.append(role)
        await postgres.run(f"CREATE ROLE {role} {options}")
        for grant in grants:
            await postgres.run(f"GRANT {grant} TO {role}")
        arguments = {"server_settings": {"role": role}} if driver == "asyncpg" else {"options": f"-c role={role}"}
        engines.append(create_async_engine(outbox_postgres.url(driver), connect_args=arguments))
        return PostgresBackend(engines[-1])

    yield make
    for engine in engines:
        await engine.dispose()
    for role in roles:
        await postgres.run(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
        await postgres.run(f"DROP OWNED BY {role}")
        await postgres.run(f"DROP ROLE {role}")


@pytest.fixture
def role() -> str:
    return f"consumer_{uuid4().hex}"


async def secure(postgres: PostgresBackend, *tables: str) -> None:
    for table in tables or TABLES:
        await postgres.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")


async def test_a_consumer_without_policies_is_told_which_to_create(
    postgres: PostgresBackend, as_role: MakeRole, role: str
) -> None:
    consumer = await as_role(role, *CONSUMER)
    await secure(postgres)
    producer, records, handled = broker_on(postgres), Records(), list[int]()
    await publish(producer, postgres, 1)
    broker = broker_on(consumer, records)

    @broker.subscriber("q", retry_strategy=NoRetry())
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        unreadable = [record.getMessage() for record in records.named("outbox_unreadable")]
        assert len(unreadable) == len(TABLES)
        assert all(role in message and "CREATE POLICY" in message for message in unreadable)
        assert not await broker.ping()
        with pytest.raises(RuntimeError, match="row-level security is on") as raised:
            await broker.validate_schema()
        mended = [line for line in str(raised.value).splitlines() if line.startswith("CREATE POLICY")]
        assert {table for table in TABLES if any(f'"{table}" FOR' in line for line in mended)} == set(TABLES)
        assert role in str(raised.value)
        for line in mended:
            await postgres.run(line)
        await broker.validate_schema()
        await until(lambda: handled)
        await until(broker.ping)
        await until_empty(postgres)


HIDDEN: dict[str, tuple[str, ...]] = {
    "the owner under FORCE": ("ALTER TABLE outbox OWNER TO {role}", "ALTER TABLE outbox FORCE ROW LEVEL SECURITY"),
    "a policy of another role": ("CREATE POLICY p ON outbox TO CURRENT_USER USING (true)",),
    "a policy for another command": ("CREATE POLICY p ON outbox FOR SELECT TO {role} USING (true)",),
    "a policy that only restricts": ("CREATE POLICY p ON outbox AS RESTRICTIVE USING (true)",),
}
SEEN: dict[str, tuple[str, ...]] = {
    "no row-level security": ("ALTER TABLE outbox DISABLE ROW LEVEL SECURITY",),
    "the owner": ("ALTER TABLE outbox OWNER TO {role}",),
    "a superuser under FORCE": ("ALTER ROLE {role} SUPERUSER", "ALTER TABLE outbox FORCE ROW LEVEL SECURITY"),
    "BYPASSRLS": ("ALTER ROLE {role} BYPASSRLS",),
    "a policy for all roles": ("CREATE POLICY p ON outbox USING (true)",),
    "a policy of a role that it is in": (
        "CREATE ROLE {role}_s ROLE {role}",
        "CREATE POLICY p ON outbox TO {role}_s USING (true)",
    ),
    "a policy for each command": (
        "CREATE POLICY r ON outbox FOR SELECT TO {role} USING (true)",
        "CREATE POLICY a ON outbox FOR INSERT TO {role} WITH CHECK (true)",
        "CREATE POLICY w ON outbox FOR UPDATE TO {role} USING (true)",
        "CREATE POLICY d ON outbox FOR DELETE TO {role} USING (queue <> 'secret')",
    ),
    "a command that was not granted": (
        "REVOKE UPDATE, DELETE ON outbox FROM {role}",
        "CREATE POLICY r ON outbox FOR SELECT TO {role} USING (true)",
        "CREATE POLICY a ON outbox FOR INSERT TO {role} WITH CHECK (true)",
    ),
}


@pytest.mark.parametrize(
    ("statements", "hidden"),
    [*((each, True) for each in HIDDEN.values()), *((each, False) for each in SEEN.values())],
    ids=[*HIDDEN, *SEEN],
)
async def test_only_roles_without_a_policy_are_reported(
    postgres: PostgresBackend, as_role: MakeRole, role: str, statements: tuple[str, ...], *, hidden: bool
) -> None:
    consumer = await as_role(role, *CONSUMER)
    await secure(postgres, "outbox")
    for statement in statements:
        await postgres.run(statement.format(role=role))
    broker = broker_on(consumer)
    try:
        assert await broker.ping() is not hidden
        assert bool(await consumer.store.look()) is hidden
        if hidden:
            with pytest.raises(RuntimeError, match=role):
                await broker.validate_schema()
        else:
            await broker.validate_schema()
    finally:
        await postgres.run("DROP POLICY IF EXISTS p ON outbox")
        await postgres.run(f"DROP ROLE IF EXISTS {role}_s")


async def test_the_documented_policies_suffice(postgres: PostgresBackend, as_role: MakeRole) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    [block] = re.findall(r"```sql\n(.*?)```", page.split("## Row-level security")[1].split("\n## ")[0], re.DOTALL)
    marker = f"_{uuid4().hex}"
    producing = await as_role(f"app_producer{marker}", *PRODUCER)
    consuming = await as_role(f"app_consumer{marker}", *CONSUMER)
    relaying = await as_role(f"app_relay{marker}", *CONSUMER)
    for statement in filter(None, map(str.strip, block.split(";"))):
        await postgres.run(re.sub(r"\b(app_\w+)", rf"\1{marker}", statement))
    handled = list[int]()
    producer, consumer = broker_on(producing, dlq_table=None, shards_table=None), broker_on(consuming)

    @consumer.publisher("answers")
    @consumer.subscriber("q", retry_strategy=NoRetry(), ordering=HashShards())
    async def handle(number: int) -> int:
        if number < 0:
            raise ValueError
        return number

    @consumer.subscriber("answers")
    async def collect(number: int) -> None:
        handled.append(number)

    for backend in (producing, consuming, relaying):
        assert await broker_on(backend, dlq_table=None, shards_table=None).ping()
    async with started(consumer):
        await publish(producer, producing, 1, -1)
        async with producing.transaction() as session:
            for number in (2, 3):
                await producer.publish(number, queue="q", session=session, key="a")
        await until(lambda: sorted(handled) == [1, 2, 3])
        await until_empty(postgres)
        assert await consumer.ping()
        await consumer.validate_schema()
    assert len(await postgres.dead_letters()) == 1
    refused = Memory(lambda body: LookupError("refused") if body == b"5" else None)
    async with Relay(broker_on(relaying), to=refused, routes={"q": "x"}, retry_strategy=NoRetry()):
        await publish(producer, producing, 4, 5)
        async with producing.transaction() as session:
            for number in (6, 7):
                await producer.publish(number, queue="q", session=session, key="a")
        await until_empty(postgres)
    assert sorted(refused.sent) == [b"4", b"6", b"7"]
    assert len(await postgres.dead_letters()) == 2
