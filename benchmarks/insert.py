"""Publishing: a row in each transaction, and many in one; against the driver with nothing around it."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from benchmarks.measure import Spread, Usage, ratios
from benchmarks.outbox import HEADERS, QUEUE, Outbox
from benchmarks.results import Lines, Result, per_message
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.storage import NewRow

TABLE: Final = "inserts"
BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many transactions each client makes in a turn, by the number of clients; how many batches one sends."""

    transactions: dict[int, int]
    batches: int
    rounds: int
    warmup: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes({1: 5, 4: 5}, batches=1, rounds=1, warmup=0),
    "quick": Sizes({1: 100, 16: 25}, batches=5, rounds=5, warmup=1),
    "full": Sizes({1: 400, 16: 100}, batches=10, rounds=7, warmup=1),
}


class Writer(ABC):
    """One way of getting rows into the table."""

    name: str

    @abstractmethod
    async def one(self, client: int) -> None:
        """Insert one row in a transaction of its own."""

    @abstractmethod
    async def many(self, client: int) -> None:
        """Insert a batch in a transaction of its own."""


class BareWriter(Writer):
    """The driver's own connections, each statement a transaction: what there is to pay at the least."""

    name = "bare asyncpg, autocommit"

    def __init__(self, bench: Bench, connections: list[Any]) -> None:
        self._bench = bench
        self._connections = connections
        self._row = (QUEUE, bench.payload, json.dumps(HEADERS))

    async def one(self, client: int) -> None:
        """Insert one row."""
        statement = f"INSERT INTO {TABLE} (queue, payload, headers) VALUES ($1, $2, $3)"
        await self._send(self._connections[client], statement, *self._row)

    async def many(self, client: int) -> None:
        """Insert a batch through arrays."""
        statement = f"""INSERT INTO {TABLE} (queue, payload, headers)
                        SELECT * FROM unnest($1::text[], $2::bytea[], $3::jsonb[])"""
        await self._send(self._connections[client], statement, *([value] * BATCH for value in self._row))

    async def _send(self, connection: Any, statement: str, *values: Any) -> None:
        self._bench.meter.statements += 1
        await connection.execute(statement, *values)


class BareTransactionWriter(BareWriter):
    """The same between BEGIN and COMMIT, because an outbox row never comes alone."""

    name = "bare asyncpg, BEGIN and COMMIT"

    async def _send(self, connection: Any, statement: str, *values: Any) -> None:
        self._bench.meter.statements += 2
        async with connection.transaction():
            await super()._send(connection, statement, *values)


class SessionWriter(Writer):
    """An `AsyncSession` that runs a text: what a user of SQLAlchemy pays without an outbox."""

    def __init__(self, bench: Bench, engine: AsyncEngine) -> None:
        self.name = f"AsyncSession, text(…), {engine.dialect.driver}"
        self._sessions = async_sessionmaker(engine)
        self._statement = text(f"INSERT INTO {TABLE} (queue, payload, headers) VALUES (:queue, :payload, :headers)")
        self._values = {"queue": QUEUE, "payload": bench.payload, "headers": json.dumps(HEADERS)}

    async def one(self, client: int) -> None:
        """Insert one row."""
        del client
        async with self._sessions.begin() as session:
            await session.execute(self._statement, self._values)

    async def many(self, client: int) -> None:
        """Insert a batch as SQLAlchemy's executemany does."""
        del client
        async with self._sessions.begin() as session:
            await session.execute(self._statement, [self._values] * BATCH)


class StoreWriter(Writer):
    """The store, in the transaction of an `AsyncSession`."""

    def __init__(self, bench: Bench, engine: AsyncEngine) -> None:
        self.name = f"AsyncSession, store, {engine.dialect.driver}"
        self._sessions = async_sessionmaker(engine)
        self._store = Outbox(bench, engine, TABLE).store
        self._payload = bench.payload

    async def one(self, client: int) -> None:
        """Insert one row."""
        del client
        async with self._sessions.begin() as session:
            await self._store.insert(session, NewRow(QUEUE, self._payload, headers=HEADERS))

    async def many(self, client: int) -> None:
        """Insert a batch."""
        del client
        rows = [NewRow(QUEUE, self._payload, headers=HEADERS) for _ in range(BATCH)]
        async with self._sessions.begin() as session:
            await self._store.insert_many(session, rows)


async def publish(
    bench: Bench, write: Callable[[int], Awaitable[None]], *, clients: int, transactions: int, rows: int
) -> Usage:
    """Let clients write side by side into an empty table."""
    await bench.control.execute(f"TRUNCATE {TABLE}")

    async def client(number: int) -> None:
        for _ in range(transactions):
            await write(number)

    before = await bench.meter.read()
    await asyncio.gather(*(client(number) for number in range(clients)))
    usage = await bench.meter.since(before)
    written = await bench.control.fetchval(f"SELECT count(*) FROM {TABLE}")
    if written != rows:
        raise AssertionError(f"{rows} rows were to be written, {written} are there.")
    return usage


async def run(bench: Bench) -> list[Result]:
    """Let the writers take turns, at each number of clients and in batches."""
    sizes = SIZES[bench.scale]
    clients = max(sizes.transactions)
    results = []
    async with AsyncExitStack() as stack:
        connections = []
        for _ in range(clients):
            connections.append(await asyncpg.connect(bench.database.dsn))
            stack.push_async_callback(connections[-1].close)
        engines = [await stack.enter_async_context(bench.engine(driver, clients)) for driver in bench.drivers]
        outbox = Outbox(bench, engines[0], TABLE)
        await outbox.create()
        writers: list[Writer] = [BareWriter(bench, connections), BareTransactionWriter(bench, connections)]
        writers += [kind(bench, engine) for engine in engines for kind in (SessionWriter, StoreWriter)]
        for count, transactions in sizes.transactions.items():
            rows = count * transactions
            turn = partial(publish, bench, clients=count, transactions=transactions, rows=rows)
            title = f"insert, one row in a transaction, {count} client{'s' * (count > 1)}"
            results.append(await measure(bench, title, {w.name: partial(turn, w.one) for w in writers}, rows))
        rows = sizes.batches * BATCH
        turn = partial(publish, bench, clients=1, transactions=sizes.batches, rows=rows)
        title = f"insert, {BATCH:,} rows in a transaction"
        results.append(await measure(bench, title, {w.name: partial(turn, w.many) for w in writers}, rows))
        await outbox.drop()
    return results


async def measure(bench: Bench, title: str, cases: dict[str, Callable[[], Awaitable[Usage]]], rows: int) -> Result:
    """Measure one way of publishing by every writer."""
    sizes = SIZES[bench.scale]
    measured = await bench.interleave(title, cases, rounds=sizes.rounds, warmup=sizes.warmup)
    floor = [rows / usage.seconds for usage in next(iter(measured.values()))]
    lines: Lines = {}
    for case, usages in measured.items():
        rates = [rows / usage.seconds for usage in usages]
        lines[case] = {"rows/s": Spread.of(rates), "ratio": ratios(rates, floor), **per_message(usages, rows)}
    return Result(title, lines, "Ratios are to the first line. BEGIN and COMMIT count as statements.")


SCENARIO: Final = Scenario("insert", "publishing: a row in each transaction by 1 and 16 clients, and batches", run)
