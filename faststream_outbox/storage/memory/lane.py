"""A connection to a store in memory: the same operations as on Postgres, on rows in a dict."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, islice, takewhile
from operator import attrgetter
from uuid import uuid4
from zlib import crc32

from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.contract import MAX_BYTES, MAX_ROWS, Claim, GivenBack, SentClaim, StoreLane
from faststream_outbox.storage.cursor import ClaimCursor
from faststream_outbox.storage.memory.counts import queue_counts
from faststream_outbox.storage.memory.table import MemoryTable, unlease
from faststream_outbox.storage.ordering.key_cursor import KeyCursor, KeyPlan, Run, RunClaim, finite
from faststream_outbox.storage.ordering.strategies import HashShards, Shard, ShardHolder, ShardLease, fair_share
from faststream_outbox.storage.outcomes import (
    Ack,
    Dead,
    Outcome,
    Park,
    Retry,
    Settled,
    Settlement,
    clean_exception_text,
)
from faststream_outbox.storage.parking import with_failure
from faststream_outbox.storage.queue_stats import QueueStats
from faststream_outbox.storage.rows import Lease, OutboxRow


class MemoryLane(StoreLane):
    """A `StoreLane` to a `MemoryStore`."""

    def __init__(self, store: MemoryTable) -> None:
        self._store = store

    async def claim(
        self, cursor: ClaimCursor, *, limit: int, lease_seconds: float, max_bytes: int = MAX_BYTES
    ) -> Claim:
        """Lease up to `limit` due rows."""
        check_count("limit", limit)
        check_count("max_bytes", max_bytes)
        began, now = lease_now(), self._store.clock()
        plan = cursor.plan(limit, began)
        ready: list[OutboxRow] = []
        for queue, quota in zip(plan.queues, plan.quotas, strict=True):
            free = (row for row in self._due(queue, now) if row.acquired_token is None)
            ready.extend(islice(free, min(quota, limit - len(ready))))
        fitting = _within_bytes(ready, max_bytes)
        rows = self._lease(fitting, lease_seconds, began, now)
        rows.sort(key=attrgetter("position"))
        cut = len(fitting) < len(ready)
        more = cursor.record(plan, rows, began=began, ended=lease_now(), cut=cut)
        return Claim(rows, began + lease_seconds, more)

    async def claim_suspect(self, cursor: ClaimCursor, *, lease_seconds: float) -> Claim:
        """Lease one row whose lease ran out."""
        began, now = lease_now(), self._store.clock()
        expired = [
            row
            for queue, end in cursor.ends.items()
            for row in self._due(queue, now)
            if row.acquired_token is not None and row.lease_expires_epoch <= now and row.position <= end
        ]
        expired.sort(key=attrgetter("lease_expires_epoch", "id"))
        rows = self._lease(expired[:1], lease_seconds, began, now, suspects=True)
        for row in rows:
            row.suspect = True
        return Claim(rows, began + lease_seconds, more=bool(rows))

    async def recover(self, cursor: ClaimCursor, *, max_deliveries: int | None = None) -> int:
        """Free rows whose lease ran out, but for suspects."""
        now = self._store.clock()
        back = [
            row
            for queue, end in cursor.reach.items()
            for row in self._due(queue, now)
            if row.position <= end and _comes_back(row, now, max_deliveries)
        ]
        for row in back:
            unlease(row)
        return len(back)

    async def recover_runs(self, cursor: KeyCursor, *, rows_per_key: int, max_deliveries: int | None = None) -> int:
        """Free keys whose lease ran out, but for suspects."""
        now, plan = self._store.clock(), cursor.plan()
        keyed = (rows for rows in self._store.rows_by_key() if _is_behind(rows[0], plan))
        back = [rows for rows in keyed if _comes_back(rows[0], now, max_deliveries)]
        for head, *behind in back:
            unlease(head)
            for row in behind[: rows_per_key - 1]:
                row.acquired_epoch = now
        return len(back)

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
        """Lease keys, each with its rows that are due."""
        for name, count in (("keys", keys), ("rows_per_key", rows_per_key), ("max_rows", max_rows)):
            check_count(name, count)
        began, now, plan = lease_now(), self._store.clock(), cursor.plan()
        seconds, token = check_number("lease_seconds", lease_seconds), uuid4()
        self.sent = SentClaim(token, keys=(plan.queue, plan.after), suspects=suspects)
        keyed = [rows for rows in self._store.rows_by_key() if _is_wanted(rows[0], plan)]
        wanted, waits, expired, last, ended = list[list[OutboxRow]](), list[float](), False, None, True
        for rows in keyed:
            head, last = rows[0], rows[0].entity_key
            free = head.acquired_token is None
            over = not free and head.lease_expires_epoch <= now
            expired = expired or (over and head.next_attempt_epoch <= now)
            if head.next_attempt_epoch > now or not (over if suspects else free):
                waits.append(max(head.next_attempt_epoch, head.lease_expires_epoch) - now)
                continue
            alone = suspects or head.deliveries_count > 0 or head.acquired_epoch is not None
            due = [head, *takewhile(lambda row: _may_follow(row, now), rows[1:])]
            if suspects:
                for row in rows[1:rows_per_key]:
                    row.acquired_epoch = now
            wanted.append(due[: 1 if alone else rows_per_key])
            if len(wanted) == keys:
                ended = rows is keyed[-1]
                break
        runs = list[Run]()
        for head, *behind in _bounded(wanted, max_rows, check_count("max_bytes", max_bytes)):
            head.acquired_token, head.acquired_epoch, head.lease_expires_epoch = token, now, now + seconds
            head.deliveries_count += 1
            runs.append(Run([_lend(row, head, began, suspect=suspects) for row in (head, *behind)]))
        next_due = finite(min(waits, default=None))
        more = cursor.record(plan, last=last, ended=ended, found=len(runs), next_due=next_due)
        return RunClaim(plan, runs, began + seconds, more, next_due, expired)

    async def queues_with_keys(self, queues: Sequence[str]) -> frozenset[str]:
        """Return those of the queues that have rows with a key."""
        return frozenset(row.queue for row in self._store.rows.values() if row.ordered) & frozenset(queues)

    async def share_shards(
        self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float
    ) -> list[Shard]:
        """Lease a fair share of each queue's shards."""
        now, held = self._store.clock(), self._store.shards

        def lease(shard: Shard) -> ShardLease:
            token, until = held.get(shard, (None, now))
            return ShardLease(shard, token, until > now)

        wanted = [
            chosen.shard
            for queue in queues
            for chosen in fair_share([lease(Shard(queue, n)) for n in range(count)], holder.token)
        ]
        held.update(dict.fromkeys(wanted, (holder.token, now + lease_seconds)))
        return wanted

    async def leave_shards(self, holder: ShardHolder, queues: Sequence[str]) -> None:
        """Give up the holder's shards."""
        for shard, (token, _) in list(self._store.shards.items()):
            if token == holder.token and shard.queue in queues:
                del self._store.shards[shard]

    def _due(self, queue: str, now: float) -> list[OutboxRow]:
        due = (r for r in self._store.rows.values() if r.queue == queue and r.entity_key is None)
        return sorted((row for row in due if row.next_attempt_epoch <= now), key=attrgetter("position"))

    def lease(self, row: OutboxRow, lease_seconds: float) -> OutboxRow:
        """Lease one row of the store, whether it is due or not."""
        [leased] = self._lease([row], lease_seconds, lease_now(), self._store.clock())
        return leased

    def _lease(
        self, rows: list[OutboxRow], lease_seconds: float, began: float, now: float, *, suspects: bool = False
    ) -> list[OutboxRow]:
        seconds, token = check_number("lease_seconds", lease_seconds), uuid4()
        self.sent = SentClaim(token, suspects=suspects)
        for row in rows:
            row.acquired_token, row.acquired_epoch, row.lease_expires_epoch = token, now, now + seconds
            row.deliveries_count += 1
        # Copies, so that a handler's changes to its row do not reach the store.
        return [replace(row, claimed_at=began) for row in rows]

    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Renew leases."""
        seconds = check_number("lease_seconds", lease_seconds)
        held = {lease: row for lease in leases if (row := self._held(lease)) is not None}
        for row in held.values():
            row.lease_expires_epoch = self._store.clock() + seconds
        return frozenset(held)

    async def leave_running(self, leases: Iterable[Lease]) -> None:
        """Do nothing: here only the time of a lease ends it."""

    async def release(self, rows: Iterable[OutboxRow], *, delay_seconds: float = 0.0) -> frozenset[Lease]:
        """Release rows that were not handled."""
        released = set()
        for given in rows:
            row = self._held(given.lease)
            if row is None or given.lease in released:
                continue
            released.add(given.lease)
            self._release(row, suspect=given.suspect)
            if delay_seconds > 0:
                row.next_attempt_epoch = self._store.clock() + delay_seconds
        return frozenset(released)

    async def give_back(self, sent: SentClaim) -> GivenBack:
        """Release the rows of a claim whose answer was lost."""
        held = [row for row in self._store.rows.values() if row.acquired_token == sent.token]
        for row in held:
            self._release(row, suspect=sent.suspects)
        return GivenBack(len(held), ended=True)

    def _release(self, row: OutboxRow, *, suspect: bool) -> None:
        row.deliveries_count -= 1
        unlease(row)
        if suspect:
            row.acquired_token, row.lease_expires_epoch = uuid4(), self._store.clock()

    async def settle(self, settlements: Iterable[Settlement]) -> Settled:
        """Write outcomes."""
        settled, by_lease = Settled(), sorted(settlements, key=attrgetter("lease"))
        torn = {each.group for each in by_lease if each.group is not None and self._held(each.lease) is None}
        for settlement in by_lease:
            lease, head = settlement.lease, self._held(settlement.lease)
            if settlement.group in torn:
                settled.lost.add(lease)
            elif head is not None:
                expires_at = head.lease_expires_epoch
                self._apply_all(head, settlement)
                if (behind := self._store.rows.get(settlement.next_head or 0)) is not None:
                    behind.acquired_token, behind.acquired_epoch = lease.token, self._store.clock()
                    behind.lease_expires_epoch = expires_at
                    behind.deliveries_count += 1
                settled.held.add(lease)
            elif lease not in settled.held:  # the first outcome for a lease stands
                settled.lost.add(lease)
        return settled

    def _apply_all(self, head: OutboxRow, settlement: Settlement) -> None:
        for row_id, outcome in settlement.outcomes:
            if (row := self._store.rows.get(row_id)) is not None:
                row.deliveries_count += row is not head  # the claim has counted the delivery of the head
                self._apply(row, outcome)

    def _apply(self, row: OutboxRow, outcome: Outcome) -> None:
        now = self._store.clock()
        match outcome:
            case Ack(outputs):
                del self._store.rows[row.id]
                for output in outputs:
                    self._store.add_unless_waiting(output)
            case Dead():
                self._store.bury(row, outcome)
            case Park(dead):
                self._store.park(row, dead)
            case Retry(_, attempts_count, first_attempt_at, last_attempt_at):
                unlease(row)
                row.next_attempt_epoch = now + outcome.bounded_delay
                row.attempts_count = attempts_count
                if first_attempt_at is not None:
                    row.first_attempt_epoch = first_attempt_at.timestamp()
                elif row.first_attempt_epoch is None:
                    row.first_attempt_epoch = now
                row.last_attempt_epoch = now if last_attempt_at is None else last_attempt_at.timestamp()
                if (failure := clean_exception_text(outcome.failure)) is not None:
                    row.headers_json = with_failure(row.headers_json, failure)

    def _held(self, lease: Lease) -> OutboxRow | None:
        row = self._store.rows.get(lease.row_id)
        return row if row is not None and row.acquired_token == lease.token else None

    async def next_due(self, cursor: ClaimCursor) -> float | None:
        """Return in how many seconds the next free row is due."""
        now = self._store.clock()
        free = (
            max(0.0, row.next_attempt_epoch - now)
            for row in self._store.rows.values()
            if row.queue in cursor.starts and row.entity_key is None and row.acquired_token is None
        )
        return min(free, default=None)

    async def stats(self) -> list[QueueStats]:
        """Count every queue's rows."""
        return [counts.to_stats() for counts in queue_counts(self._store)]

    async def unserved(self, known: Collection[str]) -> dict[str, int]:
        """Count the due rows of queues that nobody reads."""
        return self._store.unserved(known)

    async def ping(self) -> None:
        """Do nothing: memory always answers."""


