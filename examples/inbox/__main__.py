"""The command: five announcements of two payments, on its own Postgres."""

import asyncio

from sqlalchemy.ext.asyncio import create_async_engine

from examples.inbox.bank import Bank, Base
from faststream_outbox.embedded import EmbeddedPostgres


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            await _day(Bank(engine, print))
        finally:
            await engine.dispose()


async def _day(bank: Bank) -> None:
    for payment_id, cents in (("a", 100), ("b", 25), ("a", 100), ("a", 100), ("b", 25)):
        await bank.announce(payment_id, cents)
    await bank.broker.start()
    try:
        async with asyncio.timeout(30):
            while not await bank.is_done():
                await asyncio.sleep(0.05)
    finally:
        await bank.broker.stop()
    print(f"5 announcements, {await bank.total()} cents")


if __name__ == "__main__":
    asyncio.run(main())
