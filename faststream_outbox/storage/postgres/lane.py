"""One lane to the outbox table: claims, renewals and settles, each a statement or a few."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import attrgetter
from typing import Any, Final, TypeVar
from uuid import uuid4

from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.contract import (
    Claim,
    QueueStats,
    StoreConnection,
)
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.errors import concerns_rows, sqlstate
from faststream_outbox.storage.ordering.key_cursor import KeyCursor
from faststream_outbox.storage.ordering.runs import RunClaim
from faststream_outbox.storage.ordering.shards import NO_SHARDS, Shard, ShardHolder
from faststream_outbox.storage.outcomes import (
    Ack,
    Dead,
    Park,
    Retry,
    Settled,
    SettleInterruptedError,
    Settlement,
    clean_exception_text,
    epoch_or_none,
)
from faststream_outbox.storage.postgres.drivers import Executor, Records
from faststream_outbox.storage.postgres.runs import PostgresRuns
from faststream_outbox.storage.postgres.shards import PostgresShards, ShardStatements
from faststream_outbox.storage.postgres.statements.rows import PING, Statement, Statements
from faststream_outbox.storage.postgres.statements.runs import RunStatements
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow, Position

_T = TypeVar("_T")

# Errors that concern every row of a statement, and no other statement: a table or column that is missing.
_STATEMENT_ERRORS: Final = ("42",)

# As exact as an event loop's timers are.
_SOONEST: Final = 0.001
# The first instant that Postgres can name, in the year 4714 before Christ.
_CALENDAR_BEGINS: Final = -210_866_803_200.0
_BY_LEASE: Final = attrgetter("lease")
_BY_ID: Final = attrgetter("id")
_BY_TIME: Final = attrgetter("next_attempt_epoch")
_Entry = tuple[Any, ...]  # a lease's id and token, and what its statement takes besides


@dataclass(slots=True)
class _Group:
    """Rows that are deleted together or not at all, and what is inserted with that."""

    leases: list[Lease] = field(default_factory=list)
    outputs: list[NewRow] = field(default_factory=list)


class PostgresConnection(StoreConnection):
    """One lane to the outbox table."""

    def __init__(
        self, executor: Executor, statements: Statements, runs: RunStatements, shards: ShardStatements | None = None
    ) -> None:
        self._executor = executor
        self._statements = statements
        self._runs = PostgresRuns(executor, runs)
        self._shards = None if shards is None else PostgresShards(executor, shards)

    async def claim(self, cursor: ClaimCursor, *, limit: int, lease_seconds: float) -> Claim:
        """Lease up to `limit` due rows."""
        check_count("limit", limit)
        began = time.monotonic()
        plan = cursor.plan(limit, began)
        asked = (list(plan.queues), list(plan.quotas), *_starts(plan.starts), limit)
        try:
            rows = await self._lease(self._statements.claim, lease_seconds, began, *asked)
        except BaseException:
            cursor.abandon(plan, began=began, ended=time.monotonic())
            raise
        # One after the other is the same as by both, and makes no tuples.
        rows.sort(key=_BY_ID)
        rows.sort(key=_BY_TIME)
        more = cursor.record(plan, rows, began=began, ended=time.monotonic())
        return Claim(rows, began + lease_seconds, more)

    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out."""
        began = time.monotonic()
        queues, ends = list(cursor.reach), list(cursor.reach.values())
        rows = await self._lease(self._statements.claim_suspect, lease_seconds, began, queues, *_ends(ends))
        for row in rows:
            row.suspect = True
        return Claim(rows, began + lease_seconds, more=bool(rows))

    async def _lease(self, statement: Statement, lease_seconds: float, began: float, *args: Any) -> list[OutboxRow]:
        seconds = check_number("lease_seconds", lease_seconds)
        token = uuid4()
        make = self.row_type
        rows = [make(*record) for record in await self._executor.fetch(statement, token, seconds, *args)]
        for row in rows:
            row.acquired_token = token  # not sent back: this way it is one object for all of them
            row.claimed_at = began
        return rows

    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Lengthen leases."""
        held = sorted(set(leases))
        if not held:
            return frozenset()
        seconds = check_number("lease_seconds", lease_seconds)
        return leases_of(await self._executor.fetch(self._statements.renew, *_columns_of_leases(held), seconds))

    async def release(self, rows: Iterable[OutboxRow]) -> frozenset[Lease]:
        """Give back rows that were not started."""
        given = sorted({(*row.lease, row.suspect) for row in rows})
        if not given:
            return frozenset()
        return leases_of(await self._executor.fetch(self._statements.release, *_columns(given)))

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes, one statement per kind."""
        statements = self._statements
        acked, retried, dead = list[Lease](), list[_Entry](), list[_Entry]()
        chained: dict[Any, _Group] = {}
        runs = list[Settlement]()
        for settlement in _first_verdicts(settlements):
            lease = settlement.lease
            if settlement.followers:
                runs.append(settlement)
                continue
            match outcome := settlement.outcome:
                case Ack() if not outcome.outputs and settlement.group is None:
                    acked.append(lease)
                case Ack(outputs):
                    group = chained.setdefault(lease if settlement.group is None else settlement.group, _Group())
                    group.leases.append(lease)
                    group.outputs.extend(outputs)
                case Retry(attempts_count=attempts):
                    retried.append((*lease, outcome.bounded_delay, attempts, *_times(outcome)))
                case Dead(reason, text, attempts) if statements.bury is not None:
                    dead.append((*lease, reason, clean_exception_text(text), attempts, *_times(outcome)))
                case Dead():
                    acked.append(lease)
                case Park():
                    runs.append(settlement)
        settled = Settled()
        try:
            await self._write_or_split(
                statements.delete_batch, acked, settled, _columns_of_leases, list, read=_leases_by_number
            )
            await self._settle_groups(list(chained.values()), settled)
            await self._settle_or_split(statements.retry, retried, settled)
            await self._settle_or_split(statements.bury or statements.delete, dead, settled)
            await self._write_or_split(self._runs.settle, runs, settled, self._runs.columns, _leases_of_runs)
        except Exception as error:
            raise SettleInterruptedError(settled) from error
        return settled

    async def _settle_or_split(self, statement: Statement, entries: Sequence[_Entry], settled: Settled) -> None:
        await self._write_or_split(statement, entries, settled, _columns, lambda some: [Lease(*e[:2]) for e in some])

    async def _settle_groups(self, groups: Sequence[_Group], settled: Settled) -> None:
        statement = self._statements.delete_and_insert
        await self._write_or_split(
            statement,
            groups,
            settled,
            _columns_of_groups,
            lambda some: [lease for group in some for lease in group.leases],
        )

    async def _write_or_split(
        self,
        statement: Statement,
        entries: Sequence[_T],
        settled: Settled,
        columns: Callable[[Sequence[_T]], Iterable[list[Any]]],
        its_leases: Callable[[Sequence[_T]], Sequence[Lease]],
        *,
        read: Callable[[Records, Sequence[Lease]], frozenset[Lease]] | None = None,
    ) -> None:
        if not entries:
            return
        leases = its_leases(entries)
        try:
            records = await self._executor.fetch(statement, *columns(entries))
        except Exception as error:
            if sqlstate(error).startswith(_STATEMENT_ERRORS) or (concerns_rows(error) and len(entries) == 1):
                settled.failed.update(dict.fromkeys(leases, error))
            elif concerns_rows(error):
                middle = len(entries) // 2
                for half in (entries[:middle], entries[middle:]):
                    await self._write_or_split(statement, half, settled, columns, its_leases, read=read)
            else:
                raise
        else:
            held = leases_of(records) if read is None else read(records, leases)
            settled.held |= held
            if len(held) < len(leases):
                settled.lost |= set(leases) - held

    async def claim_runs(
        self, cursor: KeyCursor, *, keys: int, rows_per_key: int, lease_seconds: float, suspects: bool = False
    ) -> RunClaim:
        """Lease keys, with the rows that are due."""
        return await self._runs.claim(
            cursor,
            keys=keys,
            rows_per_key=rows_per_key,
            lease_seconds=lease_seconds,
            suspects=suspects,
            row_type=self.row_type,
        )

    async def share_shards(
        self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float
    ) -> list[Shard]:
        """Hold a fair share of each queue's shards."""
        if self._shards is None:
            raise RuntimeError(NO_SHARDS)
        return await self._shards.share(holder, queues, count=count, lease_seconds=lease_seconds)

    async def leave_shards(self, holder: ShardHolder, queues: Sequence[str]) -> None:
        """Leave the holder's shards to others."""
        if self._shards is not None:
            await self._shards.leave(holder.token, queues)

    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Tell in how many seconds the next free row is due."""
        marks = list(cursor.marks.values())
        asked_at = time.monotonic()
        [[seconds]] = await self._executor.fetch(self._statements.next_due, list(cursor.marks), *_starts(marks))
        if seconds is None:
            return None
        if seconds <= 0:
            return 0.0
        # A busy process reads the answer late. What will be due is not due now, however little is left of it.
        return max(_SOONEST, float(seconds) - (time.monotonic() - asked_at))

    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows."""
        return [QueueStats(*record) for record in await self._executor.fetch(self._statements.stats)]

    async def ping(self) -> None:
        """Ask the server for a sign of life."""
        await self._executor.fetch(PING)


