"""Keeps a subscriber's share of the shards, and gives it back at the end."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage.ordering import HashShards, OwnShards, Shard, ShardHolder

# For how long the shards of a process that died have no claimer; it renews them three times meanwhile.
SHARD_LEASE_SECONDS: Final = 6.0
_RENEWALS_PER_LEASE: Final = 3
# After how many leases without success something is wrong that will not pass by itself.
_PATIENCE: Final = 3


class ShardKeeper(Loop):
    """Renews the leases of its shards, and takes and loses some as processes come and go."""

    failure_event = "shards_failed"
    task = "Sharing the shards"

    def __init__(
        self,
        link: ReconnectingLane,
        queues: Sequence[str],
        own: OwnShards,
        monitor: Monitor,
        *,
        wake: Callable[[], None],
        lease_seconds: float = SHARD_LEASE_SECONDS,
    ) -> None:
        super().__init__(monitor)
        self._link = link
        self._queues = queues
        self._own = own
        self._wake = wake
        self._lease_seconds = lease_seconds
        self._shared_at = time.monotonic()
        self._holder = ShardHolder(uuid4(), f"{socket.gethostname()}:{os.getpid()}")

    async def step(self) -> None:
        """Take our share, then wait for a third of a lease."""
        held = await self._link.run(
            lambda lane: lane.share_shards(
                self._holder, self._queues, count=self._own.count, lease_seconds=self._lease_seconds
            )
        )
        self._shared_at = time.monotonic()
        if self._own.replace(held):
            self._wake()
        await asyncio.sleep(self._lease_seconds / _RENEWALS_PER_LEASE)

    @property
    def alive(self) -> bool:
        """Whether the loop is running, and has its share: without one no key would be looked at."""
        lately = time.monotonic() - self._shared_at < _PATIENCE * self._lease_seconds
        return super().alive and lately

    async def leave(self) -> None:
        """Give all shards back, so that others need not wait for their leases to run out, as they do if this fails."""
        await self.stop()
        try:
            await self._link.run(lambda lane: lane.leave_shards(self._holder, self._queues))
        except Exception as error:  # noqa: BLE001 - what is in hand has to be settled all the same
            message = f"The shards could not be given back; others have them in a few seconds: {describe(error)}"
            self._monitor.report("release_failed", message, level=logging.WARNING, error=error)


def own_shards(ordering: object, queues: Sequence[str]) -> OwnShards | None:
    """Tell which shards a claimer looks at to begin with; None where keys are not divided into shards."""
    if not isinstance(ordering, HashShards):
        return None
    return OwnShards(ordering.count, [Shard(queue, number) for queue in queues for number in ordering.shards or ()])
