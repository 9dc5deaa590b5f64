"""The command: an evening at the box office, on its own Postgres."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import create_async_engine

from examples.timers.theatre import Base, Seat, Theatre
from faststream_outbox.embedded import EmbeddedPostgres


def clock() -> Callable[[str], None]:
    """Return a function that prints an event and its time."""
    began = time.monotonic()
    return lambda text: print(f"{time.monotonic() - began:4.1f} s  {text}", flush=True)


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            await _evening(Theatre(engine, clock()))
        finally:
            await engine.dispose()


async def _evening(theatre: Theatre) -> None:
    async with theatre.sessions() as session, session.begin():
        session.add_all([Seat(id=number) for number in (1, 2, 3)])

    await theatre.broker.start()
    try:
        await theatre.reserve(1, "Ada", hold=timedelta(seconds=1))
        await theatre.reserve(2, "Grace", hold=timedelta(seconds=1))
        await theatre.reserve(3, "Alan", hold=timedelta(seconds=1))
        await theatre.pay(1)
        await theatre.hold_longer(2, timedelta(seconds=2))
        async with asyncio.timeout(30):
            while await _held(theatre):
                await asyncio.sleep(0.1)
    finally:
        await theatre.broker.stop()


async def _held(theatre: Theatre) -> bool:
    """Return whether a seat is reserved and not paid."""
    async with theatre.sessions() as session:
        held = select(Seat.id).where(Seat.holder.is_not(None), Seat.paid.is_(False))
        return (await session.execute(held)).first() is not None


if __name__ == "__main__":
    asyncio.run(main())
