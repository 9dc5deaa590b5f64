"""How claimers of one queue avoid competing for the same keys: three strategies, and the shards of one of them.

The guarantee is the same in all: the lease of a key is on its first row, and every settle is fenced by it. Strategies
may share a queue, and a deployment may change from one to another while it runs.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

# More shards than any deployment has processes.
MOST_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True)
class HeadLease:
    """Claimers visit all keys, each starting elsewhere, and skip those that another one is claiming.

    It needs no set-up, and is the default.

    Example:
        @broker.subscriber("orders", ordering=HeadLease())
        async def handle(order: Order) -> None: ...

    """


@dataclass(frozen=True, slots=True)
class AdvisoryLocks:
    """A claimer takes a key's advisory lock before it claims the key, and skips keys whose lock others hold.

    A program that holds that lock keeps the key from being claimed until its transaction ends.

    Example:
        @broker.subscriber("orders", ordering=AdvisoryLocks())
        async def handle(order: Order) -> None: ...

    """


@dataclass(frozen=True, slots=True)
class HashShards:
    """Each process visits the keys of its own shards: a key stays with one process while none starts or stops.

    The processes share the shards of a queue by leases in a table: `OutboxBroker(shards_table=…)`. With `shards` each
    process keeps the shards that it was given.

    Args:
        count: The number of shards, a power of two; no more processes than that have work.
        shards: The shards of this process, from 0 to `count` - 1; by default they are shared dynamically.

    Example:
        @broker.subscriber("orders", ordering=HashShards(count=16))
        async def handle(order: Order) -> None: ...

    """

    count: int = 16
    shards: Sequence[int] | None = None

    def __post_init__(self) -> None:
        count, shards = self.count, self.shards
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"HashShards(count=…) is a whole number, not {count!r}.")
        if not 1 <= count <= MOST_SHARDS or count & (count - 1):
            raise ValueError(f"HashShards(count=…) is a power of two up to {MOST_SHARDS}, such as 16, not {count}.")
        if shards is None:
            return
        if not isinstance(shards, Sequence):
            raise TypeError(f"HashShards(shards=…) is a list of shards, such as [0, 1], not {shards!r}.")
        if not shards or any(type(each) is not int or not 0 <= each < count for each in shards):
            raise ValueError(f"HashShards(shards=…) are some of the shards 0 to {count - 1}, not {shards!r}.")

    @property
    def is_shared(self) -> bool:
        """Whether the processes share the shards among themselves."""
        return self.shards is None


Ordering = HeadLease | AdvisoryLocks | HashShards


def check_ordering(ordering: object) -> Ordering:
    """Raise unless this is a strategy."""
    if isinstance(ordering, HeadLease | AdvisoryLocks | HashShards):
        return ordering
    if isinstance(ordering, type):
        raise TypeError(f"ordering is a strategy, not the class of one: {ordering.__name__}().")
    raise TypeError(f"ordering is HeadLease(), AdvisoryLocks() or HashShards(), not {ordering!r}.")


# The error of a lane that has no table of shards.
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
    """The holder of a shard; it is free if it has no holder or its lease ran out (not `live`)."""

    shard: Shard
    holder: UUID | None
    live: bool


@dataclass(frozen=True, slots=True)
class ShardHolder:
    """A process that holds shards: its token, and a name for people to read."""

    token: UUID
    name: str


class OwnShards:
    """The shards whose keys a claimer visits."""

    def __init__(self, count: int, shards: Iterable[Shard] = ()) -> None:
        self.count = count
        self._numbers: Mapping[str, tuple[int, ...]] = {}
        self.replace(shards)

    def of(self, queue: str) -> tuple[int, ...]:
        """Return the numbers of a queue's own shards."""
        return self._numbers.get(queue, ())

    def replace(self, shards: Iterable[Shard]) -> bool:
        """Replace the shards; return whether some are new."""
        numbers: dict[str, list[int]] = {}
        for shard in sorted(shards):
            numbers.setdefault(shard.queue, []).append(shard.number)
        before, self._numbers = self._numbers, {queue: tuple(each) for queue, each in numbers.items()}
        return any(set(each) - set(before.get(queue, ())) for queue, each in self._numbers.items())


def fair_share(leases: Sequence[ShardLease], me: UUID, rng: random.Random | None = None) -> list[ShardLease]:
    """Choose which shards of one queue to hold: our own, then free ones, then some of the process that has most.

    Free ones are chosen up to an equal share, rounded up; those of others only below an equal share, rounded down, so
    that shards do not move back and forth. Each choice names the present holder, and succeeds only if that is still so.

    Only who visits which keys depends on it: the lease of a key keeps two processes apart. A shard can therefore change
    hands at once, while its old holder still handles messages of its keys.
    """
    shuffled = list(leases)
    (rng or random).shuffle(shuffled)  # two processes at the same moment should not choose the same
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
