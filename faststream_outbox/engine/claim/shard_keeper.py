"""Leases a subscriber's share of the shards, and gives it back at the end."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

from faststream_outbox.engine.context import EngineContext
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import describe
from faststream_outbox.storage.ordering import HashShards, OwnShards, Shard, ShardHolder

# How long the shards of a process that died have no claimer. A living one renews them three times in that time.
SHARD_LEASE_SECONDS: Final = 6.0
_RENEWALS_PER_LEASE: Final = 3
# After this many leases without success the keeper counts as dead: the fault does not pass by itself.
_MOST_LEASES_MISSED: Final = 3


class ShardKeeper(Loop):
    """Renews the leases of its shards, and takes or gives up some as other processes start and stop."""

    failure_event = "shards_failed"
    task = "Sharing the shards"

    def __init__(self, context: EngineContext, own: OwnShards, wake: Callable[[], None]) -> None:
        super().__init__(context.monitor)
        self._lane = context.claim_lane
        self._queues = context.queues
        self._own = own
        self._wake = wake
        self._shared_at = time.monotonic()
        self._holder = ShardHolder(uuid4(), f"{socket.gethostname()}:{os.getpid()}")

    async def step(self) -> None:
        """Take this process's share, then wait for a third of a lease."""
        held = await self._lane.run(
            lambda lane: lane.share_shards(
                self._holder, self._queues, count=self._own.count, lease_seconds=SHARD_LEASE_SECONDS
            )
        )
        self._shared_at = time.monotonic()
        if self._own.replace(held):
            self._wake()
        await asyncio.sleep(SHARD_LEASE_SECONDS / _RENEWALS_PER_LEASE)

    @property
    def alive(self) -> bool:
        """Whether the loop is running and has shared lately: without shards no key is claimed."""
        return super().alive and time.monotonic() - self._shared_at < _MOST_LEASES_MISSED * SHARD_LEASE_SECONDS

    async def leave(self) -> None:
        """Give all shards back; if that fails, other processes take them when their leases have run out."""
        await self.stop()
        try:
            await self._lane.run(lambda lane: lane.leave_shards(self._holder, self._queues))
        except Exception as error:  # noqa: BLE001 - after any error the rows in hand must still be settled
            message = f"Could not give back the shards; other processes take them in a few seconds: {describe(error)}"
            self._monitor.report("release_failed", message, level=logging.WARNING, error=error)


def own_shards(ordering: object, queues: Sequence[str]) -> OwnShards | None:
    """Return the shards that a claimer looks at first; None where keys are not divided into shards."""
    if not isinstance(ordering, HashShards):
        return None
    return OwnShards(ordering.count, [Shard(queue, number) for queue in queues for number in ordering.shards or ()])
