"""The leases of shards in memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from faststream_outbox.storage.ordering.shards import Shard, ShardHolder, ShardLease, fair_share

if TYPE_CHECKING:
    from faststream_outbox.storage.memory.store import MemoryStore


class MemoryShards:
    """Who holds which shard, and until when."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store
        self._held: dict[Shard, tuple[UUID, float]] = {}

    def share(self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float) -> list[Shard]:
        """Hold a fair share of each queue's shards."""
        now = self._store.clock()
        wanted = [
            lease.shard
            for queue in queues
            for lease in fair_share([self._lease(Shard(queue, n), now) for n in range(count)], holder.token)
        ]
        self._held.update(dict.fromkeys(wanted, (holder.token, now + lease_seconds)))
        return wanted

    def _lease(self, shard: Shard, now: float) -> ShardLease:
        token, until = self._held.get(shard, (None, now))
        return ShardLease(shard, token, until > now)

    def leave(self, token: UUID, queues: Sequence[str]) -> None:
        """Leave all shards to others."""
        gone = [shard for shard, (holder, _) in self._held.items() if holder == token and shard.queue in queues]
        for shard in gone:
            del self._held[shard]
