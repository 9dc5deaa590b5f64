"""What one Postgres carries: what a message costs it, what waits on its disk, and what follows for larger machines."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from benchmarks.keyed import rows_with_keys
from benchmarks.measure import Spread, Usage
from benchmarks.ordered import NO_KEYS, Backlog, Drained, orderings
from benchmarks.outbox import HEADERS, QUEUE, Outbox
from benchmarks.processes import Job, Processes
from benchmarks.results import Lines, Result, Value
from benchmarks.scenario import Bench, Scale, Scenario
from benchmarks.spreading import spreading
from faststream_outbox.storage import NewRow

TABLE: Final = "scale"
OWN_TABLE: Final = "scale_orders"
_OWN_ROW: Final = text(f"INSERT INTO {OWN_TABLE} (body) VALUES (:body)")
CLIENTS: Final = 8
BATCH: Final = 1_000
PROCESSES: Final = 2
PAYLOADS: Final = (256, 1_000, 8_000)
# Processors, and megabytes a second that the disk writes.
SERVERS: Final = {2: 50, 8: 200, 32: 800}
# Which share of both an outbox may take.
SHARE: Final = 0.5
BACKLOGS: Final = (1_000_000, 10_000_000, 100_000_000)

OWN: Final = "a transaction with one row of your own"
IN_IT: Final = "a message in it"
IN_IT_KEY: Final = "a message with a key in it"
BATCHED: Final = f"a message among {BATCH:,} in a transaction"
HANDLED: Final = "a message claimed and settled"
HANDLED_KEY: Final = "a message with a key claimed and settled"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many transactions, how many messages in batches and through handlers, how many rows on disk, how often."""

    transactions: int
    messages: int
    rows: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(transactions=50, messages=1_000, rows=1_000, rounds=1),
    "quick": Sizes(transactions=2_000, messages=20_000, rows=50_000, rounds=5),
    "full": Sizes(transactions=5_000, messages=20_000, rows=200_000, rounds=7),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one message took, on both sides."""

    postgres_us: float
    python_us: float
    wal: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.postgres_us + other.postgres_us, self.python_us + other.python_us, self.wal + other.wal)

    def beyond(self, other: "Cost") -> "Cost":
        """Tell what it took more than another; what noise makes less is nothing."""
        differences = (self.postgres_us - other.postgres_us, self.python_us - other.python_us, self.wal - other.wal)
        return Cost(*(max(0.0, each) for each in differences))

    @classmethod
    def of(cls, usage: Usage, count: int) -> "Cost":
        """Divide what was used up by all."""
        return cls((usage.postgres_us or 0.0) / count, usage.python_us / count, usage.wal_bytes / count)


async def run(bench: Bench) -> list[Result]:
    """Measure what a message costs and takes, then calculate."""
    async with bench.engine("asyncpg", connections=CLIENTS) as engine:
        costs = await _costs(bench, engine)
        disk = await _disk(bench, engine)
    medians = {case: _median(values) for case, values in costs.items()}
    return [_told(costs), _carried(medians), _kept(disk), await spreading(bench)]


def _median(costs: list[Cost]) -> Cost:
    columns = zip(*((cost.postgres_us, cost.python_us, cost.wal) for cost in costs), strict=True)
    return Cost(*(Spread.of(column).median for column in columns))


async def _costs(bench: Bench, engine: AsyncEngine) -> dict[str, list[Cost]]:
    """Let all that a message goes through take turns."""
    sizes = SIZES[bench.scale]
    await bench.control.execute(f"CREATE TABLE {OWN_TABLE} (id bigint GENERATED ALWAYS AS IDENTITY, body text)")
    outbox = Outbox(bench, engine, TABLE)
    await outbox.create()
    publishing = partial(_publish, outbox, sizes.transactions)
    with Processes(PROCESSES) as processes:
        handling = partial(_handle, bench, engine, processes, sizes.messages)
        cases = {
            OWN: partial(publishing, lambda _: None),
            IN_IT: partial(publishing, lambda _: NewRow(QUEUE, bench.payload, headers=HEADERS)),
            IN_IT_KEY: partial(
                publishing, lambda n: NewRow(QUEUE, bench.payload, headers=HEADERS, key=f"customer {n}")
            ),
            BATCHED: partial(_publish_batches, outbox, sizes.messages),
            HANDLED: partial(handling, NO_KEYS),
            HANDLED_KEY: partial(handling, "HeadLease"),
        }
        measured = await bench.interleave("scale, costs", cases, rounds=sizes.rounds)
    await outbox.drop()
    await bench.control.execute(f"DROP TABLE {OWN_TABLE}")
    for case in (IN_IT, IN_IT_KEY):  # what it adds to the transaction that is there anyway
        measured[case] = [
            with_it.beyond(without) for with_it, without in zip(measured[case], measured[OWN], strict=True)
        ]
    return measured


async def _publish(outbox: Outbox, count: int, message: Callable[[int], NewRow | None]) -> Cost:
    """Run transactions that write a row of their own, with a message or without."""
    sessions = async_sessionmaker(outbox.engine)
    waiting = iter(range(count))

    async def transaction(number: int) -> None:
        async with sessions.begin() as session:
            await session.execute(_OWN_ROW, {"body": "x" * 100})
            if (row := message(number)) is not None:
                await outbox.store.insert(session, row)

    async def client() -> None:
        for number in waiting:
            await transaction(number)

    await asyncio.gather(*(transaction(number) for number in range(CLIENTS)))  # who connects is not measured
    before = await outbox.bench.meter.read()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return Cost.of(await outbox.bench.meter.since(before), count)


async def _publish_batches(outbox: Outbox, count: int) -> Cost:
    rows = outbox.new_rows(count)
    before = await outbox.bench.meter.read()
    await outbox.publish(rows, batch=BATCH)
    return Cost.of(await outbox.bench.meter.since(before), count)


async def _handle(bench: Bench, engine: AsyncEngine, processes: Processes, count: int, name: str) -> Cost:
    """Drain through handlers that do nothing, by several processes."""
    table = Backlog(Outbox(bench, engine, f"{TABLE}_drained"), keyed=name != NO_KEYS, rows=count)
    await table.create()
    url = bench.database.url("asyncpg")
    jobs = [Job(url, table.outbox.name, ordering) for ordering in orderings(name, PROCESSES)]
    drained: Drained = await table.drain(processes, jobs, count)
    await table.outbox.drop()
    return Cost(drained.postgres_us or 0.0, drained.python_us, drained.usage.wal_bytes / drained.handled)


async def _disk(bench: Bench, engine: AsyncEngine) -> dict[int, tuple[float, float]]:
    """Tell the bytes of a row that waits, with its indexes, by its payload: without a key and with one."""
    rows = SIZES[bench.scale].rows
    taken = {}
    for payload in PAYLOADS:
        bench.say(f"scale, {rows:,} rows of {payload:,} bytes")
        body = bench.rng("disk").randbytes(payload)
        sizes = []
        for columns, values in (("queue", f"'{QUEUE}'"), rows_with_keys()):
            outbox = Outbox(bench, engine, TABLE)
            await outbox.create()
            await outbox.load(rows, columns, values, payload=body)
            sizes.append(await bench.control.fetchval("SELECT pg_total_relation_size($1::text)", TABLE) / rows)
            await outbox.drop()
        taken[payload] = (sizes[0], sizes[1])
    return taken


def _told(costs: Mapping[str, list[Cost]]) -> Result:
    lines: Lines = {
        case: {
            "Postgres µs": Spread.of([cost.postgres_us for cost in values]),
            "WAL B": Spread.of([cost.wal for cost in values]),
            "Python µs": Spread.of([cost.python_us for cost in values]),
        }
        for case, values in costs.items()
    }
    note = (
        f"Payloads of 256 bytes and two headers; {CLIENTS} clients publish, {PROCESSES} processes handle a backlog, "
        "with handlers that do nothing. What a message in a transaction costs is what it adds to that transaction."
    )
    return Result("what a message costs", lines, note)


def _carried(costs: Mapping[str, Cost]) -> Result:
    """Calculate what the processors and the disk of a server are enough for."""
    lines: Lines = {}
    ways = {
        "without keys": costs[IN_IT] + costs[HANDLED],
        "with keys": costs[IN_IT_KEY] + costs[HANDLED_KEY],
        f"without keys, published {BATCH:,} at a time": costs[BATCHED] + costs[HANDLED],
    }
    for way, cost in ways.items():
        handled = costs[HANDLED_KEY if way == "with keys" else HANDLED]
        for cores, megabytes in SERVERS.items():
            by_processors = SHARE * cores * 1e6 / max(cost.postgres_us, 1.0)
            by_disk = SHARE * megabytes * 1e6 / max(cost.wal, 1.0)
            rate = min(by_processors, by_disk)
            lines[f"{cores} cores, {megabytes} MB/s, {way}"] = {
                "messages a second": rate,
                "by its processors": by_processors,
                "by its disk": by_disk,
                "WAL a day, GB": rate * cost.wal * 86_400 / 1e9,
                "cores for handlers": rate * handled.python_us / 1e6,
            }
    note = (
        f"Calculated from what a message costs: its publishing, its claim and its settle, with {SHARE:.0%} of the "
        "server's processors and of what its disk writes. It is a bound from above: vacuum, checkpoints and others' "
        "locks are not in it, and handlers do nothing."
    )
    return Result("what a server carries", lines, note)


def _kept(disk: Mapping[int, tuple[float, float]]) -> Result:
    """Calculate what a backlog takes on disk."""
    lines: Lines = {}
    for payload, each in disk.items():
        for which, size in zip(("without keys", "with keys"), each, strict=True):
            columns: dict[str, Value] = {"bytes a row": size}
            columns |= {f"{rows // 1_000_000} M rows, GB": rows * size / 1e9 for rows in BACKLOGS}
            lines[f"payloads of {payload:,} bytes, {which}"] = columns
    note = "Rows that wait, with all indexes, at the default fillfactor of 50; half of each page is room for claims."
    return Result("what a backlog takes on disk", lines, note)


SCENARIO: Final = Scenario("scale", "what one Postgres carries, and how evenly keys are spread over nodes", run)
