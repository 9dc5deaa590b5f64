"""How soon processes obey a pause: seconds until none of them holds a row of the queue, and until they go on."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.measure import PATIENCE, spread
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.peers.contestants import ROOT
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import OutboxBroker, make_operations_tables, make_outbox_table
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage.nodes import LOCK_TAG

TABLE: Final = "pausing"
PROCESSES: Final = 4
PAUSES: Final[dict[Scale, int]] = {"tiny": 1, "quick": 10, "full": 50}
# What every process has to obey within.
MOST_SECONDS: Final = 1.0
WORKERS: Final = 8
HANDLER_SECONDS: Final = 0.01
# Enough for the longest pause: the queue is never empty.
BACKLOG: Final = 20_000
LOOK_SECONDS: Final = 0.005

_LOCKS: Final = f"pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = {LOCK_TAG}"


async def run(bench: Bench) -> list[Result]:
    """Pause and resume a queue that several processes are handling."""
    count = PAUSES[bench.scale]
    async with bench.engine("asyncpg") as engine:
        outbox = Outbox(bench, engine, TABLE)
        await outbox.create()
        metadata = MetaData()
        control = make_operations_tables(metadata, TABLE).control
        async with engine.begin() as connection:
            await connection.run_sync(control.create)
        pauses, resumes = await _measure(bench, engine, count)
        await bench.control.execute(f"DROP TABLE {TABLE}_control")
        await outbox.drop()
    lines: Lines = {
        f"{count} pauses: seconds until no process holds a row": {"seconds": spread(pauses), "most": max(pauses)},
        f"{count} resumes: seconds until a row is claimed": {"seconds": spread(resumes), "most": max(resumes)},
    }
    note = (
        f"{PROCESSES} processes, each with {WORKERS} workers and handlers of {HANDLER_SECONDS * 1000:g} ms, handle a "
        "backlog with and without keys. The time is from the commit of the pause until the last row in hand is handled "
        "or given back."
    )
    targets = [Target("seconds until every process obeys, most", max(pauses), at_most=MOST_SECONDS)]
    return [Result("pause", lines, note, targets)]


async def _measure(bench: Bench, engine: AsyncEngine, count: int) -> tuple[list[float], list[float]]:
    metadata = MetaData()
    operations = OutboxOperations(
        engine,
        outbox_table=make_outbox_table(metadata, TABLE),
        control_table=make_operations_tables(metadata, TABLE).control,
    )
    pauses, resumes = list[float](), list[float]()
    async with AsyncExitStack() as stack:
        for _ in range(PROCESSES):
            await stack.enter_async_context(_subscriber(bench))
        await _until(bench, f"SELECT count(*) = {PROCESSES} FROM {_LOCKS}")
        for number in range(count):
            bench.say(f"pause: {number + 1} of {count}")
            await _refill(bench)
            await _until(bench, _HELD)
            await operations.pause(QUEUE, by="benchmark", reason="a benchmark")
            pauses.append(await _until(bench, f"SELECT NOT ({_HELD})"))
            await operations.resume(QUEUE, by="benchmark", reason="a benchmark")
            resumes.append(await _until(bench, _HELD))
    return pauses, resumes


_HELD: Final = f"SELECT EXISTS (SELECT FROM {TABLE} WHERE acquired_token IS NOT NULL)"


async def _refill(bench: Bench) -> None:
    waiting = await bench.control.fetchval(f"SELECT count(*) FROM {TABLE}")
    await bench.control.execute(
        f"INSERT INTO {TABLE} (queue, payload, entity_key) SELECT '{QUEUE}', '1', "
        f"CASE WHEN n % 2 = 0 THEN 'k' || n END FROM generate_series(1, {max(0, BACKLOG - waiting)}) n"
    )
    await bench.control.execute(f"NOTIFY outbox_{TABLE}, '{QUEUE}'")


async def _until(bench: Bench, condition: str) -> float:
    """Wait for a condition; return after how many seconds it was true."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        while not await bench.control.fetchval(condition):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(LOOK_SECONDS)
    return time.monotonic() - began


@asynccontextmanager
async def _subscriber(bench: Bench) -> AsyncIterator[None]:
    """Run a subscriber in a process of its own, and kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.pause"),
        cwd=ROOT,
        env={**os.environ, "PAUSE_URL": str(bench.database.url("asyncpg"))},
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _program() -> None:
    engine, metadata = create_async_engine(os.environ["PAUSE_URL"], pool_size=4), MetaData()
    broker = OutboxBroker(
        engine,
        outbox_table=make_outbox_table(metadata, TABLE),
        control_table=make_operations_tables(metadata, TABLE).control,
        logger=None,
    )

    @broker.subscriber(QUEUE, max_workers=WORKERS)
    async def handle(_: int) -> None:
        await asyncio.sleep(HANDLER_SECONDS)

    await broker.start()
    await asyncio.Event().wait()


SCENARIO: Final = Scenario("pause", "how soon processes obey a pause of a queue", run)


if __name__ == "__main__":
    asyncio.run(_program())
