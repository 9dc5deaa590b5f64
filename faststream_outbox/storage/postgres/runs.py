"""Claims of runs on Postgres, and the parameters that settle them."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.contract import MAX_BYTES, MAX_ROWS, SentClaim, ServerProcess, StoreLane
from faststream_outbox.storage.nodes import Nodes
from faststream_outbox.storage.ordering.key_cursor import (
    MOST_VISITS,
    KeyCursor,
    KeyPlan,
    KeyPosition,
    Run,
    RunClaim,
    finite,
)
from faststream_outbox.storage.ordering.strategies import AdvisoryLocks, HashShards
from faststream_outbox.storage.outcomes import Ack, Dead, Park, Retry, Settlement
from faststream_outbox.storage.postgres.drivers import Executor, Records
from faststream_outbox.storage.postgres.statements import Statements
from faststream_outbox.storage.postgres.statements.insert import OUTPUTS, output_values
from faststream_outbox.storage.postgres.statements.runs import BURIED, DONE, NEXT, PARKED, RETRIED, RunKind
from faststream_outbox.storage.postgres.statements.settle import failure_values, retry_values
from faststream_outbox.storage.postgres.statements.statement import LEASES
from faststream_outbox.storage.rows import OutboxRow


class _Met(NamedTuple):
    """The summary of a walk, and how many of the wanted heads no other claimer took."""

    visits: int
    last: str | None
    wanted: int
    next_due: float | None
    suspects: bool
    now: float
    locked: int


# In the place of `max_deliveries` where there is none.
_NO_LIMIT: Final = 2**63 - 1

_NOTHING: Final = _Met(0, None, 0, None, suspects=False, now=0.0, locked=0)


class RunClaims(StoreLane):
    """The part of a lane that claims rows with a key."""

    _executor: Executor
    _statements: Statements
    _nodes: Nodes
    _process: ServerProcess | None

    async def claim_runs(
        self,
        cursor: KeyCursor,
        *,
        keys: int,
        rows_per_key: int,
        lease_seconds: float,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        suspects: bool = False,
    ) -> RunClaim:
        """Lease up to `keys` keys that are due and free or, with `suspects`, whose lease ran out."""
        began, plan = lease_now(), cursor.plan()
        seconds = check_number("lease_seconds", lease_seconds)
        walk = {
            "queue": plan.queue,
            "after_key": plan.after[0],
            "after_id": plan.after[1],
            "keys": check_count("keys", keys),
            "visits": MOST_VISITS,
            "suspects": suspects,
            **over_parameters(self._nodes),
        }
        token = self._nodes.own.make_token()
        keys_after = (plan.queue, plan.after)
        self.sent = SentClaim(token, keys=keys_after, suspects=suspects, process=self._process)
        lease = {
            "token": token,
            "lease_seconds": seconds,
            "rows_per_key": check_count("rows_per_key", rows_per_key),
            "max_rows": check_count("max_rows", max_rows),
            "max_bytes": check_count("max_bytes", max_bytes),
        }
        met, handed = await self._walk_and_lease(plan, walk, lease)
        runs: dict[int, list[OutboxRow]] = {}
        for head, *fields in handed:
            runs.setdefault(head, []).append(self.row_type(*fields))
        claimed = [_run(sorted(rows, key=attrgetter("id")), met.now, began, suspect=suspects) for rows in runs.values()]
        ended = met.visits < MOST_VISITS and met.wanted < keys
        found, lost = len(claimed), met.wanted - met.locked
        more = cursor.record(plan, last=met.last, ended=ended, found=found, lost=lost, next_due=met.next_due)
        return RunClaim(plan, claimed, began + seconds, more, finite(met.next_due), met.suspects, lost)

    async def recover_runs(self, cursor: KeyCursor, *, rows_per_key: int, max_deliveries: int | None = None) -> int:
        """End the leases of keys that a dead process held, from where the cursor is."""
        plan = cursor.plan()
        records = await self._executor.fetch(
            self._statements.runs.recover,
            queue=plan.queue,
            after_key=plan.after[0],
            after_id=plan.after[1],
            keys=MOST_VISITS,
            visits=MOST_VISITS,
            rows_per_key=check_count("rows_per_key", rows_per_key),
            **recovery_parameters(self._nodes, max_deliveries),
        )
        return int(records[0][0])

    async def _give_back_runs(self, sent: SentClaim, queue: str, after: KeyPosition) -> int:
        # Twice as many visits as the claim had: keys may have come in between.
        visits = 2 * MOST_VISITS
        records = await self._executor.fetch(
            self._statements.runs.give_back,
            queue=queue,
            after_key=after[0],
            after_id=after[1],
            keys=visits,
            visits=visits,
            token=sent.token,
            suspects=sent.suspects,
            **over_parameters(self._nodes),
        )
        return len(records)

    async def queues_with_keys(self, queues: Sequence[str]) -> frozenset[str]:
        """Return those of the queues that have rows with a key."""
        records = await self._executor.fetch(self._statements.runs.queues_with_keys, queues=list(queues))
        return frozenset(record[0] for record in records)

    async def _walk_and_lease(self, plan: KeyPlan, walk: dict[str, Any], lease: dict[str, Any]) -> tuple[_Met, Records]:
        match plan.ordering:
            case HashShards() if not plan.shards:
                return _NOTHING, []
            case HashShards(count):
                shards = {"shard_mask": count - 1, "shards": list(plan.shards)}
                records = await self._executor.fetch(self._statements.runs.claim_shards, **walk, **lease, **shards)
            case AdvisoryLocks():
                return await self._claim_locked(walk, lease)
            case _:
                records = await self._executor.fetch(self._statements.runs.claim, **walk, **lease)
        width = len(_Met._fields)
        return _Met(*records[0][:width]), [record[width:] for record in records if record[width] is not None]

    async def _claim_locked(self, walk: dict[str, Any], lease: dict[str, Any]) -> tuple[_Met, Records]:
        async with self._executor.transaction():
            [[*met, heads]] = await self._executor.fetch(self._statements.runs.lock_keys, **walk)
            met.append(0)  # until it is known how many of them can be locked
            if not heads:
                return _Met(*met), []
            asked = {"queue": walk["queue"], "suspects": walk["suspects"], "heads": heads}
            records = await self._executor.fetch(self._statements.runs.claim_locked, **lease, **asked)
            met[-1] = records[0][0]
            return _Met(*met), [record[1:] for record in records if record[1] is not None]


def over_parameters(nodes: Nodes) -> dict[str, Any]:
    """Return the parameters by which a statement knows that a lease is over."""
    deaths = nodes.watch.deaths
    return {"claimed_before": deaths.claimed_before, "alive": list(deaths.alive)}


def recovery_parameters(nodes: Nodes, max_deliveries: int | None) -> dict[str, Any]:
    """Return the parameters by which a statement also knows which rows are suspects."""
    return {**over_parameters(nodes), "max_deliveries": _NO_LIMIT if max_deliveries is None else max_deliveries}


def settle_parameters(settlements: Sequence[Settlement], *, keeps_dead: bool, kind: RunKind) -> dict[str, list[Any]]:
    """Return the parameters of a statement that settles runs; they are in the order of their leases."""
    done, retried, buried, parked, made = (list[tuple[Any, ...]]() for _ in range(5))
    for settlement in settlements:
        head = settlement.lease.row_id
        for row_id, outcome in settlement.outcomes:
            match outcome:
                case Retry():
                    retried.append((row_id, head, *retry_values(outcome)))
                case Dead() if keeps_dead:
                    buried.append((row_id, head, *failure_values(outcome)))
                case Park(dead):
                    parked.append((row_id, head, *failure_values(dead)))
                case Ack(new_rows):
                    done.append((row_id, head))
                    made.extend(output_values(row_id, new) for new in new_rows)
                case Dead():
                    done.append((row_id, head))
    return {
        **LEASES.fill([settlement.lease for settlement in settlements]),
        **DONE.fill(done),
        **RETRIED.fill(retried),
        **(OUTPUTS.fill(made) if kind.outputs else {}),
        **(NEXT.fill([(each.next_head, each.lease.row_id) for each in settlements]) if kind.passes else {}),
        **(BURIED.fill(buried) if keeps_dead else {}),
        **PARKED.fill(parked),
    }


def _run(rows: list[OutboxRow], now: float, began: float, *, suspect: bool) -> Run:
    """Return a run up to the first row that is not due yet or has to come alone, under the head's lease."""
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
