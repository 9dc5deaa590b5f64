"""Which shards of a queue are whose: each process holds its fair share, by leases that it renews.

Nothing depends on it but who looks where: it is the lease of a key that keeps two processes apart. So a shard can
change hands at once, while its old holder still handles messages of its keys.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

# What whoever asks for shards without a table for them is told.
NO_SHARDS: Final = (
    "HashShards() keeps who has which shard in a table: OutboxBroker(…, shards_table=make_shards_table(metadata)). "
    "Or give each process its own: HashShards(count=16, shards=[0, 1, …])."
)


class Shard(NamedTuple):
    """One shard of a queue's keys."""

    queue: str
    number: int


@dataclass(frozen=True, slots=True)
class ShardLease:
    """Who holds a shard; nobody, or nobody any more, where it is not live."""

    shard: Shard
    holder: UUID | None
    live: bool


@dataclass(frozen=True, slots=True)
class ShardHolder:
    """Whoever holds shards: a token of its own, and a name for people to read."""

    token: UUID
    name: str


class OwnShards:
    """The shards that a claimer looks at, as far as it knows."""

    def __init__(self, count: int, shards: Iterable[Shard] = ()) -> None:
        self.count = count
        self._numbers: Mapping[str, tuple[int, ...]] = {}
        self.replace(shards)

    def of(self, queue: str) -> tuple[int, ...]:
        """Return the numbers of a queue's own shards."""
        return self._numbers.get(queue, ())

    def replace(self, shards: Iterable[Shard]) -> bool:
        """Hold these from now on; tells whether some are new."""
        numbers: dict[str, list[int]] = {}
        for shard in sorted(shards):
            numbers.setdefault(shard.queue, []).append(shard.number)
        before, self._numbers = self._numbers, {queue: tuple(each) for queue, each in numbers.items()}
        return any(set(each) - set(before.get(queue, ())) for queue, each in self._numbers.items())


def fair_share(leases: Sequence[ShardLease], me: UUID, rng: random.Random | None = None) -> list[ShardLease]:
    """Choose what to hold of one queue's shards: our own, then free ones, then those of whoever has most.

    Free ones up to an equal share, rounded up; others' only if we have less than one rounded down, so that shards do
    not go to and fro. What is chosen is given with whoever holds it now, and is ours if that is still so when we ask.
    """
    shuffled = list(leases)
    (rng or random).shuffle(shuffled)  # so that two who come at once do not want the same
    own = [each for each in shuffled if each.holder == me]
    others = [each for each in shuffled if each.live and each.holder != me]
    free = [each for each in shuffled if not each.live and each.holder != me]
    held = Counter(each.holder for each in others)
    processes = len(held) + 1
    least, most = len(leases) // processes, -(-len(leases) // processes)
    chosen = [*own, *free[: max(0, most - len(own))]]
    while len(chosen) < least:
        richest, count = held.most_common(1)[0]
        if count <= least:
            break
        held[richest] -= 1
        taken = next(each for each in others if each.holder == richest)
        others.remove(taken)
        chosen.append(taken)
    return chosen
