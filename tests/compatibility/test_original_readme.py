"""The snippets of the document that this project was created from, run as they were printed."""

import ast
import datetime as dt
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import OutboxBroker
from faststream_outbox.embedded import Database
from faststream_outbox.testing import TestOutboxBroker
from tests.waiting import until

URL = "postgresql+asyncpg://localhost/app"

QUICKSTART = """
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from faststream import FastStream
from faststream_outbox import OutboxBroker, make_outbox_table

metadata = MetaData()
outbox_table = make_outbox_table(metadata, table_name="outbox")

engine = create_async_engine("postgresql+asyncpg://localhost/app")
broker = OutboxBroker(engine, outbox_table=outbox_table)
app = FastStream(broker)

@broker.subscriber("orders", max_workers=4)
async def handle(order_id: int) -> None:
    print(f"order {order_id}")
"""

PRODUCER = """
# Producer side — share the caller's open transaction:
session_factory = async_sessionmaker(engine, expire_on_commit=False)
async with session_factory() as session, session.begin():
    session.add(Order(id=1))
    await broker.publish(1, queue="orders", session=session)
"""

SLOW_AND_FAST = """
@broker.subscriber("slow_q", lease_ttl_seconds=600)   # 10 minutes
async def heavy_job(msg): ...

@broker.subscriber("fast_q", lease_ttl_seconds=30)
async def quick_job(msg): ...
"""

TIMERS = """
import datetime as dt

# Fire 30 seconds from now, deduplicated by timer_id:
await broker.publish(
    {"order_id": 1},
    queue="orders",
    session=session,
    activate_in=dt.timedelta(seconds=30),
    timer_id=f"order-confirm-{order.id}",
)

# Fire at a specific UTC instant:
await broker.publish(
    {"x": 1}, queue="orders", session=session,
    activate_at=dt.datetime(2026, 6, 1, 9, tzinfo=dt.UTC),
)

# Cancel before it fires (no-op if the row is already in flight):
await broker.cancel_timer(queue="orders", timer_id="order-confirm-42", session=session)
"""

TESTING = """
from faststream_outbox.testing import TestOutboxBroker

async def test_handler() -> None:
    received: list[int] = []

    @broker.subscriber("orders")
    async def handle(order_id: int) -> None:
        received.append(order_id)

    async with TestOutboxBroker(broker):
        await broker.publish(1, queue="orders")
        # Handler has already run.
    assert received == [1]
"""

LOOPS = """
async with TestOutboxBroker(broker, run_loops=True):
    ...  # use feed() / _wait_until to drive the real loops
"""

VALIDATION = """
await broker.validate_schema()  # raises if the live table is missing what the broker needs
"""

RETRIES = """
from faststream_outbox import ExponentialRetry, ConstantRetry, LinearRetry, NoRetry
from tests.waiting import until

@broker.subscriber(
    "orders",
    retry_strategy=ExponentialRetry(
        initial_delay_seconds=1.0,
        max_delay_seconds=300.0,
        max_attempts=5,
        jitter_factor=0.5,
    ),
)
async def handle(order_id: int) -> None: ...

@broker.subscriber("audit", retry_strategy=NoRetry())  # opt out of retries
async def handle_audit(payload: dict) -> None: ...
"""

TRANSIENT_ONLY = """
class TransientOnly(ExponentialRetry):
    def get_next_attempt_at(self, *, exception=None, **kw):
        if exception and not isinstance(exception, TransientError):
            return None
        return super().get_next_attempt_at(exception=exception, **kw)
"""


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Reader:
    """Types the snippets into one session, as somebody who reads the document would."""

    def __init__(self, database: Database, file: Path) -> None:
        self.names: dict[str, Any] = {}
        self._file = file
        self._url = database.url("asyncpg")

    async def type(self, snippet: str) -> None:
        source = snippet.replace(URL, self._url)
        self._file.write_text(source)  # FastStream's test brokers read the code that uses them
        code = compile(source, self._file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)  # noqa: S307 - the snippets above
        if inspect.iscoroutine(result):
            await result

    @property
    def broker(self) -> OutboxBroker:
        broker: OutboxBroker = self.names["broker"]
        return broker

    async def migrate(self) -> None:
        async with self.names["engine"].begin() as connection:
            await connection.run_sync(self.names["metadata"].create_all)
            await connection.run_sync(Base.metadata.create_all)


