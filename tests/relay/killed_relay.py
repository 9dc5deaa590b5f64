"""A relay that is killed when its rows are confirmed: `python -m tests.relay.killed_relay URL TABLE REDIS STREAM`."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from faststream.redis import RedisBroker
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.relay import Relay
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import SentRun, StillOurs
from faststream_outbox.relay.targets.redis import RedisTarget


class Dying(RedisTarget):
    """Does not outlive the confirmation."""

    async def send_run(self, run: Sequence[Outgoing], still_ours: StillOurs) -> SentRun:
        """Send all of it, and die."""
        sent = await super().send_run(run, still_ours)
        assert sent == SentRun(len(run))
        os.kill(os.getpid(), signal.SIGKILL)
        return sent


async def main(url: str, table: str, redis: str, destination: str) -> None:
    broker = OutboxBroker(create_async_engine(url), outbox_table=make_outbox_table(MetaData(), table))
    relay = Relay(broker, to=Dying(RedisBroker(redis)), routes={"q": destination}, lease_ttl_seconds=2)
    async with relay, asyncio.timeout(30):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
