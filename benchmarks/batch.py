"""Handlers that take many messages in a call, and handlers with a transaction, beside what one would write by hand."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from benchmarks.aims import BATCH_RATE, BATCH_WAL
from benchmarks.bare import BATCH, USUAL_TABLE, BareLoop, Way
from benchmarks.gate import Gate
from benchmarks.measure import PATIENCE, Spread, Usage, ratios
from benchmarks.outbox import CountingExecutor
from benchmarks.results import Lines, Result, Target, per_message
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxSession
from faststream_outbox.storage import PostgresStore, StoreLane
from faststream_outbox.storage.postgres.drivers import open_executor

TABLE: Final = "batch"
EFFECTS: Final = "batch_effects"
QUEUE: Final = "orders"
PAYLOAD_BYTES: Final = 256
# Rows are inserted so many at a time.
_FILLED_AT_ONCE: Final = 5_000

Order = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The backlog that is drained, the one whose messages have a transaction each, how often, and in which ways."""

    messages: int
    transactions: int
    rounds: int
    # Whether all ways by hand, single messages and transactions are measured too, or only what P2 compares.
    all_ways: bool = True


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(messages=1_000, transactions=50, rounds=1),
    "quick": Sizes(messages=20_000, transactions=0, rounds=3, all_ways=False),
    "full": Sizes(messages=20_000, transactions=2_000, rounds=7),
}


class CountingStore(PostgresStore):
    """A store whose lanes' statements are counted; those through SQLAlchemy are counted by the engine."""

    def __init__(self, bench: Bench, *args: Any) -> None:
        super().__init__(*args)
        self._bench = bench

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        """Open a lane."""
        assert self.engine is not None
        async with open_executor(self.engine) as executor:
            yield self.lane(CountingExecutor(executor, self._bench.meter))


class Service:
    """A table with a backlog, and brokers that drain it."""

    def __init__(self, bench: Bench, engine: AsyncEngine) -> None:
        self._bench = bench
        self._engine = engine
        self._metadata = MetaData()
        self._table = make_outbox_table(self._metadata, TABLE)
        self._sessions = async_sessionmaker(engine)
        self._handled = 0
        self._expected = 0
        self._done = asyncio.Event()

    def broker(self, *, apply_types: bool = True) -> OutboxBroker:
        """Make a broker that logs nothing."""
        broker = OutboxBroker(self._engine, outbox_table=self._table, logger=None, apply_types=apply_types)
        broker.client.store = CountingStore(self._bench, self._engine, self._table)
        return broker

    async def fill(self, count: int) -> None:
        """Create the table anew, with a backlog."""
        async with self._engine.begin() as connection:
            await connection.run_sync(self._metadata.drop_all)
            await connection.run_sync(self._metadata.create_all)
        broker, orders = self.broker(), [order(number) for number in range(count)]
        for start in range(0, count, _FILLED_AT_ONCE):
            async with self._sessions.begin() as session:
                await broker.publish_batch(*orders[start : start + _FILLED_AT_ONCE], queue=QUEUE, session=session)
        await self._bench.control.execute(f"ANALYZE {TABLE}")

    async def drain(self, count: int, register: Callable[["Service"], OutboxBroker]) -> Usage:
        """Fill the table, and tell what a broker used up, from its first claim until it has settled all and stopped."""
        await self.fill(count)
        self._handled, self._expected = 0, count
        self._done.clear()
        broker = register(self)
        async with self._engine.connect(), self._engine.connect():
            pass  # as the hand-written loops are not measured while they connect
        try:
            async with Gate(self._bench.control, TABLE) as gate:
                await broker.start()
                await gate.wait_for(1)
                before = await self._bench.meter.read()
            async with asyncio.timeout(PATIENCE):
                await self._done.wait()
        finally:
            await broker.stop()
        usage = await self._bench.meter.since(before)
        await self._check_empty()
        return usage

    async def drain_bare(self, count: int, loop: Callable[[], Awaitable[Usage]]) -> Usage:
        """Do the same with a loop that was written by hand."""
        await self.fill(count)
        usage = await loop()
        await self._check_empty()
        return usage

    def handled(self, count: int) -> None:
        """Record this many messages."""
        self._handled += count
        if self._handled == self._expected:
            self._done.set()

    @property
    def sessions(self) -> async_sessionmaker[Any]:
        """What makes sessions that the outbox knows nothing of."""
        return self._sessions

    async def _check_empty(self) -> None:
        if left := await self._bench.control.fetchval(f"SELECT count(*) FROM {TABLE}"):
            raise AssertionError(f"{left} rows were not settled.")


