"""Rows with a key in memory: their claims, and what operators ask of keys and do with them."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice, takewhile
from uuid import uuid4
from zlib import crc32

from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.memory.table import MemoryTable, unlease
from faststream_outbox.storage.ordering.key_cursor import KeyCursor, KeyPlan, finite
from faststream_outbox.storage.ordering.runs import Run, RunClaim
from faststream_outbox.storage.ordering.states import (
    KeyAction,
    KeyState,
    ParkKey,
    ReleaseKey,
    RetryKey,
    SkipKey,
    state_of,
)
from faststream_outbox.storage.ordering.strategies import HashShards
from faststream_outbox.storage.outcomes import Dead
from faststream_outbox.storage.parking import BY_OPERATOR, Cause, cause_in, with_cause, without_cause
from faststream_outbox.storage.rows import OutboxRow


def _is_wanted(head: OutboxRow, plan: KeyPlan) -> bool:
    """Return whether a key is after the plan's position, and in one of its shards."""
    key, ordering = head.entity_key or "", plan.ordering
    in_shard = not isinstance(ordering, HashShards) or crc32(key.encode()) % ordering.count in plan.shards
    return in_shard and (key, head.id) > plan.after


def _may_follow(row: OutboxRow, now: float) -> bool:
    """Return whether a row may come behind its head: not if it may have killed a process."""
    return row.next_attempt_epoch <= now and row.timer_id is None and row.acquired_epoch is None


class MemoryKeys:
    """The keys of a store in memory, as claims and operators use them."""

    def __init__(self, table: MemoryTable) -> None:
        self._table = table

    def claim(
        self, cursor: KeyCursor, *, keys: int, rows_per_key: int, lease_seconds: float, suspects: bool
    ) -> RunClaim:
        """Lease up to `keys` keys that are due and free or, with `suspects`, whose lease ran out."""
        check_count("keys", keys)
        check_count("rows_per_key", rows_per_key)
        began, now, plan = time.monotonic(), self._table.clock(), cursor.plan()
        seconds, token = check_number("lease_seconds", lease_seconds), uuid4()
        heads = [rows for rows in self._keys() if rows[0].queue == plan.queue and _is_wanted(rows[0], plan)]
        runs, waits, expired, last, ended = list[Run](), list[float](), False, None, True
        for rows in heads:
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
            head.acquired_token, head.acquired_epoch, head.lease_expires_epoch = token, now, now + seconds
            head.deliveries_count += 1
            taken = due[: 1 if alone else rows_per_key]
            runs.append(Run([self._lend(row, head, began, suspect=suspects) for row in taken]))
            if len(runs) == keys:
                ended = rows is heads[-1]
                break
        next_due = finite(min(waits, default=None))
        more = cursor.record(plan, last=last, ended=ended, found=len(runs), next_due=next_due)
        return RunClaim(plan, runs, began + seconds, more, next_due, expired)

    @staticmethod
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

    def read(self, *, queue: str | None, states: Sequence[str], limit: int) -> list[KeyState]:
        """Describe keys in these states."""
        now = self._table.clock()
        found = (
            KeyState.of(rows[0], waiting=len(rows) - 1, now=now)
            for rows in self._keys()
            if queue in (None, rows[0].queue) and state_of(rows[0], now) in states
        )
        return list(islice(found, limit))

    def act(self, queue: str, key: str, action: KeyAction) -> int | None:
        """Apply an action to the head of a key, unless it is in flight; return its id."""
        head = next((rows[0] for rows in self._keys() if (rows[0].queue, rows[0].entity_key) == (queue, key)), None)
        now = self._table.clock()
        if head is None or state_of(head, now) == "in_flight":
            return None
        parked = head.next_attempt_epoch == math.inf
        match action:
            case RetryKey():
                self._retry(head, now, parked=parked)
            case ReleaseKey() if parked:
                self._release(head, now)
            case ParkKey(reason) if not parked:
                head.headers_json = with_cause(
                    head.headers_json, Cause(BY_OPERATOR, reason, now, head.next_attempt_epoch)
                )
                unlease(head)
                head.next_attempt_epoch = math.inf
            case SkipKey(reason):
                cause = str(cause_in(head.headers_json))
                self._table.bury(head, Dead("rejected", f"{reason}\n\nparked for {cause}" if cause else reason))
            case _:
                return None
        return head.id

    @staticmethod
    def _retry(head: OutboxRow, now: float, *, parked: bool) -> None:
        _disown(head)
        head.next_attempt_epoch = min(head.next_attempt_epoch, now)
        head.headers_json = without_cause(head.headers_json)
        if parked:
            head.attempts_count = head.deliveries_count = 0
            head.first_attempt_epoch = head.last_attempt_epoch = None

    @staticmethod
    def _release(head: OutboxRow, now: float) -> None:
        _disown(head)
        due = cause_in(head.headers_json).due
        head.next_attempt_epoch = now if due is None else due
        head.headers_json = without_cause(head.headers_json)
        head.deliveries_count = 0

    def _keys(self) -> Iterator[list[OutboxRow]]:
        keyed = [row for row in self._table.rows.values() if row.entity_key is not None]
        keyed.sort(key=lambda row: (row.queue, row.entity_key, row.id))
        for _, rows in groupby(keyed, key=lambda row: (row.queue, row.entity_key)):
            yield list(rows)


def _disown(head: OutboxRow) -> None:
    """Give a suspect another token, so that the process that had it cannot settle it."""
    if head.acquired_token is not None:
        head.acquired_token = uuid4()
