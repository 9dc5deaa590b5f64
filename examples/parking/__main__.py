"""The command: three accounts and a clerk, on its own Postgres."""

import asyncio
from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import create_async_engine

from examples.parking.ledger import Account, Base, Ledger
from faststream_outbox.embedded import EmbeddedPostgres


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"), pool_size=10)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            await _day(Ledger(engine, print))
        finally:
            await engine.dispose()


async def _day(ledger: Ledger) -> None:
    async with ledger.sessions() as session, session.begin():
        session.add_all([Account(name=name) for name in ("Ada", "Alan", "Grace")])
    await ledger.post("Ada", 100, -30)
    await ledger.post("Alan", 10, -50, 5)
    await ledger.post("Grace", -20, 70)
    await ledger.broker.start()
    try:
        await _until(lambda: _waiting(ledger, 2))
        for key in await ledger.parked():
            what = key.cause.partition("\n")[0]
            print(f"{key.key} is stopped ({what}), and {key.waiting} entry waits behind it")
        await ledger.lend("Alan", 40)
        await ledger.refuse("Grace", "not ours")
        await _until(lambda: _nothing_left(ledger))
    finally:
        await ledger.broker.stop()
    balances, refused = await ledger.balances(), await ledger.refused()
    print(f"in the books: {balances}; refused: {refused}")
    if balances != {"Ada": 70, "Alan": 5, "Grace": 70} or refused != ["not ours"]:
        raise SystemExit("That is wrong.")


async def _waiting(ledger: Ledger, count: int) -> bool:
    return len(await ledger.parked()) == count


async def _nothing_left(ledger: Ledger) -> bool:
    return not any(queue.total for queue in await ledger.broker.stats())


async def _until(happened: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await happened():
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
