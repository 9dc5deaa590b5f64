"""What messages cost a whole broker, in counters of the server that do not wander: statements, commits, log, HOT."""

import asyncio
from collections import Counter as Counts
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import ConstantRetry, make_operations_tables
from faststream_outbox.embedded import EmbeddedPostgres
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.waiting import until

MESSAGES = 1_000
BODY = {"note": "x" * 240}
COUNTING = {"shared_preload_libraries": "pg_stat_statements", "full_page_writes": "off"}

# What was sent by others than ourselves, and the log that it wrote.
SENT = """
SELECT coalesce(sum(calls), 0)::int AS statements, coalesce(sum(wal_bytes), 0)::int AS wal
  FROM pg_stat_statements(false)
 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
TABLE = "SELECT n_tup_upd AS updates, n_tup_hot_upd AS hot, seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox'"
OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


@dataclass
class Costs:
    """What was counted meanwhile."""

    statements: int = 0
    wal: int = 0
    commits: int = 0
    updates: int = 0
    hot: int = 0
    seq_scans: int = 0


class Bounds(NamedTuple):
    """What a message may cost: of updates exactly so many, of them HOT at least such a share."""

    statements: float
    wal: float
    updates: float
    hot: float


@pytest.fixture(scope="module")
def counting_server() -> Iterator[EmbeddedPostgres]:
    """A server of its own: that of other tests counts no statements."""
    with EmbeddedPostgres(fast=True, settings=COUNTING) as server:
        yield server


class Counter:
    """Reads the counters of a database, on a connection that is not counted."""

    def __init__(self, connection: Any, backend: PostgresBackend) -> None:
        self._connection = connection
        self._backend = backend

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[Costs]:
        """Count what happens meanwhile; filled in at the end, when all connections are closed."""
        costs = Costs()
        before = await self._read()
        yield costs
        for name, value in (await self._read()).items():
            setattr(costs, name, value - before[name])

    async def fetchval(self, query: str) -> Any:
        """Run a query that is not counted."""
        return await self._connection.fetchval(query)

    async def _read(self) -> dict[str, int]:
        # The last thing that a server process does is to report what it did.
        await self._backend.engine.dispose()
        await until(lambda: self._connection.fetchval(OTHERS), lambda found: not found)
        sent, table = await self._connection.fetchrow(SENT), await self._connection.fetchrow(TABLE)
        commits = await self._connection.fetchval(COMMITS)
        return {
            "statements": sent["statements"],
            "wal": sent["wal"],
            "commits": commits,
            "updates": table["updates"],
            "hot": table["hot"],
            "seq_scans": table["seq_scan"],
        }


@pytest.fixture
async def counted(counting_server: EmbeddedPostgres, driver: str) -> AsyncIterator[tuple[PostgresBackend, Counter]]:
    database = counting_server.create_database()
    backend = PostgresBackend(create_async_engine(database.url(driver), pool_size=20))
    await backend.create()
    connection = await asyncpg.connect(database.dsn)
    await connection.execute("CREATE EXTENSION pg_stat_statements; SET pg_stat_statements.track = none")
    yield backend, Counter(connection, backend)
    await connection.close()
    await backend.engine.dispose()


async def drain(
    postgres: PostgresBackend,
    counter: Counter,
    *,
    keys: int = 0,
    failures: int = 0,
    batch: bool = False,
    **options: Any,
) -> Costs:
    """Let a broker handle what waits, with a handler that does nothing, or that fails so often for each message."""
    broker = broker_on(postgres, logger=None)
    seen: Counts[int] = Counts()
    done = asyncio.Event()

    def see(number: int) -> None:
        seen[number] += 1
        if seen.total() == MESSAGES * (failures + 1):
            done.set()
        if seen[number] <= failures:
            raise ValueError("not yet")

    if batch:

        @broker.subscriber("q", batch=True, max_records=100, **options)
        async def handle_many(bodies: list[dict[str, Any]]) -> None:
            for body in bodies:
                see(body["number"])
    else:

        @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01), **options)
        async def handle(body: dict[str, Any]) -> None:
            see(body["number"])

    bodies = [{**BODY, "number": number} for number in range(MESSAGES)]
    keyed: dict[str, Any] = {"keys": [f"k{number % keys}" for number in range(MESSAGES)]} if keys else {}
    async with postgres.transaction() as session:
        await broker.publish_batch(*bodies, queue="q", session=session, **keyed)
    async with counter.counting() as costs, started(broker):
        await done.wait()
    assert await postgres.rows() == []
    return costs


# Bounds are a little above what was counted, start and stop of a broker included. A claim writes a row's lease inside
# its page, which is HOT; a retry moves it in the index of what is due, which is not.
@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({}, Bounds(statements=0.1, wal=320, updates=1, hot=0.85)),
        ({"max_workers": 16}, Bounds(statements=0.1, wal=320, updates=1, hot=0.85)),
        ({"batch": True}, Bounds(statements=0.1, wal=320, updates=1, hot=0.85)),
        ({"keys": 200}, Bounds(statements=0.1, wal=130, updates=0.2, hot=0.85)),
        # The row that is retried keeps what it failed of: about a hundred bytes.
        ({"failures": 1}, Bounds(statements=0.15, wal=980, updates=3, hot=0.6)),
    ],
    ids=["one by one", "16 workers", "batches", "with keys", "each fails once"],
)
async def test_a_message_through_a_handler(
    counted: tuple[PostgresBackend, Counter], options: dict[str, Any], bounds: Bounds
) -> None:
    costs = await drain(*counted, **options)
    assert costs.statements <= bounds.statements * MESSAGES
    assert costs.commits <= bounds.statements * MESSAGES, "no message has a commit of its own"
    assert costs.wal <= bounds.wal * MESSAGES
    # A claim writes each row once, or the first of each key; of a key whose rows did not fit into a claim, once more.
    written = bounds.updates * MESSAGES
    assert written <= costs.updates <= (written + 5 if "keys" in options else written)
    assert costs.hot >= bounds.hot * costs.updates
    assert costs.seq_scans == 0


async def test_settling_row_by_row_is_seen_by_the_counters(counted: tuple[PostgresBackend, Counter]) -> None:
    """What is asserted above can fail."""
    costs = await drain(*counted, terminal_batch_size=1)
    assert costs.statements > MESSAGES
    assert costs.commits > MESSAGES


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_message_published_in_a_transaction_of_its_own(
    counted: tuple[PostgresBackend, Counter], key: str | None
) -> None:
    postgres, counter = counted
    broker = broker_on(postgres, logger=None)
    async with counter.counting() as costs:
        for _ in range(100):
            async with postgres.transaction() as session:
                await broker.publish(BODY, queue="q", session=session, key=key)
    assert costs.statements == 3 * 100, "BEGIN, INSERT, COMMIT"
    assert costs.wal <= 620 * 100
    assert (costs.updates, costs.seq_scans) == (0, 0)


async def test_a_thousand_messages_published_at_once(counted: tuple[PostgresBackend, Counter]) -> None:
    postgres, counter = counted
    async with counter.counting() as costs:
        await publish(broker_on(postgres, logger=None), postgres, *[BODY] * MESSAGES)
    assert costs.statements <= 5
    assert costs.wal <= 620 * MESSAGES


async def test_idle_looks_cost_no_more_with_hundreds_of_queues(counted: tuple[PostgresBackend, Counter]) -> None:
    postgres, counter = counted
    looked = list[Costs]()
    for count in (1, 400):
        broker = broker_on(postgres, logger=None)
        queues = [f"q{number}" for number in range(count)]

        @broker.subscriber(queues, min_fetch_interval=0.1, max_fetch_interval=0.1)
        async def handle(_body: Any) -> None: ...

        async with counter.counting() as costs, started(broker):
            await asyncio.sleep(2)
        looked.append(costs)
    few, many = looked
    # One statement more for each look: which of the queues have keys.
    assert many.statements <= 1.5 * few.statements + 10


async def test_a_control_table_costs_an_idle_broker_no_statement(counted: tuple[PostgresBackend, Counter]) -> None:
    """It is read in the statement that looks at the locks of nodes, once a second."""
    postgres, counter = counted
    tables = make_operations_tables(postgres.metadata)
    async with postgres.engine.begin() as connection:
        await connection.run_sync(postgres.metadata.create_all)
    ours = "dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    looks = f"SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE '%pg_locks%' AND {ours}"
    broker, handled = broker_on(postgres, logger=None, control_table=tables.control), list[int]()

    @broker.subscriber("q")
    async def handle(body: int) -> None:
        handled.append(body)

    async with started(broker):
        await publish(broker, postgres, 1)
        await until(lambda: counter.fetchval(looks), lambda calls: calls and calls >= 3)
    assert handled == [1]
    sent = await counter.fetchval(
        "SELECT array_agg(query) FROM pg_stat_statements WHERE query ~ 'outbox_control|pg_locks' "
        f"AND query !~ '^(CREATE|COMMENT)' AND {ours}"
    )
    read_alone = [query for query in sent if "pg_locks" not in query and "pg_catalog" not in query]
    assert [
        query for query in read_alone if "LIMIT" not in query
    ] == []  # one that looks at the start whether it is there
    assert [query for query in sent if "outbox_control" not in query] == []
