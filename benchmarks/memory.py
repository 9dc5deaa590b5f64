"""By how much a process grows while large rows wait: one that handles them, and one that relays them to a Redis."""

import argparse
import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from faststream.redis import RedisBroker
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.measure import PATIENCE
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.peers.contestants import ROOT
from benchmarks.results import Lines, Result, Target, Value
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.relay import Relay
from tests.servers.redis import Redis

TABLE: Final = "memory"
ROW_BYTES: Final = 20_000
LARGE_ROW_BYTES: Final = 1_000_000
MB: Final = 1_000_000
# What a process may grow by.
AT_MOST: Final = 200.0
_STATUS: Final = Path("/proc/self/status")
_PEAK: Final = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows wait, how many of them are handled, and how many are relayed.

    A Redis that pauses answers nothing for some seconds: all that a relay holds at most is on its way then. A tenth of
    the rows will do for that.
    """

    waiting: int
    handled: int
    relayed: int
    pause_seconds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(waiting=300, handled=200, relayed=20, pause_seconds=1),
    "quick": Sizes(waiting=200_000, handled=20_000, relayed=5_000, pause_seconds=5),
    "full": Sizes(waiting=200_000, handled=200_000, relayed=5_000, pause_seconds=5),
}


async def run(bench: Bench) -> list[Result]:
    """Start processes that handle or relay, and read how large they have been."""
    if lacks := Redis.lacks() or _lacks_proc():
        bench.say(f"memory is not measured: {lacks}.")
        return []
    sizes, lines = SIZES[bench.scale], Lines()
    async with Redis() as redis, bench.engine("asyncpg") as engine:
        outbox = Outbox(bench, engine, TABLE)
        for driver in bench.drivers:
            await _fill(bench, outbox, sizes.waiting, ROW_BYTES)
            case = f"a subscriber, {sizes.waiting:,} rows of {ROW_BYTES:,} bytes wait, {driver}"
            lines[case] = await _measure(bench, driver, count=sizes.handled)
            for pause, count in ((0, sizes.relayed), (sizes.pause_seconds, sizes.relayed // 10)):
                await _fill(bench, outbox, count, LARGE_ROW_BYTES)
                what = f"a relay of {count:,} rows of {LARGE_ROW_BYTES:,} bytes to a Redis"
                case = f"{what}{f' that pauses for {pause} s' if pause else ''}, {driver}"
                lines[case] = await _measure(bench, driver, count=count, redis=redis.url, pause=pause)
        await outbox.drop()
    note = (
        "The largest resident set of a process while it handled or relayed the rows, and that of the same process "
        f"before it started to. A subscriber has one worker and handles {sizes.handled:,} of the rows; a relay has its "
        "defaults and publishes to a channel."
    )
    grown = {case: line["growth MB"] for case, line in lines.items()}
    targets = [
        Target(f"MB of growth, {case}", value, at_most=AT_MOST)
        for case, value in grown.items()
        if isinstance(value, float)
    ]
    return [Result("memory of a process with large rows", lines, note, targets)]


async def _fill(bench: Bench, outbox: Outbox, count: int, size: int) -> None:
    bench.say(f"memory: {count:,} rows of {size:,} bytes")
    await outbox.create()
    await bench.control.execute(
        f"INSERT INTO {TABLE} (queue, payload) SELECT '{QUEUE}', convert_to(repeat('x', {size}), 'UTF8') "
        f"FROM generate_series(1, {count})"
    )


async def _measure(
    bench: Bench, driver: str, *, count: int, redis: str | None = None, pause: int = 0
) -> dict[str, Value]:
    """Run this module as a program, because memory that is freed does not always leave a process."""
    options = ["--count", str(count), "--pause", str(pause), *(["--redis", redis] if redis else [])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.memory", *options),
        stdout=PIPE,
        cwd=ROOT,
        env={**os.environ, "MEMORY_URL": str(bench.database.url(driver))},
    )
    answer, _ = await process.communicate()
    if process.returncode:
        raise AssertionError(f"The program that is measured ended with {process.returncode}.")
    before, after = json.loads(answer)
    return {"before MB": before / MB, "growth MB": (after - before) / MB}


def _lacks_proc() -> str | None:
    return None if _STATUS.exists() else f"there is no {_STATUS}"


def _peak() -> int:
    found = _PEAK.search(_STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


async def _handle(broker: OutboxBroker, count: int) -> None:
    handled, enough = 0, asyncio.Event()

    @broker.subscriber(QUEUE)
    async def handle(_: str) -> None:
        nonlocal handled
        handled += 1
        if handled >= count:
            enough.set()

    await broker.start()
    await enough.wait()
    await broker.stop()


async def _relay(engine: AsyncEngine, broker: OutboxBroker, redis: str, pause: int) -> None:
    target = RedisBroker(redis)
    relay = Relay(broker, to=target, routes={QUEUE: "channel:memory"})
    await relay.start()
    if pause:
        client: Any = await target.connect()
        await client.execute_command("CLIENT", "PAUSE", 1000 * pause, "ALL")
    async with engine.connect() as connection:
        while (await connection.exec_driver_sql(f"SELECT 1 FROM {TABLE} LIMIT 1")).first():
            await connection.rollback()
            await asyncio.sleep(0.1)
    await relay.stop()


async def _program(count: int, redis: str | None, pause: int) -> None:
    engine = create_async_engine(os.environ["MEMORY_URL"], pool_size=8)
    broker = OutboxBroker(engine, outbox_table=make_outbox_table(MetaData(), TABLE), logger=None)
    before = _peak()
    async with asyncio.timeout(PATIENCE):
        await (_handle(broker, count) if redis is None else _relay(engine, broker, redis, pause))
    print(json.dumps([before, _peak()]))
    await engine.dispose()


SCENARIO: Final = Scenario("memory", "by how much a process grows while large rows wait or are relayed", run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--redis")
    parser.add_argument("--pause", type=int, default=0)
    asked = parser.parse_args()
    asyncio.run(_program(asked.count, asked.redis, asked.pause))
