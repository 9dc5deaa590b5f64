"""One run of the demo: its own server, the shop in this process, the workers in other processes, the check."""

import asyncio
import time

from rich.console import Console
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from examples.demo.check import find_violations
from examples.demo.crash import kill_one, wait_until
from examples.demo.fates import deal_fates
from examples.demo.figures import count_figures
from examples.demo.kafka import running_kafka
from examples.demo.reader import Reader, reading
from examples.demo.report import Course, print_report
from examples.demo.shop import TILLS, Shop
from examples.demo.tables import Base, dlq_table, outbox_table
from examples.demo.view import show
from examples.demo.watch import Watch
from examples.demo.workers import Workers
from faststream_outbox import OutboxBroker
from faststream_outbox.console.server import serve_console
from faststream_outbox.embedded import EmbeddedPostgres
from faststream_outbox.operations import OutboxOperations

WIDTH = 80
WORKERS = 2
# The tills hold a connection each; the rest is for customers who pay, the reader and the watch.
CONNECTIONS = TILLS + 10

INTRODUCTION = (
    "A shop places {orders:,} orders on a PostgreSQL of its own, each in one transaction with its messages; some "
    "transactions roll back on purpose. Two workers, processes of one FastStream app, handle the messages: some fail "
    "and are tried again, some fail for good, those of one regular customer's account keep their order and are relayed "
    "to Kafka as well, and one of the workers is killed. In the end the books are checked.\n"
)
FAREWELL = "\nRead on in README.md and docs/. This program is examples/demo/."


def run_demo(orders: int, seed: int, *, with_console: bool = False) -> bool:
    """Run the whole demo. Return False if the check found a violation.

    With a console, its address is printed at the end, and the server stays until Ctrl-C.
    """
    console = Console(highlight=False)
    console.width = min(console.width, WIDTH)
    console.print(INTRODUCTION.format(orders=orders))
    passed = asyncio.run(_run_on_own_server(console, orders, seed, with_console=with_console))
    console.print(FAREWELL)
    return passed


async def _run_on_own_server(console: Console, orders: int, seed: int, *, with_console: bool) -> bool:
    began = time.perf_counter()
    async with EmbeddedPostgres() as server, running_kafka() as kafka:
        console.print(f"  PostgreSQL and a mock of Kafka started in {time.perf_counter() - began:.1f} s, seed {seed}")
        engine = create_async_engine(server.url("asyncpg"), pool_size=CONNECTIONS)
        workers = Workers(server.url("asyncpg"), kafka)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            async with reading(engine, kafka) as reader:
                passed = await _run(console, engine, workers, reader, orders=orders, seed=seed)
            if with_console:
                await _show_console(engine)
            return passed
        finally:
            await workers.close()
            await engine.dispose()


async def _show_console(engine: AsyncEngine) -> None:
    """Serve the web console over what the demo has left, until Ctrl-C."""
    operations = OutboxOperations(engine, outbox_table=outbox_table, dlq_table=dlq_table)
    await serve_console(operations, host="127.0.0.1", port=0, say=_say, title="Demo")


def _say(text: str) -> None:
    print(f"\n{text}\nCtrl-C ends it.", flush=True)


async def _run(
    console: Console, engine: AsyncEngine, workers: Workers, reader: Reader, *, orders: int, seed: int
) -> bool:
    async with OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table) as broker:
        shop = Shop(async_sessionmaker(engine), broker)
        watch = Watch(engine, broker, shop)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(watch.run()), tasks.create_task(show(console, watch, orders))]
            for _ in range(WORKERS):
                await workers.start()
            killing = tasks.create_task(kill_one(console, watch, workers, orders))
            began = time.perf_counter()
            await shop.serve(deal_fates(orders, seed))
            served = time.perf_counter()
            await killing
            await watch.look_again()
            settled = await wait_until(lambda look: not look.waiting, watch, workers)
            for task in watching:
                task.cancel()
    if not settled:
        console.print(f"The workers did not finish. The end of their log:\n{workers.log_tail()}", markup=False)
    await workers.stop()
    await reader.catch_up()
    async with engine.connect() as connection:
        figures = await count_figures(connection)
        violations = await find_violations(connection, shop.accepted)
    course = Course(len(shop.cancelled), figures.committed / (served - began), watch.best_rate, watch.look.workers)
    print_report(console, course, figures, violations)
    return not any(violations.values())
