"""What `publish()` costs in a Django project, over a plain INSERT in the same `transaction.atomic()`."""

import asyncio
import copy
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import django
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import MetaData, make_url

from benchmarks.measure import Spread, ratios
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import make_outbox_table
from faststream_outbox.django import publish
from faststream_outbox.embedded import Database

# How many transactions a round has, and how many rounds there are.
SIZES: Final[dict[Scale, tuple[int, int]]] = {"tiny": (20, 1), "quick": (300, 15), "full": (1_000, 25)}
ALIAS: Final = "benchmark"
PLAIN: Final = "a plain INSERT"
PUBLISH: Final = "publish()"
KEYED: Final = "publish(), with a key"
INSERT: Final = "INSERT INTO outbox (queue, payload, headers) VALUES (%s, %s, %s) RETURNING id"
HEADERS: Final = '{"content-type": "application/json"}'
MOST_US: Final = 150.0


def connect(database: Database) -> None:
    """Give Django one more database; the settings may be those of a test."""
    if not settings.configured:
        settings.configure()
        django.setup()
    url = make_url(database.dsn)
    given = copy.deepcopy(connections.settings["default"])
    names = {"HOST": url.host, "PORT": url.port, "NAME": url.database, "USER": url.username, "PASSWORD": url.password}
    connections.settings[ALIAS] = {**given, "ENGINE": "django.db.backends.postgresql", **names}


def insert() -> None:
    """Insert a row by hand."""
    with transaction.atomic(using=ALIAS), connections[ALIAS].cursor() as cursor:
        cursor.execute(INSERT, ["orders", b'{"order_id":1}', HEADERS])
        cursor.fetchone()


def publish_one() -> None:
    """Publish a message."""
    with transaction.atomic(using=ALIAS):
        publish({"order_id": 1}, queue="orders", using=ALIAS)


def publish_keyed() -> None:
    """Publish a message with a key."""
    with transaction.atomic(using=ALIAS):
        publish({"order_id": 1}, queue="orders", key="customer-7", using=ALIAS)


def _time(work: Callable[[], None], count: int) -> tuple[float, float]:
    """Return the time of one call, and the processor time of its thread, in microseconds."""
    began, began_thread = time.perf_counter(), time.thread_time()
    for _ in range(count):
        work()
    return (time.perf_counter() - began) / count * 1e6, (time.thread_time() - began_thread) / count * 1e6


async def run(bench: Bench) -> list[Result]:
    """Let the ways take turns, in one thread with one connection."""
    count, rounds = SIZES[bench.scale]
    metadata = MetaData()
    make_outbox_table(metadata)
    async with bench.engine("asyncpg") as engine, engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
    connect(bench.database)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=1) as thread:

        def case(work: Callable[[], None]) -> Callable[[], Awaitable[tuple[float, float]]]:
            return lambda: loop.run_in_executor(thread, _time, work, count)

        cases = {PLAIN: case(insert), PUBLISH: case(publish_one), KEYED: case(publish_keyed)}
        took = await bench.interleave("django", cases, rounds=rounds, warmup=1)
        await loop.run_in_executor(thread, connections.close_all)
    del connections.settings[ALIAS]
    whole = {name: [each for each, _ in values] for name, values in took.items()}
    lines: Lines = {
        name: {
            "µs": Spread.of(whole[name]),
            "of the INSERT": ratios(whole[name], whole[PLAIN]),
            "Python µs": Spread.of([each for _, each in values]),
        }
        for name, values in took.items()
    }
    over = {
        name: statistics.median(a - b for a, b in zip(whole[name], whole[PLAIN], strict=True))
        for name in (PUBLISH, KEYED)
    }
    targets = [Target(f"{name}, µs over a plain INSERT", each, at_most=MOST_US) for name, each in over.items()]
    note = (
        f"{count:,} transactions a round, each with one row of the same columns, through psycopg in one thread. "
        "`publish()` also encodes, checks and notifies."
    )
    return [Result("Publishing in Django", lines, note, targets)]


SCENARIO: Final = Scenario("django", "publish() of Django beside a plain INSERT, in transaction.atomic()", run)
