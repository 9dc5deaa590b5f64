"""Claims and settles of runs in memory: the same as on Postgres, on rows in a dict."""

import time
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING
from uuid import uuid4
from zlib import crc32

from faststream_outbox.storage.checks import check_count, check_number
from faststream_outbox.storage.ordering.key_cursor import KeyCursor, KeyPlan, finite
from faststream_outbox.storage.ordering.runs import Run, RunClaim
from faststream_outbox.storage.ordering.strategies import HashShards
from faststream_outbox.storage.rows import OutboxRow

if TYPE_CHECKING:
    from faststream_outbox.storage.memory.store import MemoryStore


def _is_ours(key: str, plan: KeyPlan) -> bool:
    """Tell whether a key is in a shard that we look at; nobody else takes advisory locks here."""
    return not isinstance(plan.ordering, HashShards) or crc32(key.encode()) % plan.ordering.count in plan.shards


def _may_follow(row: OutboxRow, now: float) -> bool:
    """Tell whether a row may be handed out behind its head: not if a process may have died of it."""
    return row.next_attempt_epoch <= now and row.timer_id is None and row.acquired_epoch is None


class MemoryRuns:
    """The rows with a key of a `MemoryStore`."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    def claim(
        self, cursor: KeyCursor, *, keys: int, rows_per_key: int, lease_seconds: float, suspects: bool
    ) -> RunClaim:
        """Lease up to `keys` keys whose turn has come, or whose lease ran out."""
        check_count("keys", keys)
        check_count("rows_per_key", rows_per_key)
        began, now, plan = time.monotonic(), self._store.clock(), cursor.plan()
        seconds, token = check_number("lease_seconds", lease_seconds), uuid4()
        heads = [rows for key, rows in self._keys(plan.queue) if (key, rows[0].id) > plan.after and _is_ours(key, plan)]
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

    def _keys(self, queue: str) -> list[tuple[str, list[OutboxRow]]]:
        keys: dict[str, list[OutboxRow]] = {}
        for _, row in sorted(self._store.rows.items()):
            if row.queue == queue and row.entity_key is not None:
                keys.setdefault(row.entity_key, []).append(row)
        return sorted(keys.items())