def order(number: int) -> Order:
    """Make a message that is so many bytes long as JSON."""
    body = {"id": number, "customer": "Ada Lovelace", "paid": True, "total": 99.5, "note": ""}
    return {**body, "note": "x" * (PAYLOAD_BYTES - len(json.dumps(body)))}


def one_by_one(service: Service) -> OutboxBroker:
    """Take a message in each call."""
    broker = service.broker()

    @broker.subscriber(QUEUE)
    async def handle(_: Order) -> None:
        service.handled(1)

    return broker


def many(service: Service, *, records: int, apply_types: bool) -> OutboxBroker:
    """Take many messages in each call."""
    broker = service.broker(apply_types=apply_types)

    @broker.subscriber(QUEUE, batch=True, max_records=records)
    async def handle(orders: list[Order]) -> None:
        service.handled(len(orders))

    return broker


_EFFECT: Final = text(f"INSERT INTO {EFFECTS} SELECT unnest(CAST(:ids AS bigint[]))")


def one_by_one_in_own_transaction(service: Service) -> OutboxBroker:
    """Write in a transaction that the outbox knows nothing of: a crash in between writes twice."""
    broker = service.broker()

    @broker.subscriber(QUEUE)
    async def handle(order: Order) -> None:
        async with service.sessions.begin() as session:
            await session.execute(_EFFECT, {"ids": [order["id"]]})
        service.handled(1)

    return broker


def one_by_one_in_transaction(service: Service) -> OutboxBroker:
    """Write once, in the transaction that deletes the message."""
    broker = service.broker()

    @broker.subscriber(QUEUE)
    async def handle(order: Order, session: OutboxSession) -> None:
        await session.execute(_EFFECT, {"ids": [order["id"]]})
        service.handled(1)

    return broker


def many_in_transaction(service: Service, *, records: int) -> OutboxBroker:
    """Write once, in the transaction that deletes all messages of a call."""
    broker = service.broker()

    @broker.subscriber(QUEUE, batch=True, max_records=records)
    async def handle(orders: list[Order], session: OutboxSession) -> None:
        await session.execute(_EFFECT, {"ids": [order["id"] for order in orders]})
        service.handled(len(orders))

    return broker


async def run(bench: Bench) -> list[Result]:
    """Drain through each driver, without transactions and, where there is time, with them."""
    results = []
    await bench.control.execute(f"CREATE TABLE {EFFECTS} (number bigint)")
    for driver in bench.drivers:
        async with bench.engine(driver, connections=8) as engine:
            service = Service(bench, engine)
            results.append(await _draining(bench, driver, service))
            if SIZES[bench.scale].all_ways:
                results.append(await _transactions(bench, driver, service))
    await bench.control.execute(f"DROP TABLE {EFFECTS}")
    return results


DESIGN: Final = "by hand, the lease design"
WHOLE: Final = "by hand, on our table, claims beside deletes"
FLOOR: Final = "by hand, the same, id and body only, not decoded"


