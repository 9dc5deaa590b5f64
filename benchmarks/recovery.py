"""How soon the rows of a killed process run again, with leases of a minute, and how fast many of them are done."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.measure import PATIENCE, spread
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.peers.contestants import ROOT
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.storage.nodes import GRACE

TABLE: Final = "recovery"
# What the rows of a killed process may wait: at the median, and at most.
MEDIAN_SECONDS: Final = 7.0
MOST_SECONDS: Final = 10.0
# How much longer many rows of a killed process may take, from the kill on, than those of nobody.
RATIO: Final = 1.5
WORKERS: Final = 8
LOOK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many processes are killed; how many rows one process more has when it is killed, and how long a row takes."""

    kills: int
    rows: int
    handler_seconds: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """How many seconds after a kill the first row of the dead process was done, and the last."""

    first: float
    last: float


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(kills=1, rows=16, handler_seconds=0.01),
    "quick": Sizes(kills=5, rows=250, handler_seconds=0.4),
    "full": Sizes(kills=20, rows=250, handler_seconds=0.4),
}


async def run(bench: Bench) -> list[Result]:
    """Kill processes beside one that lives: many times with some rows, and once with many."""
    sizes = SIZES[bench.scale]
    async with bench.engine("asyncpg") as engine:
        outbox = Outbox(bench, engine, TABLE)
        await outbox.create()
        waits = await _kill(bench, sizes.kills)
        healthy = await _healthy(bench, sizes)
        killed = await _killed(bench, sizes)
        await outbox.drop()
    lines: Lines = {
        f"{sizes.kills} kills: seconds until the last row is handled": {"seconds": spread(waits), "most": max(waits)},
        f"{sizes.rows} rows of nobody, {WORKERS} workers: seconds": {"seconds": healthy},
        f"{sizes.rows} rows of a killed process: seconds from the kill": {
            "first done": killed.first,
            "last done": killed.last,
        },
    }
    note = (
        "Leases last for 60 seconds, the default. A killed process has rows with and without a key in handlers that do "
        "not end; another process handles them at once, when it finds that the first one is dead. In the last line a "
        f"process is killed that has all {sizes.rows} rows in its handlers. The other one has {WORKERS} workers, as in "
        f"the line before; each handler takes {sizes.handler_seconds:g} s. Its seconds contain the time in which no "
        "process knows yet that it is dead: up to a second until its lock is missed, and the grace."
    )
    targets = [
        Target("seconds from a kill, median", median(waits), at_most=MEDIAN_SECONDS),
        Target("seconds from a kill, most", max(waits), at_most=MOST_SECONDS),
        Target("rows of a killed process, to rows of nobody", killed.last / healthy, at_most=RATIO),
    ]
    return [Result("recovery after kill -9", lines, note, targets)]


@asynccontextmanager
async def _subscriber(
    bench: Bench, handler_seconds: float, *, workers: int = WORKERS
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a subscriber in a process of its own, and kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.recovery", "--seconds", str(handler_seconds), "--workers", str(workers)),
        cwd=ROOT,
        env={**os.environ, "RECOVERY_URL": str(bench.database.url("asyncpg"))},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _kill(bench: Bench, kills: int) -> list[float]:
    """Return how many seconds the rows of each killed process waited."""
    waits: list[float] = []
    async with _subscriber(bench, 0.0):
        await _until(bench, f"SELECT count(*) = 1 FROM {_LOCKS}")
        for number in range(kills):
            bench.say(f"recovery: kill {number + 1} of {kills}")
            async with _subscriber(bench, 600.0) as victim:
                await _until(bench, f"SELECT count(*) = 2 FROM {_LOCKS}")
                held = False
                while not held:  # the other process handles its share at once
                    await _insert(bench, 4 * WORKERS)
                    await asyncio.sleep(0.5)
                    held = await bench.control.fetchval(f"SELECT count(DISTINCT entity_key IS NULL) = 2 FROM {TABLE}")
                victim.kill()
                began = time.monotonic()
                await _until(bench, f"SELECT NOT EXISTS (SELECT FROM {TABLE})")
                waits.append(time.monotonic() - began)
    return waits


async def _healthy(bench: Bench, sizes: Sizes) -> float:
    """Return how many seconds a process needs for rows that no other has claimed, from their commit to the last."""
    bench.say(f"recovery: {sizes.rows} rows of nobody")
    async with _subscriber(bench, sizes.handler_seconds):
        await _until(bench, f"SELECT count(*) = 1 FROM {_LOCKS}")
        await asyncio.sleep(GRACE + 1)  # as long as beside a dead process: it is as warm
        await _insert(bench, sizes.rows, keyed=False)
        began = time.monotonic()
        await _until(bench, f"SELECT NOT EXISTS (SELECT FROM {TABLE})")
        return time.monotonic() - began


async def _killed(bench: Bench, sizes: Sizes) -> Recovered:
    """Kill a process that has all rows in its handlers, beside one that has none, and wait until that one is done."""
    bench.say(f"recovery: {sizes.rows} rows of a killed process")
    async with _subscriber(bench, 600.0, workers=sizes.rows) as victim:
        await _until(bench, f"SELECT count(*) = 1 FROM {_LOCKS}")
        await _insert(bench, sizes.rows, keyed=False)
        await _until(bench, f"SELECT count(acquired_token) = {sizes.rows} FROM {TABLE}")
        async with _subscriber(bench, sizes.handler_seconds):
            await _until(bench, f"SELECT count(*) = 2 FROM {_LOCKS}")
            await asyncio.sleep(GRACE + 1)
            held = await bench.control.fetchval(f"SELECT count(DISTINCT left(acquired_token::text, 13)) FROM {TABLE}")
            assert held == 1, "both processes hold rows"
            victim.kill()
            began = time.monotonic()
            await _until(bench, f"SELECT count(*) < {sizes.rows} FROM {TABLE}")
            first = time.monotonic() - began
            await _until(bench, f"SELECT NOT EXISTS (SELECT FROM {TABLE})")
            return Recovered(first, time.monotonic() - began)


# The locks of living nodes.
_LOCKS: Final = "pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = 28514"


async def _insert(bench: Bench, count: int, *, keyed: bool = True) -> None:
    key = "CASE WHEN n % 2 = 0 THEN 'k' || n END" if keyed else "NULL"
    await bench.control.execute(
        f"INSERT INTO {TABLE} (queue, payload, entity_key) "
        f"SELECT '{QUEUE}', '1', {key} FROM generate_series(1, {count}) n"
    )
    await bench.control.execute(f"NOTIFY outbox_{TABLE}")


async def _until(bench: Bench, condition: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await bench.control.fetchval(condition):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(LOOK_SECONDS)


async def _program(seconds: float, workers: int) -> None:
    engine = create_async_engine(os.environ["RECOVERY_URL"], pool_size=4)
    broker = OutboxBroker(engine, outbox_table=make_outbox_table(MetaData(), TABLE), logger=None)

    @broker.subscriber(QUEUE, max_workers=workers)
    async def handle(_: int) -> None:
        await asyncio.sleep(seconds)

    await broker.start()
    await asyncio.Event().wait()


SCENARIO: Final = Scenario("recovery", "how soon the rows of a killed process run again", run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--workers", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(_program(arguments.seconds, arguments.workers))
