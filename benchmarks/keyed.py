"""Rows with a key, 1 to 10 for each, and the claimers of each strategy."""

from typing import Final

from benchmarks.outbox import LEASE_SECONDS, QUEUE
from faststream_outbox.engine.options import DEFAULTS
from faststream_outbox.storage import Ack, OutboxRow, Settlement, StoreLane
from faststream_outbox.storage.ordering import (
    AdvisoryLocks,
    HashShards,
    HeadLease,
    KeyCursor,
    Ordering,
    OwnShards,
    Run,
    RunClaim,
    Shard,
)

SHARDS: Final = 16
ORDERINGS: Final[dict[str, Ordering]] = {
    "HeadLease": HeadLease(),
    "AdvisoryLocks": AdvisoryLocks(),
    "HashShards": HashShards(count=SHARDS),
}
# What a subscriber takes of one key at once: more than any key of ours has.
ROWS_PER_KEY: Final = DEFAULTS.rows_per_key
MOST_ROWS: Final = 10
# Ten keys in turns, the first with one row, the last with ten: a key's rows lie apart from each other.
_TURNS: Final = [key for turn in range(MOST_ROWS) for key in range(turn, MOST_ROWS)]
MEAN_ROWS: Final = len(_TURNS) / MOST_ROWS


def rows_with_keys(salt: str = "") -> tuple[str, str]:
    """Name the columns and values of such rows, for `Outbox.load`; the keys are different ones for each salt."""
    key_of = f"(ARRAY{_TURNS})[n % {len(_TURNS)} + 1]"
    return "queue, entity_key", f"'{QUEUE}', md5('{salt} ' || n / {len(_TURNS)} || ' ' || {key_of})"


def shards_of(claimer: int, claimers: int) -> list[int]:
    """Return one claimer's fair share of the shards."""
    return list(range(claimer, SHARDS, claimers))


class Claimer:
    """A lane, and where it stands among the keys."""

    def __init__(self, lane: StoreLane, ordering: Ordering, shards: list[int]) -> None:
        self._lane = lane
        own = [Shard(QUEUE, number) for number in shards]
        self._cursor = WatchedKeyCursor([QUEUE], ordering=ordering, shards=OwnShards(SHARDS, own))

    async def claim(self, keys: int) -> RunClaim:
        """Claim so many keys, with the rows that they have."""
        return await self._lane.claim_runs(
            self._cursor, keys=keys, rows_per_key=ROWS_PER_KEY, lease_seconds=LEASE_SECONDS
        )

    async def settle(self, runs: list[Run]) -> None:
        """Say that all of it is done."""
        await self._lane.settle([Settlement.of_run(run.lease, [(row.id, Ack()) for row in run.rows]) for run in runs])

    @property
    def ended(self) -> bool:
        """Whether the last claim came to the last key."""
        return self._cursor.ended


class WatchedKeyCursor(KeyCursor):
    """A cursor that records whether its last claim reached the last key."""

    ended = False

    def record(self, *args: object, ended: bool, **met: object) -> bool:
        """Record the claim as the parent class does, and whether it reached the last key."""
        self.ended = ended
        return super().record(*args, ended=ended, **met)  # type: ignore[arg-type]  # all fields, passed on


def rows_of(runs: list[Run]) -> list[OutboxRow]:
    """Return the rows of runs."""
    return [row for run in runs for row in run.rows]