@pytest.fixture
def reader(outbox_postgres: Database, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(outbox_postgres, tmp_path / "snippet.py")
    yield reader
    if "engine" in reader.names:
        reader.names["engine"].sync_engine.dispose(close=False)


async def test_the_order_and_its_message_are_delivered(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    await reader.type(QUICKSTART)
    await reader.migrate()
    reader.names["Order"] = Order
    async with reader.broker:
        await reader.broker.start()
        await reader.type(PRODUCER)
        await until(lambda: rows(reader), lambda found: not found)
    assert "order 1" in capsys.readouterr().out
    async with reader.names["engine"].connect() as connection:
        assert (await connection.execute(select(Order.id))).scalars().all() == [1]
    await reader.names["engine"].dispose()


async def rows(reader: Reader) -> list[Any]:
    async with reader.names["engine"].connect() as connection:
        return await reader.broker.fetch_unprocessed(session=connection)


async def test_timers_wait_are_unique_and_can_be_cancelled(reader: Reader) -> None:
    await reader.type(QUICKSTART)
    await reader.migrate()
    engine: AsyncEngine = reader.names["engine"]
    async with async_sessionmaker(engine)() as session, session.begin():
        reader.names |= {"session": session, "order": Order(id=42)}
        await reader.type(TIMERS)
        [instant] = await reader.broker.fetch_unprocessed(session=session)
        assert instant.next_attempt_at == dt.datetime(2026, 6, 1, 9, tzinfo=dt.UTC)
        await reader.type(TIMERS.split("# Fire at", maxsplit=1)[0])
        assert len(await reader.broker.fetch_unprocessed(session=session)) == 2
        await reader.type(TIMERS.split("# Fire at", maxsplit=1)[0])
        assert len(await reader.broker.fetch_unprocessed(session=session)) == 2
    await engine.dispose()


async def test_the_testing_snippets(reader: Reader) -> None:
    await reader.type(QUICKSTART)
    reader.names["broker"] = OutboxBroker(reader.names["engine"], outbox_table=reader.names["outbox_table"])
    await reader.type(TESTING)
    await reader.names["test_handler"]()
    await reader.type(LOOPS)
    async with TestOutboxBroker(reader.broker):
        await reader.broker.publish(1, queue="nobody", activate_in=dt.timedelta(hours=1))
        [row] = reader.broker.fake_client.rows
        assert row.next_attempt_at > dt.datetime.now(dt.UTC) + dt.timedelta(minutes=59)


async def test_the_schema_is_validated(reader: Reader) -> None:
    await reader.type(QUICKSTART)
    await reader.migrate()
    await reader.type(VALIDATION)
    async with reader.names["engine"].begin() as connection:
        await connection.execute(text("ALTER TABLE outbox DROP COLUMN timer_id"))
    with pytest.raises(RuntimeError, match="timer_id"):
        await reader.type(VALIDATION)
    await reader.names["engine"].dispose()


async def test_the_registration_snippets(reader: Reader) -> None:
    await reader.type(QUICKSTART)
    await reader.type(SLOW_AND_FAST)
    reader.names["broker"] = OutboxBroker(reader.names["engine"], outbox_table=reader.names["outbox_table"])
    await reader.type(RETRIES)

    class TransientError(Exception):
        pass

    reader.names["TransientError"] = TransientError
    await reader.type(TRANSIENT_ONLY)
    broker = OutboxBroker(reader.names["engine"], outbox_table=reader.names["outbox_table"])
    strategy = reader.names["TransientOnly"](initial_delay_seconds=0.01)
    failures: list[Exception] = [TransientError(), ValueError()]

    @broker.subscriber("transient", retry_strategy=strategy)
    async def fail(_body: bytes) -> None:
        raise failures.pop(0)

    async with TestOutboxBroker(broker, run_loops=True) as test_broker:
        client = broker.fake_client
        await test_broker.publish(b"", queue="transient")
        await until(lambda: not client.rows)
    assert not failures
