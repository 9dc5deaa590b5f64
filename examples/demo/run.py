"""One run of the demo: a server of its own, the shop and the delivery side by side, the check."""

import asyncio
import contextlib
import time

from rich.console import Console
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from examples.demo.check import collect_evidence, find_violations
from examples.demo.delivery import Delivery
from examples.demo.fates import deal_fates
from examples.demo.progress import Counts, show_progress
from examples.demo.report import Pace, print_report
from examples.demo.shop import QUEUE, TILLS, Base, Shop, dlq_table, outbox_table
from examples.demo.warehouse import Warehouse
from faststream_outbox.embedded import EmbeddedPostgres
from faststream_outbox.storage import PostgresStore

WIDTH = 80
# The tills hold a connection each, and so do the two lanes of the delivery.
CONNECTIONS = TILLS + 2
# What is left when the last order is placed takes a second or two. Past this the check shall tell what got stuck.
PATIENCE_SECONDS = 60.0

INTRODUCTION = (
    "A shop places {orders:,} orders on a PostgreSQL of its own, each in one transaction with its message; some "
    "transactions roll back on purpose. Meanwhile the messages are delivered, which sometimes fails, and in the end "
    "the books are checked.\n"
)
FAREWELL = "\nRead on in README.md and docs/. This program is examples/demo/."


def run_demo(orders: int, seed: int) -> bool:
    """Run from the first word to the last; False when the check found a violation."""
    console = Console(highlight=False)
    console.width = min(console.width, WIDTH)
    console.print(INTRODUCTION.format(orders=orders))
    passed = asyncio.run(_run_on_own_server(console, orders, seed))
    console.print(FAREWELL)
    return passed


async def _run_on_own_server(console: Console, orders: int, seed: int) -> bool:
    began = time.perf_counter()
    async with EmbeddedPostgres() as server:
        console.print(f"  PostgreSQL started in {time.perf_counter() - began:.1f} s, seed {seed}")
        engine = create_async_engine(server.url("asyncpg"), pool_size=CONNECTIONS)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            return await _run(console, engine, orders, seed)
        finally:
            await engine.dispose()


async def _run(console: Console, engine: AsyncEngine, orders: int, seed: int) -> bool:
    fates = deal_fates(orders, seed)
    sessions = async_sessionmaker(engine)
    store = PostgresStore(engine, outbox_table, dlq_table=dlq_table)
    shop, warehouse = Shop(sessions, store), Warehouse(fates)
    delivery = Delivery(store, QUEUE, warehouse.pack)

    def count() -> Counts:
        return Counts(orders, len(shop.confirmed), len(shop.cancelled), delivery.settled)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        showing = tasks.create_task(show_progress(console, count))
        delivering = tasks.create_task(delivery.run())
        await shop.serve(fates)
        published = time.perf_counter()
        delivery.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(delivering, PATIENCE_SECONDS)
        delivered = time.perf_counter()
        showing.cancel()

    async with sessions() as session:
        evidence = await collect_evidence(session, shop, warehouse)
    violations = find_violations(evidence)
    pace = Pace(len(evidence.committed) / (published - began), evidence.packed.total() / (delivered - began))
    print_report(console, evidence, violations, retried=delivery.retried, pace=pace)
    return not any(violations.values())