def _within_bytes(rows: Sequence[OutboxRow], max_bytes: int) -> list[OutboxRow]:
    """Return the first rows that have `max_bytes` together, and one more."""
    sizes = accumulate((row.size for row in rows[:-1]), initial=0)
    return [row for row, before in zip(rows, sizes, strict=False) if before < max_bytes]


def _bounded(runs: Sequence[Sequence[OutboxRow]], max_rows: int, max_bytes: int) -> list[list[OutboxRow]]:
    """Return the runs that fit, the oldest head first."""
    rows = [row for run in sorted(runs, key=lambda run: run[0].id) for row in run]
    fitting = _within_bytes(rows[:max_rows], max_bytes)
    return [list(run) for _, run in groupby(fitting, key=attrgetter("entity_key"))]


def _is_behind(head: OutboxRow, plan: KeyPlan) -> bool:
    """Return whether a key is in the plan's queue, after its position."""
    return head.queue == plan.queue and (head.entity_key or "", head.id) > plan.after


def _is_wanted(head: OutboxRow, plan: KeyPlan) -> bool:
    """Return whether a key is in the plan's queue, after its position, and in one of its shards."""
    key, ordering = head.entity_key or "", plan.ordering
    in_shard = not isinstance(ordering, HashShards) or crc32(key.encode()) % ordering.count in plan.shards
    return in_shard and _is_behind(head, plan)


def _comes_back(row: OutboxRow, now: float, max_deliveries: int | None) -> bool:
    """Return whether a recovery frees a row: its lease ran out, and it is no suspect."""
    if row.acquired_token is None or row.lease_expires_epoch > now:
        return False
    last = max_deliveries is not None and row.deliveries_count >= max_deliveries - 1
    return not last and row.deliveries_count - row.attempts_count < 2  # noqa: PLR2004 - two deliveries without an end


def _may_follow(row: OutboxRow, now: float) -> bool:
    """Return whether a row may come behind its head: not if it may have killed a process."""
    return row.next_attempt_epoch <= now and row.timer_id is None and row.acquired_epoch is None


def _lend(row: OutboxRow, head: OutboxRow, began: float, *, suspect: bool) -> OutboxRow:
    return replace(
        row,
        acquired_token=head.acquired_token,
        acquired_epoch=head.acquired_epoch,
        lease_expires_epoch=head.lease_expires_epoch,
        deliveries_count=row.deliveries_count + (row is not head),
        claimed_at=began,
        suspect=suspect,
    )
