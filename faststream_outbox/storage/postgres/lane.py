"""One connection to the outbox table, for one loop: claims, renewals and settles."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any, Final, TypeVar

from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.contract import MAX_BYTES, Claim, GivenBack, SentClaim, ServerProcess
from faststream_outbox.storage.cursor import BEGINNING, ClaimCursor
from faststream_outbox.storage.errors import ReadOnlyServerError, concerns_rows, sqlstate
from faststream_outbox.storage.nodes import Nodes
from faststream_outbox.storage.operating.reads import STATS_CAP
from faststream_outbox.storage.outcomes import Ack, Dead, Park, Retry, Settled, SettleInterruptedError, Settlement
from faststream_outbox.storage.postgres.drivers import (
    INSUFFICIENT_PRIVILEGE,
    IS_THERE,
    READ_ONLY,
    Executor,
    Records,
)
from faststream_outbox.storage.postgres.runs import RunClaims, recovery_parameters, settle_parameters
from faststream_outbox.storage.postgres.shards import ShardLeases, ShardStatements
from faststream_outbox.storage.postgres.statements import Statements
from faststream_outbox.storage.postgres.statements.claim import POSITIONS, QUOTAS, RELEASED
from faststream_outbox.storage.postgres.statements.insert import OUTPUTS, output_values
from faststream_outbox.storage.postgres.statements.operators import HIDDEN_TABLES
from faststream_outbox.storage.postgres.statements.runs import RunKind
from faststream_outbox.storage.postgres.statements.settle import BURIED, GROUPED, RETRIED, failure_values, retry_values
from faststream_outbox.storage.postgres.statements.statement import LEASES, Statement
from faststream_outbox.storage.queue_stats import QueueCounts, QueueStats
from faststream_outbox.storage.rows import Lease, NewRow, OutboxRow, Position
from faststream_outbox.storage.schema.row_security import RowSecurityError

_T = TypeVar("_T")

# Errors that concern every row of a statement, and no other statement: a missing table or column.
_STATEMENT_ERRORS: Final = ("42",)

# The precision of an event loop's timers.
_SOONEST: Final = 0.001
# The first instant of Postgres' calendar, in the year 4714 before Christ.
_CALENDAR_BEGINS: Final = -210_866_803_200.0
_BY_LEASE: Final = attrgetter("lease")
_TOKEN: Final = [each.name for each in fields(OutboxRow)].index("acquired_token")
_BY_ID: Final = attrgetter("id")
_BY_TIME: Final = attrgetter("next_attempt_epoch")
_Entry = tuple[Any, ...]  # a lease's id and token, and the other columns of its statement


@dataclass(slots=True)
class _Group:
    """Rows that are deleted together or not at all, and the outputs that are inserted with that."""

    leases: list[Lease] = field(default_factory=list)
    outputs: list[NewRow] = field(default_factory=list)


class PostgresLane(RunClaims, ShardLeases):
    """A `StoreLane` to Postgres."""

    def __init__(
        self,
        executor: Executor,
        statements: Statements,
        shards: ShardStatements | None = None,
        *,
        nodes: Nodes,
        tables: Sequence[str] = (),
        process: ServerProcess | None = None,
    ) -> None:
        self._executor = executor
        self._nodes = nodes
        self._statements = statements
        self._shards = shards
        self._tables = tables
        self._process = process

    async def claim(
        self, cursor: ClaimCursor, *, limit: int, lease_seconds: float, max_bytes: int = MAX_BYTES
    ) -> Claim:
        """Lease up to `limit` due rows."""
        check_count("limit", limit)
        check_count("max_bytes", max_bytes)
        began = lease_now()
        plan = cursor.plan(limit, began)
        starts = _shifted(plan.starts, -math.inf)
        asked = QUOTAS.fill([(*each, *start) for *each, start in zip(plan.queues, plan.quotas, starts, strict=True)])
        try:
            rows, ready = await self._lease(
                self._statements.claim.claim,
                SentClaim(self._nodes.own.make_token(), tuple(zip(plan.queues, plan.starts, strict=True))),
                lease_seconds,
                began,
                **asked,
                limit=limit,
                max_bytes=max_bytes,
            )
        except BaseException:
            cursor.abandon(plan, began=began, ended=lease_now())
            raise
        # Two stable sorts equal one sort by (time, id) and allocate no tuples.
        rows.sort(key=_BY_ID)
        rows.sort(key=_BY_TIME)
        cut = ready is not None and ready > len(rows)
        more = cursor.record(plan, rows, began=began, ended=lease_now(), cut=cut)
        return Claim(rows, began + lease_seconds, more)

    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out."""
        began = lease_now()
        ends = zip(cursor.ends, _shifted(cursor.ends.values(), math.inf), strict=True)
        asked = POSITIONS.fill([(queue, *end) for queue, end in ends])
        starts = tuple((queue, BEGINNING) for queue in cursor.ends)
        claim = SentClaim(self._nodes.own.make_token(), starts, suspects=True)
        rows, _ = await self._lease(self._statements.claim.claim_suspect, claim, lease_seconds, began, **asked)
        for row in rows:
            row.suspect = True
        return Claim(rows, began + lease_seconds, more=bool(rows))

    async def recover(self, cursor: ClaimCursor, *, max_deliveries: int | None = None) -> int:
        """Free rows whose lease is over for the first time, and end the leases of suspects."""
        ends = zip(cursor.reach, _shifted(cursor.reach.values(), math.inf), strict=True)
        asked = POSITIONS.fill([(queue, *end) for queue, end in ends])
        known = recovery_parameters(self._nodes, max_deliveries)
        return len(await self._executor.fetch(self._statements.claim.recover, **asked, **known))

    async def _lease(
        self, statement: Statement, claim: SentClaim, lease_seconds: float, began: float, **asked: Any
    ) -> tuple[list[OutboxRow], int | None]:
        """Lease rows; return them, and what the statement has in the place of their token, which is known here."""
        seconds = check_number("lease_seconds", lease_seconds)
        token, make = claim.token, self.row_type
        self.sent = replace(claim, process=self._process)
        records = await self._executor.fetch(statement, token=token, lease_seconds=seconds, **asked)
        rows = [make(*record) for record in records]
        for row in rows:
            row.acquired_token = token  # one object serves all rows
            row.claimed_at = began
        return rows, records[0][_TOKEN] if records else None

    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Renew leases."""
        held = sorted(set(leases))
        if not held:
            return frozenset()
        seconds = check_number("lease_seconds", lease_seconds)
        asked = LEASES.fill(held)
        return leases_of(await self._executor.fetch(self._statements.claim.renew, **asked, lease_seconds=seconds))

    async def leave_running(self, leases: Iterable[Lease]) -> None:
        """Keep leases until their time is over."""
        await self._executor.fetch(self._statements.claim.leave_running, **LEASES.fill(sorted(set(leases))))

    async def release(self, rows: Iterable[OutboxRow], *, delay_seconds: float = 0.0) -> frozenset[Lease]:
        """Release rows that were not handled."""
        given = sorted({(*row.lease, row.suspect) for row in rows})
        if not given:
            return frozenset()
        asked = RELEASED.fill(given)
        released = await self._executor.fetch(self._statements.claim.release, **asked, delay=float(delay_seconds))
        return leases_of(released)

    async def give_back(self, sent: SentClaim) -> GivenBack:
        """Release the rows of a claim whose answer was lost."""
        # Asked before, in a statement of its own: what a process has committed before its end is seen after that.
        ended = await self._has_ended(sent.process)
        if sent.keys is not None:
            return GivenBack(await self._give_back_runs(sent, *sent.keys), ended)
        starts = zip(dict(sent.starts), _shifted(dict(sent.starts).values(), -math.inf), strict=True)
        asked = POSITIONS.fill([(queue, *start) for queue, start in starts])
        given = await self._executor.fetch(
            self._statements.claim.give_back, **asked, token=sent.token, suspects=sent.suspects
        )
        return GivenBack(len(given), ended)

    async def _has_ended(self, process: ServerProcess | None) -> bool | None:
        if process is None:
            return None
        try:
            [[there]] = await self._executor.fetch(IS_THERE, pid=process.pid, seen_at=process.seen_at)
        except Exception as error:
            if sqlstate(error) != INSUFFICIENT_PRIVILEGE:
                raise
            return None
        return not there

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes, one statement per kind."""
        statements = self._statements.settle
        acked, retried, dead = list[Lease](), list[_Entry](), list[_Entry]()
        chained: dict[Any, _Group] = {}
        runs: dict[RunKind, list[Settlement]] = {}
        for settlement in _first_outcomes(settlements):
            lease = settlement.lease
            if _is_run(settlement):
                runs.setdefault(_kind_of_run(settlement), []).append(settlement)
                continue
            match outcome := settlement.outcome:
                case Ack() if not outcome.outputs and settlement.group is None:
                    acked.append(lease)
                case Ack(outputs):
                    group = chained.setdefault(lease if settlement.group is None else settlement.group, _Group())
                    group.leases.append(lease)
                    group.outputs.extend(outputs)
                case Retry():
                    retried.append((*lease, *retry_values(outcome)))
                case Dead() if statements.bury is not None:
                    dead.append((*lease, *failure_values(outcome)))
                case Dead():
                    acked.append(lease)
        settled, write = Settled(), self._write
        try:
            await write(statements.delete_batch, acked, settled, LEASES.fill, list, read=_leases_by_number)
            groups = list(chained.values())
            await write(statements.delete_and_insert, groups, settled, _columns_of_groups, _leases_of_groups)
            await write(statements.retry, retried, settled, RETRIED.fill, _leases_of_entries)
            bury = statements.bury or statements.delete  # without a dead-letter table there are no entries
            await write(bury, dead, settled, BURIED.fill, _leases_of_entries)
            for kind, some in runs.items():
                columns = partial(settle_parameters, keeps_dead=statements.bury is not None, kind=kind)
                await write(self._statements.runs.settles[kind], some, settled, columns, _leases_of_runs)
        except Exception as error:
            raise SettleInterruptedError(settled) from error
        return settled

    async def _write(
        self,
        statement: Statement,
        entries: Sequence[_T],
        settled: Settled,
        columns: Callable[[Sequence[_T]], dict[str, list[Any]]],
        its_leases: Callable[[Sequence[_T]], Sequence[Lease]],
        *,
        read: Callable[[Records, Sequence[Lease]], frozenset[Lease]] | None = None,
    ) -> None:
        """Run a statement for these entries; if one of them makes it fail, for each half of them."""
        if not entries:
            return
        leases = its_leases(entries)
        try:
            records = await self._executor.fetch(statement, **columns(entries))
        except Exception as error:
            if sqlstate(error).startswith(_STATEMENT_ERRORS) or (concerns_rows(error) and len(entries) == 1):
                settled.failed.update(dict.fromkeys(leases, error))
            elif concerns_rows(error):
                middle = len(entries) // 2
                for half in (entries[:middle], entries[middle:]):
                    await self._write(statement, half, settled, columns, its_leases, read=read)
            else:
                raise
        else:
            held = leases_of(records) if read is None else read(records, leases)
            settled.held |= held
            if len(held) < len(leases):
                settled.lost |= set(leases) - held

    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Return in how many seconds the next free row is due."""
        starts = zip(cursor.starts, _shifted(cursor.starts.values(), -math.inf), strict=True)
        asked_at = lease_now()
        asked = POSITIONS.fill([(queue, *start) for queue, start in starts])
        [[seconds]] = await self._executor.fetch(self._statements.claim.next_due, **asked)
        if seconds is None:
            return None
        if seconds <= 0:
            return 0.0
        # A busy process reads the answer late: subtract that time. But never return 0 for a row that was not due: 0
        # says that another process is claiming it.
        return max(_SOONEST, float(seconds) - (lease_now() - asked_at))

    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows."""
        records = await self._executor.fetch(self._statements.queues.counts(STATS_CAP))
        return [QueueCounts.of(*record).to_stats() for record in records]

    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Count the due rows of queues that nobody reads."""
        records = await self._executor.fetch(self._statements.operators.unserved, known=list(known))
        return dict(map(tuple, records))

    async def ping(self) -> None:
        """Raise if the server does not answer, takes no writes, or hides rows by row-level security."""
        [[read_only]] = await self._executor.fetch(READ_ONLY)
        if read_only:
            raise ReadOnlyServerError
        for hidden in await self._executor.fetch(HIDDEN_TABLES, tables=self._tables):
            raise RowSecurityError(*hidden)


def _first_outcomes(settlements: Iterable[Settlement]) -> Iterator[Settlement]:
    """Yield settlements in the order of their leases; of several for one lease only the first."""
    last: Lease | None = None
    for settlement in sorted(settlements, key=_BY_LEASE):
        if settlement.lease != last:
            yield settlement
        last = settlement.lease


def _shifted(positions: Iterable[Position], towards: float) -> Iterator[Position]:
    # To the next float, so that rounding on the way to the server never makes a claim miss a row.
    for at, row_id in positions:
        shifted = math.nextafter(at, towards)
        yield (shifted if shifted > _CALENDAR_BEGINS else -math.inf), row_id


def deletion(
    statements: Statements, leases: Sequence[Lease], outputs: Sequence[NewRow]
) -> tuple[Statement, dict[str, list[Any]]]:
    """Return the statement that deletes these rows and inserts the outputs, with its parameters."""
    if outputs:
        return statements.settle.delete_and_insert, _columns_of_groups([_Group(list(leases), list(outputs))])
    return statements.settle.delete, LEASES.fill(sorted(leases))


def _columns_of_groups(groups: Sequence[_Group]) -> dict[str, list[Any]]:
    rows = sorted((*lease, n, len(group.leases)) for n, group in enumerate(groups) for lease in group.leases)
    outputs = [output_values(n, new) for n, group in enumerate(groups) for new in group.outputs]
    return {**GROUPED.fill(rows), **OUTPUTS.fill(outputs)}


def _leases_of_groups(groups: Sequence[_Group]) -> list[Lease]:
    return [lease for group in groups for lease in group.leases]


def _leases_of_entries(entries: Sequence[_Entry]) -> list[Lease]:
    return [Lease(*entry[:2]) for entry in entries]


def _is_run(settlement: Settlement) -> bool:
    return bool(settlement.followers or settlement.next_head is not None or isinstance(settlement.outcome, Park))


def _kind_of_run(run: Settlement) -> RunKind:
    outputs = any(isinstance(outcome, Ack) and outcome.outputs for _, outcome in run.outcomes)
    return RunKind(outputs=outputs, passes=run.next_head is not None)


def _leases_of_runs(runs: Sequence[Settlement]) -> list[Lease]:
    return [run.lease for run in runs]


def _leases_by_number(records: Records, leases: Sequence[Lease]) -> frozenset[Lease]:
    """Return the leases whose numbers a statement returned; nearly always these are all."""
    numbers: list[int] = records[0][0] or []
    return frozenset(leases if len(numbers) == len(leases) else (leases[number - 1] for number in numbers))


def leases_of(records: Records) -> frozenset[Lease]:
    """Return the leases of a statement's records."""
    return frozenset(starmap(Lease, records))
