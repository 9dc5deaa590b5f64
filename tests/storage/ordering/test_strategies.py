"""Whatever the order in which processes come and go, each ends with a fair share and no shard is left over."""

import random
from collections import Counter
from uuid import UUID, uuid4
from zlib import crc32

import pytest

from faststream_outbox.storage.ordering.strategies import Shard, ShardLease, fair_share


class Table:
    """The leases of one queue's shards; a step is what a process does every few seconds."""

    def __init__(self, count: int, rng: random.Random) -> None:
        self.holders: list[UUID | None] = [None] * count
        self.rng = rng
        self.moves = 0

    def leases(self) -> list[ShardLease]:
        return [ShardLease(Shard("q", n), holder, holder is not None) for n, holder in enumerate(self.holders)]

    def step(self, me: UUID, seen: list[ShardLease] | None = None) -> None:
        """Choose by what was seen, perhaps a while ago, and take what is still as it was."""
        for lease in fair_share(seen or self.leases(), me, self.rng):
            number = lease.shard.number
            if self.holders[number] == lease.holder:
                self.moves += self.holders[number] != me
                self.holders[number] = me


def settle_down(table: Table, processes: list[UUID]) -> None:
    """Let processes take their shares until none moves any more."""
    for _ in range(3):
        for each in processes:
            table.step(each)


@pytest.mark.parametrize("seed", range(20))
def test_shares_become_fair_and_then_stay(seed: int) -> None:
    rng = random.Random(seed)
    table, processes = Table(2 ** rng.randrange(1, 7), rng), [uuid4() for _ in range(rng.randrange(1, 9))]
    for _ in range(6):
        seen = table.leases()  # by all at once
        for each in rng.sample(processes, len(processes)):
            table.step(each, seen)
        for each in rng.sample(processes, len(processes)):
            table.step(each)
    counts = Counter(table.holders)
    assert None not in counts
    least = len(table.holders) // len(processes)
    assert all(least <= counts[each] <= least + 1 for each in processes)
    table.moves = 0
    for each in processes:
        table.step(each)
    assert table.moves == 0


def test_only_what_is_needed_changes_hands() -> None:
    table, first, second = Table(16, random.Random(1)), uuid4(), uuid4()
    table.step(first)
    table.moves = 0
    table.step(second)
    table.step(first)
    assert table.moves == 8


@pytest.mark.parametrize("processes", range(1, 9))
def test_a_process_that_joins_or_leaves_moves_about_its_share_of_the_keys(processes: int) -> None:
    """As little as with consistent hashing, and evenly; a hash by the number of processes moves nearly all."""
    keys = [crc32(b"%d" % number) for number in range(10_000)]
    table, present = Table(64, random.Random(processes)), [uuid4() for _ in range(processes)]
    settle_down(table, present)
    before = list(table.holders)
    settle_down(table, [*present, joined := uuid4()])
    share = 1 / (processes + 1)
    moved = sum(before[key % 64] != table.holders[key % 64] for key in keys) / len(keys)
    assert share - 0.05 < moved < share + 0.05
    assert sum(key % processes != key % (processes + 1) for key in keys) / len(keys) > 1 - share - 0.05

    before = [None if each == joined else each for each in table.holders]
    table.holders, table.moves = list(before), 0
    settle_down(table, present)
    left = before.count(None)
    # Who comes first takes a share that is rounded up; the last may get one shard each from some of those.
    assert left <= table.moves < left + processes