def _first_verdicts(settlements: Iterable[Settlement]) -> Iterator[Settlement]:
    """Put settlements in the order of their leases; the first one of a lease stands."""
    last: Lease | None = None
    for settlement in sorted(settlements, key=_BY_LEASE):
        if settlement.lease != last:
            yield settlement
        last = settlement.lease


def _starts(positions: Sequence[Position]) -> tuple[list[float], list[int]]:
    # To the next float below, so that rounding on the way never starts a claim after its mark.
    below = (math.nextafter(at, -math.inf) for at, _ in positions)
    return [at if at > _CALENDAR_BEGINS else -math.inf for at in below], [row_id for _, row_id in positions]


def _ends(positions: Sequence[Position]) -> tuple[list[float], list[int]]:
    above = (math.nextafter(at, math.inf) for at, _ in positions)
    return [at if at > _CALENDAR_BEGINS else -math.inf for at in above], [row_id for _, row_id in positions]


def _columns(entries: Sequence[_Entry]) -> Iterable[list[Any]]:
    return map(list, zip(*entries, strict=True))


def _columns_of_leases(leases: Sequence[Lease]) -> Iterable[list[Any]]:
    return [lease.row_id for lease in leases], [lease.token for lease in leases]


def deletion(
    statements: Statements, leases: Sequence[Lease], outputs: Sequence[NewRow]
) -> tuple[Statement, Iterable[list[Any]]]:
    """Choose the statement that deletes these rows, and inserts those, with what it takes."""
    if outputs:
        return statements.delete_and_insert, _columns_of_groups([_Group(list(leases), list(outputs))])
    return statements.delete, _columns_of_leases(sorted(leases))


