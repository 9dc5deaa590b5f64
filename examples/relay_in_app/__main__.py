"""The command: three orders, an outage, three more, on its own Postgres and its own NATS."""

import asyncio
import logging
from typing import Any

from faststream.nats import NatsBroker
from nats.js.api import DeliverPolicy
from sqlalchemy.ext.asyncio import create_async_engine

from examples.relay_in_app.shop import STREAM, SUBJECT, Base, Shop
from faststream_outbox.embedded import EmbeddedPostgres
from tests.servers.nats import Nats

BEFORE, MEANWHILE = ["chair", "table", "lamp"], ["desk", "shelf", "sofa"]
# FastStream would log every attempt to connect.
QUIET = logging.getLogger("examples.relay_in_app")
QUIET.setLevel(logging.CRITICAL)


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as postgres, Nats() as nats:
        engine = create_async_engine(postgres.url("asyncpg"))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            async with asyncio.timeout(60):
                await _sell(Shop(engine, _connection(nats)), nats)
        finally:
            await engine.dispose()


def _connection(nats: Nats) -> NatsBroker:
    return NatsBroker(nats.url, logger=QUIET, reconnect_time_wait=1)


async def _sell(shop: Shop, nats: Nats) -> None:
    warehouse = _connection(nats)
    heard: list[str] = []

    @warehouse.subscriber(SUBJECT, stream=STREAM, deliver_policy=DeliverPolicy.ALL)
    async def pack(order: dict[str, Any]) -> None:
        heard.append(order["what"])

    await shop.broker.start()  # and NATS with it
    for what in BEFORE:
        await shop.place(what)
    while await shop.attempts():
        await asyncio.sleep(0.05)
    print(f"{len(BEFORE)} orders are placed and announced")
    await nats.stop()
    for what in MEANWHILE:
        await shop.place(what)
    while not all(await shop.attempts()):
        await asyncio.sleep(0.05)
    print(f"NATS is down: {len(MEANWHILE)} orders are placed, and wait")
    await nats.start()
    while await shop.attempts():
        await asyncio.sleep(0.05)
    print("NATS is back: all are announced")
    await shop.broker.stop()
    await warehouse.start()
    while len(heard) < len(BEFORE + MEANWHILE):
        await asyncio.sleep(0.05)
    await warehouse.stop()
    print(f"the warehouse packs {', '.join(sorted(heard))}")


if __name__ == "__main__":
    asyncio.run(main())
