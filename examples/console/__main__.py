"""The command: a server of its own, the shop with its load, a relay to a mock of Kafka, and the console."""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator

from faststream.kafka import KafkaBroker
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from examples.console.load import Customers
from examples.console.shop import LEDGER, make_broker, metadata
from examples.demo.kafka import running_kafka
from faststream_outbox import OutboxBroker, Relay
from faststream_outbox.console.server import serve_console
from faststream_outbox.embedded import EmbeddedPostgres


@contextlib.asynccontextmanager
async def running_shop(*, is_busy: bool = True) -> AsyncIterator[OutboxBroker]:
    """Run the shop: its server, its subscribers, its relay, and its customers."""
    async with EmbeddedPostgres(fast=True) as server, running_kafka() as kafka:
        engine = create_async_engine(server.url("asyncpg"), pool_size=30)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(metadata.create_all)
            async with _handling(engine, kafka) as (broker, customers):
                await customers.begin()
                ordering = asyncio.create_task(customers.keep_ordering()) if is_busy else None
                try:
                    yield broker
                finally:
                    if ordering is not None:
                        ordering.cancel()
                        await asyncio.wait([ordering])
        finally:
            await engine.dispose()


@contextlib.asynccontextmanager
async def _handling(engine: AsyncEngine, kafka: str) -> AsyncIterator[tuple[OutboxBroker, Customers]]:
    broker = make_broker(engine)
    relay = Relay(broker, to=KafkaBroker(kafka, logger=None), routes={LEDGER: "ledger"})
    async with broker:
        await broker.start()
        await relay.start()
        try:
            yield broker, Customers(engine, broker)
        finally:
            await relay.stop()


async def main(port: int, *, read_only: bool) -> None:
    """Serve until Ctrl-C."""
    print("Starting a PostgreSQL, a mock of Kafka, and a shop …", flush=True)
    async with running_shop() as broker:
        await serve_console(
            broker,
            host="127.0.0.1",
            port=port,
            say=lambda text: print(text, flush=True),
            read_only=read_only,
            title="Shop",
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.console", description="The console over a busy shop.")
    parser.add_argument("--port", type=int, default=8010, help="the port on 127.0.0.1 (default: 8010)")
    parser.add_argument("--read-only", action="store_true", help="a console that cannot change anything")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(options.port, read_only=options.read_only))