def _columns_of_groups(groups: Sequence[_Group]) -> Iterable[list[Any]]:
    rows = sorted((*lease, n, len(group.leases)) for n, group in enumerate(groups) for lease in group.leases)
    outputs = [
        (n, new.queue, new.key, new.payload, new.headers_json, new.timer_id, new.delay_seconds, new.due_epoch)
        for n, group in enumerate(groups)
        for new in group.outputs
    ]
    # Without outputs there are no tuples to take columns from.
    return [*_columns(rows), *(_columns(outputs) if outputs else [[] for _ in range(_OUTPUT_COLUMNS)])]


_OUTPUT_COLUMNS: Final = 8


def _leases_of_runs(runs: Sequence[Settlement]) -> list[Lease]:
    return [run.lease for run in runs]


def _leases_by_number(records: Records, leases: Sequence[Lease]) -> frozenset[Lease]:
    """Find the leases that a statement numbered; those are all of them, but for accidents."""
    numbers: list[int] = records[0][0] or []
    return frozenset(leases if len(numbers) == len(leases) else (leases[number - 1] for number in numbers))


def leases_of(records: Records) -> frozenset[Lease]:
    """Read the leases that a statement returned."""
    return frozenset(starmap(Lease, records))


def _times(outcome: Retry | Dead) -> tuple[float | None, float | None]:
    return epoch_or_none(outcome.first_attempt_at), epoch_or_none(outcome.last_attempt_at)
