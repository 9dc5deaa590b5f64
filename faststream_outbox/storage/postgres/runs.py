"""Claims and settles of runs on Postgres."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import uuid4

from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.ordering.key_cursor import MOST_VISITS, KeyCursor, KeyPlan, finite
from faststream_outbox.storage.ordering.runs import Run, RunClaim
from faststream_outbox.storage.ordering.strategies import AdvisoryLocks, HashShards
from faststream_outbox.storage.outcomes import Ack, Dead, Park, Retry, Settlement, clean_exception_text, epoch_or_none
from faststream_outbox.storage.postgres.drivers import Executor, Records
from faststream_outbox.storage.postgres.statements.rows import Statement
from faststream_outbox.storage.postgres.statements.runs import RunStatements
from faststream_outbox.storage.rows import NewRow, OutboxRow


class _Met(NamedTuple):
    """What a walk says of itself."""

    visits: int
    last: str | None
    wanted: int
    next_due: float | None
    suspects: bool
    now: float


_NOTHING: Final = _Met(0, None, 0, None, suspects=False, now=0.0)


class PostgresRuns:
    """The rows with a key, seen from one lane."""

    def __init__(self, executor: Executor, statements: RunStatements) -> None:
        self._executor = executor
        self._statements = statements

    async def claim(
        self,
        cursor: KeyCursor,
        *,
        keys: int,
        rows_per_key: int,
        lease_seconds: float,
        suspects: bool,
        row_type: type[OutboxRow],
    ) -> RunClaim:
        """Lease up to `keys` keys whose turn has come, or whose lease ran out."""
        began, plan = time.monotonic(), cursor.plan()
        seconds = check_number("lease_seconds", lease_seconds)
        walk = (plan.queue, *plan.after, check_count("keys", keys), MOST_VISITS, suspects)
        lease = (uuid4(), seconds)
        met, handed = await self._claim(plan, lease, walk, check_count("rows_per_key", rows_per_key))
        runs: dict[int, list[OutboxRow]] = {}
        for head, *fields in handed:
            runs.setdefault(head, []).append(row_type(*fields))
        claimed = [_run(sorted(rows, key=_by_id), met.now, began, suspect=suspects) for rows in runs.values()]
        ended = met.visits < MOST_VISITS and met.wanted < keys
        found, lost = len(claimed), met.wanted - len(claimed)
        more = cursor.record(plan, last=met.last, ended=ended, found=found, lost=lost, next_due=met.next_due)
        return RunClaim(plan, claimed, began + seconds, more, finite(met.next_due), met.suspects)

    async def _claim(
        self, plan: KeyPlan, lease: tuple[Any, ...], walk: tuple[Any, ...], rows_per_key: int
    ) -> tuple["_Met", Records]:
        match plan.ordering:
            case HashShards() if not plan.shards:
                return _NOTHING, []
            case HashShards(count):
                shards = (count - 1, list(plan.shards))
                records = await self._executor.fetch(
                    self._statements.claim_shards, *lease, *walk, rows_per_key, *shards
                )
            case AdvisoryLocks():
                return await self._claim_locked(plan, lease, walk, rows_per_key)
            case _:
                records = await self._executor.fetch(self._statements.claim, *lease, *walk, rows_per_key)
        width = len(_Met._fields)
        return _Met(*records[0][:width]), [record[width:] for record in records if record[width] is not None]

    async def _claim_locked(
        self, plan: KeyPlan, lease: tuple[Any, ...], walk: tuple[Any, ...], rows_per_key: int
    ) -> tuple["_Met", Records]:
        suspects = walk[-1]
        async with self._executor.transaction():
            [[*met, heads]] = await self._executor.fetch(self._statements.lock_keys, *walk)
            if not heads:
                return _Met(*met), []
            asked = (*lease, plan.queue, suspects, rows_per_key, heads)
            return _Met(*met), await self._executor.fetch(self._statements.claim_locked, *asked)

    @property
    def settle(self) -> Statement:
        """The statement that writes what became of runs; it returns the leases that still held."""
        return self._statements.settle

    def columns(self, settlements: Sequence[Settlement]) -> list[list[Any]]:
        """Tell what that statement takes; the settlements come in the order of their leases."""
        return columns_of_runs(settlements, self._statements)


def columns_of_runs(settlements: Sequence[Settlement], statements: RunStatements) -> list[list[Any]]:
    """Tell what the statement takes that settles runs; they come in the order of their leases."""
    entries, keeps_dead = _Entries(), statements.keeps_dead
    for settlement in settlements:
        entries.add(settlement, keeps_dead=keeps_dead)
    return entries.columns(keeps_dead=keeps_dead)


@dataclass(slots=True)
class _Entries:
    """What the settling statement takes, gathered from many runs."""

    heads: list[tuple[Any, ...]] = field(default_factory=list)
    done: list[tuple[Any, ...]] = field(default_factory=list)
    again: list[tuple[Any, ...]] = field(default_factory=list)
    dead: list[tuple[Any, ...]] = field(default_factory=list)
    parked: list[tuple[Any, ...]] = field(default_factory=list)
    outputs: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, settlement: Settlement, *, keeps_dead: bool) -> None:
        head = settlement.lease.row_id
        self.heads.append(tuple(settlement.lease))
        for row_id, outcome in settlement.outcomes:
            match outcome:
                case Retry(attempts_count=attempts):
                    self.again.append((row_id, head, outcome.bounded_delay, attempts, *_times(outcome)))
                case Dead() if keeps_dead:
                    self.dead.append((row_id, head, *_failure(outcome)))
                case Park(dead):
                    self.parked.append((row_id, head, *_failure(dead)))
                case Ack(outputs):
                    self.done.append((row_id, head))
                    self.outputs.extend((row_id, *_values(new)) for new in outputs)
                case Dead():
                    self.done.append((row_id, head))

    def columns(self, *, keeps_dead: bool) -> list[list[Any]]:
        shapes = [(self.heads, 2), (self.done, 2), (self.again, 6), (self.outputs, 8)]
        if keeps_dead:
            shapes.append((self.dead, 7))
        shapes.append((self.parked, 7))
        return [column for entries, width in shapes for column in _columns(entries, width)]


def _columns(entries: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*entries, strict=True)] if entries else [[] for _ in range(width)]


def _values(new: NewRow) -> tuple[Any, ...]:
    return (new.queue, new.key, new.payload, new.headers_json, new.timer_id, new.delay_seconds, new.due_epoch)


def _failure(dead: Dead) -> tuple[Any, ...]:
    return (dead.reason, clean_exception_text(dead.last_exception), dead.attempts_count, *_times(dead))


def _times(outcome: Retry | Dead) -> tuple[float | None, float | None]:
    return epoch_or_none(outcome.first_attempt_at), epoch_or_none(outcome.last_attempt_at)


def _by_id(row: OutboxRow) -> int:
    return row.id


def _run(rows: list[OutboxRow], now: float, began: float, *, suspect: bool) -> Run:
    """Cut a run off at the first row that is not due yet, or comes alone; let the head's lease cover the others."""
    head = rows[0]
    taken = [head]
    for row in rows[1:]:
        if row.next_attempt_epoch > now or row.timer_id is not None or row.acquired_epoch is not None:
            break
        row.acquired_token, row.acquired_epoch = head.acquired_token, head.acquired_epoch
        row.lease_expires_epoch, row.deliveries_count = head.lease_expires_epoch, row.deliveries_count + 1
        taken.append(row)
    for row in taken:
        row.claimed_at, row.suspect = began, suspect
    return Run(taken)
