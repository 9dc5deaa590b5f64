"""Run an act on a selection: in slices, each a transaction with its part of the audit, with progress and a rate."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from faststream_outbox.operations.audit import ActAudit, AuditOperations
from faststream_outbox.operations.selections import Selection, SelectionOperations
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_number
from faststream_outbox.storage.operating.acts import Acted, Walked, WalkPosition
from faststream_outbox.storage.operating.filters import Count

# Rows of one transaction: enough that its commit costs little, few enough that it locks rows for milliseconds.
SLICE: Final = 500
# How many rows an `ActResult` names that were skipped.
MOST_SKIPPED: Final = 1000
# With a rate, slices are a fifth of a second long: rows come evenly.
SLICES_PER_SECOND: Final = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an act has come.

    Attributes:
        done: How many rows it has changed.
        skipped: How many rows it has left out.
        total: How many rows the selection had when it was made.

    """

    done: int
    skipped: int
    total: Count


@dataclass(frozen=True, slots=True)
class ActResult:
    """What an act did.

    Attributes:
        action: The name of the act.
        done: How many rows it has changed.
        skipped: Why it left out rows, by their ids; the first 1,000 of them.
        audit_id: The id of its row in the audit table; None without that table, or if nothing was changed.

    """

    action: str
    done: int
    skipped: dict[int, str] = field(default_factory=dict)
    audit_id: int | None = None


OnProgress = Callable[[Progress], None]
# Acts on one slice, given by its ids, through the session of its transaction.
ActOnSlice = Callable[[SessionOrConnection | None, Sequence[int]], Awaitable[Acted]]


class ActOperations(SelectionOperations, AuditOperations):
    """Runs acts: every act on rows goes through `_run_act`."""

    async def _run_act(
        self,
        selection: Selection,
        act: ActOnSlice,
        audit: ActAudit,
        *,
        session: SessionOrConnection | None = None,
        progress: OnProgress | None = None,
        rate: float | None = None,
    ) -> ActResult:
        """Act on the rows of a selection, slice by slice, upwards along its index.

        Without a session each slice is a transaction; a cancellation leaves whole slices, and running the same
        selection again does the rest. With one, all slices are part of the caller's transaction.
        """
        if rate is not None:
            check_number("rate", rate, least=0.001)
            if session is not None:
                raise ValueError("rate spreads an act over many transactions: leave out the session.")
        size = SLICE if rate is None else min(SLICE, max(1, math.ceil(rate / SLICES_PER_SECOND)))
        began, total, skipped, skips = time.monotonic(), 0, dict[int, str](), 0
        after: WalkPosition | None = None
        try:
            while True:
                if session is None:
                    async with self._store.transaction() as own:
                        await self._store.run(own, self._store.acts.prepare)
                        ids, after = await self._next_ids(own, selection, after, size)
                        acted = await self._slice(own, ids, act, audit)
                else:
                    ids, after = await self._next_ids(session, selection, after, size)
                    acted = await self._slice(session, ids, act, audit)
                audit.committed()
                total, skips = total + acted.done, skips + len(acted.skipped)
                room = MOST_SKIPPED - len(skipped)
                skipped.update(list(acted.skipped.items())[:room])
                if progress is not None:
                    progress(Progress(total, skips, selection.count))
                if after is None:
                    return ActResult(audit.action, total, skipped, audit.audit_id)
                if rate is not None:
                    await asyncio.sleep(max(0.0, began + total / rate - time.monotonic()))
        finally:
            self._log_act(audit, total)

    async def _slice(
        self, session: SessionOrConnection | None, ids: Sequence[int], act: ActOnSlice, audit: ActAudit
    ) -> Acted:
        """Act on some rows, write in the audit how many, and notify: all in one transaction."""
        acted = await act(session, ids) if ids else Acted()
        await self._write_audit(session, audit, acted.done)
        if acted.queues:
            await self._store.run(session, self._store.acts.notify, sorted(acted.queues))
        return acted

    async def _next_ids(
        self, session: SessionOrConnection | None, selection: Selection, after: WalkPosition | None, size: int
    ) -> Walked:
        if selection.where is None:
            first = 0 if after is None else int(after[0])
            following = first + size
            end = following >= len(selection.ids)
            return Walked(list(selection.ids[first:following]), None if end else (following,))
        return await self._store.run(
            session,
            self._store.acts.walk,
            selection.kind,
            selection.where,
            upper_id=selection.upper_id,
            after=after,
            limit=size,
        )


def act_of(function: Callable[..., Acted], run: Callable[..., Awaitable[Any]], *args: Any) -> ActOnSlice:
    """Return the act that calls a function of the store with the ids of a slice and these arguments."""

    async def act(session: SessionOrConnection | None, ids: Sequence[int]) -> Acted:
        acted: Acted = await run(session, function, ids, *args)
        return acted

    return act