async def _draining(bench: Bench, driver: str, service: Service) -> Result:
    sizes = SIZES[bench.scale]
    bare = partial(service.drain_bare, sizes.messages)
    ours = partial(service.drain, sizes.messages)
    whole, decoded, least = Way(whole_rows=True, decode=True), Way(decode=True), Way()
    cases: dict[str, Callable[[], Awaitable[Usage]]] = {
        DESIGN: partial(_drain_usual, bench, service, sizes.messages),
        WHOLE: partial(bare, BareLoop(bench, TABLE, QUEUE, whole).side_by_side),
        "by hand, the same, id and body only": partial(bare, BareLoop(bench, TABLE, QUEUE, decoded).side_by_side),
        FLOOR: partial(bare, BareLoop(bench, TABLE, QUEUE, least).side_by_side),
        "one message a call": partial(ours, one_by_one),
    }
    if not sizes.all_ways:
        cases = {name: cases[name] for name in (DESIGN, WHOLE, FLOOR)}
    for records in (100, BATCH):
        for apply_types in (True, False) if sizes.all_ways else (True,):
            name = f"{records} messages a call{'' if apply_types else ', apply_types=False'}"
            cases[name] = partial(ours, partial(many, records=records, apply_types=apply_types))
    measured = await bench.interleave(f"draining, {driver}", cases, rounds=sizes.rounds)
    rates = {case: [sizes.messages / usage.seconds for usage in usages] for case, usages in measured.items()}
    lines: Lines = {}
    for case, usages in measured.items():
        lines[case] = {
            "msg/s": Spread.of(rates[case]),
            "to the design": ratios(rates[case], rates[DESIGN]),
            "to our table": ratios(rates[case], rates[WHOLE]),
            "to the least": ratios(rates[case], rates[FLOOR]),
            **per_message(usages, sizes.messages),
        }
    note = (
        "By hand is a loop on bare asyncpg, 500 rows at a time. The lease design is a table whose free and leased "
        "rows have an index each; a loop claims whole rows from it, decodes their bodies, and deletes each under its "
        "token, in turn. The same on our table claims on one connection while it deletes on another, and at the least "
        "asks for id, body and headers only, and looks at none of them. Ratios are to these three. A broker is "
        "measured from its first claim to the end of its stop."
    )
    title = f"draining {sizes.messages:,} JSON messages of {PAYLOAD_BYTES} bytes, {driver}"
    return Result(title, lines, note, _targets(driver, lines))


def _targets(driver: str, lines: Lines) -> list[Target]:
    targets = []
    for records in (100, BATCH):
        case = f"{records} messages a call"
        medians = {column: value.median for column, value in lines[case].items() if isinstance(value, Spread)}
        for column, aim in {"to the design": BATCH_RATE, "WAL B": BATCH_WAL}.items():
            targets.append(aim.target(f"{driver}, {case}: {column}", medians[column]))
    return targets


async def _drain_usual(bench: Bench, service: Service, count: int) -> Usage:
    table = f"{TABLE}_usual"
    await service.fill(count)
    await bench.control.execute(f"DROP TABLE IF EXISTS {table}")
    await bench.control.execute(USUAL_TABLE.format(table=table))
    await bench.control.execute(
        f"INSERT INTO {table} (queue, payload, headers) SELECT queue, payload, headers FROM {TABLE} ORDER BY id"
    )
    await bench.control.execute(f"ANALYZE {table}")
    usage = await BareLoop(bench, table, QUEUE, Way(usual_table=True, whole_rows=True, decode=True)).in_turn()
    if await bench.control.fetchval(f"SELECT count(*) FROM {table}"):
        raise AssertionError("Rows were not settled.")
    await bench.control.execute(f"DROP TABLE {table}")
    return usage


async def _transactions(bench: Bench, driver: str, service: Service) -> Result:
    sizes = SIZES[bench.scale]
    registered: dict[str, tuple[int, Callable[[Service], OutboxBroker]]] = {
        "one message a call, a transaction of its own": (sizes.transactions, one_by_one_in_own_transaction),
        "one message a call, OutboxSession": (sizes.transactions, one_by_one_in_transaction),
        f"{BATCH} messages a call, OutboxSession": (sizes.messages, partial(many_in_transaction, records=BATCH)),
    }
    cases = {name: partial(service.drain, *which) for name, which in registered.items()}
    measured = await bench.interleave(f"transactions, {driver}", cases, rounds=sizes.rounds)
    rates = {case: [registered[case][0] / usage.seconds for usage in usages] for case, usages in measured.items()}
    first = rates[next(iter(rates))]
    lines: Lines = {}
    for case, usages in measured.items():
        lines[case] = {
            "msg/s": Spread.of(rates[case]),
            "ratio": ratios(rates[case], first),
            **per_message(usages, registered[case][0]),
        }
    note = (
        "Each message leaves a row in another table: by an INSERT of its own, or one for all of a call. With "
        "OutboxSession the message is deleted in the same transaction. Ratios are to the first line."
    )
    return Result(f"handlers with a transaction, {driver}", lines, note)


SCENARIO: Final = Scenario("batch", "handlers with batches and with transactions, beside a loop written by hand", run)
