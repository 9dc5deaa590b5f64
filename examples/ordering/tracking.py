"""The tracking of parcels: the steps of each are reported in order, by any number of workers and processes."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from pydantic import BaseModel
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from faststream_outbox import (
    ConstantRetry,
    HashShards,
    OutboxBroker,
    make_dlq_table,
    make_outbox_table,
    make_shards_table,
)
from faststream_outbox.annotations import OutboxMessage

STEPS = "steps"

metadata = MetaData()
outbox_table = make_outbox_table(metadata)
dlq_table = make_dlq_table(metadata)
# Which process holds which shard; only `HashShards()` needs it.
shards_table = make_shards_table(metadata)


class Step(BaseModel):
    """Something that happened to a parcel, and how long it takes to report it."""

    parcel: str
    what: str
    seconds: float = 0.0


class Tracking:
    """Reports the steps of every parcel. You can start it in several processes: they divide the shards."""

    def __init__(self, engine: AsyncEngine, say: Callable[[str], None]) -> None:
        self.broker = OutboxBroker(
            engine, outbox_table=outbox_table, dlq_table=dlq_table, shards_table=shards_table, logger=None
        )
        self.sessions = async_sessionmaker(engine)
        self.reported = defaultdict[str, list[str]](list)
        self.most_at_once = 0
        self._at_once = 0
        self._say = say
        self.broker.subscriber(
            STEPS,
            max_workers=8,
            # The default, `HeadLease()`, needs no table. With this one a parcel stays with one process.
            ordering=HashShards(),
            retry_strategy=ConstantRetry(delay_seconds=1.0, max_attempts=3),
        )(self.report)

    async def happen(self, step: Step) -> None:
        """Publish one step. If your code changes its own tables too, publish in the same transaction."""
        async with self.sessions() as session, session.begin():
            await self.broker.publish(step, queue=STEPS, key=step.parcel, session=session)

    async def happen_together(self, steps: Sequence[Step]) -> None:
        """Publish many steps, of any parcels, with one statement; those of one parcel keep the order of the list."""
        async with self.sessions() as session, session.begin():
            await self.broker.publish_batch(*steps, queue=STEPS, keys=[step.parcel for step in steps], session=session)

    async def report(self, step: Step, message: OutboxMessage) -> None:
        """Report a step. One that fails is retried; later steps of its parcel wait for it, other parcels do not."""
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(step.seconds)
            if step.what == "sorted" and message.raw_message.attempts_count == 0 and step.parcel == "parcel 2":
                self._say(f"{step.parcel}: not {step.what} yet")
                raise TimeoutError(f"nobody knows where {step.parcel} is")
            self.reported[step.parcel].append(step.what)
            self._say(f"{step.parcel}: {step.what}")
        finally:
            self._at_once -= 1
