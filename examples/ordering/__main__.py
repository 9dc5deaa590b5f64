"""The command: six parcels and their steps, on its own Postgres."""

import asyncio

from sqlalchemy.ext.asyncio import create_async_engine

from examples.ordering.tracking import Step, Tracking, metadata
from faststream_outbox.embedded import EmbeddedPostgres

PARCELS = [f"parcel {number}" for number in range(1, 7)]
# Each step takes less time than the one before it: without order per key it would finish first.
STEPS = {"packed": 0.2, "collected": 0.1, "sorted": 0.05, "delivered": 0.0}


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(metadata.create_all)
            await _track(Tracking(engine, print))
        finally:
            await engine.dispose()


async def _track(tracking: Tracking) -> None:
    await tracking.broker.start()
    try:
        await tracking.happen_together(
            [Step(parcel=parcel, what=what, seconds=seconds) for what, seconds in STEPS.items() for parcel in PARCELS]
        )
        await tracking.happen(Step(parcel="parcel 1", what="returned"))
        expected = {parcel: [*STEPS] for parcel in PARCELS}
        expected["parcel 1"].append("returned")
        async with asyncio.timeout(30):
            while sum(map(len, tracking.reported.values())) < sum(map(len, expected.values())):
                await asyncio.sleep(0.05)
    finally:
        await tracking.broker.stop()
    for parcel in PARCELS:
        print(f"{parcel}: {', '.join(tracking.reported[parcel])}")
    print(f"up to {tracking.most_at_once} parcels at once")
    if tracking.reported != expected:
        raise SystemExit("That is wrong.")


if __name__ == "__main__":
    asyncio.run(main())
