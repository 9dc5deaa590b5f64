"""The command: five thousand lines, one with an impossible temperature, on its own Postgres."""

import asyncio

from sqlalchemy.ext.asyncio import create_async_engine

from examples.batches.importer import Base, Importer, Line
from faststream_outbox.embedded import EmbeddedPostgres

LINES = [Line(number=number, celsius=20.0) for number in range(1, 5001)]
LINES[1233].celsius = -300.0


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            await _import(Importer(engine, print))
        finally:
            await engine.dispose()


async def _import(importer: Importer) -> None:
    await importer.read(LINES)
    await importer.broker.start()
    try:
        async with asyncio.timeout(60):
            while await importer.waiting():
                await asyncio.sleep(0.05)
    finally:
        await importer.broker.stop()
    [dead] = await importer.dead()
    stored = await importer.stored()
    print(f"{stored} lines of {len(LINES)} are stored; line {dead.number} is dead: {dead.celsius} °C")
    if (stored, dead) != (len(LINES) - 1, LINES[1233]):
        raise SystemExit("That is wrong.")


if __name__ == "__main__":
    asyncio.run(main())
