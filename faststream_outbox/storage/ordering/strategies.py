"""How claimers of one queue keep out of each other's way: three strategies, one guarantee.

In all of them the lease of a key lives on its first row, and every settle is fenced by it. So they may share a queue,
and a deployment may change from one to another while it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# More shards than that are more than there will be processes to hold them.
MOST_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True)
class HeadLease:
    """Claimers look at all keys, each from a place of its own, and skip those that another one is claiming.

    Nothing to set up, and the fastest: take another one for what it does besides.

    Example:
        @broker.subscriber("orders", ordering=HeadLease())
        async def handle(order: Order) -> None: ...

    """


@dataclass(frozen=True, slots=True)
class AdvisoryLocks:
    """A claimer takes a key's advisory lock before it claims the key, and skips keys whose lock others hold.

    So whoever holds that lock, in any program, keeps a key from being claimed until its transaction ends.

    Example:
        @broker.subscriber("orders", ordering=AdvisoryLocks())
        async def handle(order: Order) -> None: ...

    """


@dataclass(frozen=True, slots=True)
class HashShards:
    """Each process looks at the keys of its own shards, so a key stays with one process while none comes or goes.

    The processes share the shards of a queue among themselves, by leases in a table: `OutboxBroker(shards_table=…)`. Or
    give `shards`, and each process looks at those that it was given, for ever.

    Args:
        count: Into how many shards the keys are divided, a power of two; no more processes than that have work.
        shards: Which of them are this process's own, from 0 to `count` - 1; by default they are shared dynamically.

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
    """Refuse what is no strategy."""
    if isinstance(ordering, HeadLease | AdvisoryLocks | HashShards):
        return ordering
    if isinstance(ordering, type):
        raise TypeError(f"ordering is a strategy, not the class of one: {ordering.__name__}().")
    raise TypeError(f"ordering is HeadLease(), AdvisoryLocks() or HashShards(), not {ordering!r}.")
