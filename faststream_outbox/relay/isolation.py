"""Finds a message that takes the connection down, or fails its batch, by sending the suspected ones alone."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from faststream_outbox.relay.outage import answers
from faststream_outbox.relay.targets.base import (
    ConnectionLostError,
    OutageError,
    RefusedError,
    SharedLock,
    Target,
    UnexplainedError,
)
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import OutboxRow

# How often in a row one message must fail alone on its way, until that message is refused.
_MOST_FAILURES: Final = 3
# Of rows that were sent together and failed, so large a part is sent together next.
_DIVISOR: Final = 8
# How long the broker may take to answer before rows are sent alone, and to accept a new connection after a loss.
_ANSWER_SECONDS: Final = 5.0
# How many suspected rows to remember; an older one that fails again is suspected anew.
_REMEMBERED: Final = 100_000

# How long a twin may take to connect or to disconnect.
_TWIN_SECONDS: Final = 10.0

# Sends some rows through a target; returns an error, or None, for each that was on its way.
Send = Callable[[Target], Awaitable[list[Exception | None]]]
# Errors that a message may have caused.
_SUSPICIOUS: Final = (ConnectionLostError, UnexplainedError)


@dataclass(slots=True)
class _Suspicion:
    """What is known of a row that was on its way when the connection was lost, or its batch failed."""

    # With how many rows, itself included, it may be sent next.
    together: int
    # How many messages the broker had confirmed when that happened first.
    confirmed_before: int
    # How often in a row it happened with this row alone on its way.
    failures: int = 0
    since: float = field(default_factory=time.monotonic)

    def proves(self, error: Exception | None, confirmed: int) -> bool:
        """Return whether others were accepted meanwhile: by the same partition, if an answer failed the row."""
        if isinstance(error, UnexplainedError):
            return error.accepted_at > self.since
        return confirmed > self.confirmed_before


class Isolation:
    """Sends rows side by side while the connection holds; after a loss, those that were on their way alone.

    A row is refused if the connection is lost several times in a row while only this row is on its way, although the
    broker answers right before and accepts a new connection right after, and has confirmed other rows meanwhile. In an
    outage one of these does not hold, so no row is refused, however often it fails. The same goes for an answer of the
    broker that fails the row and does not say why.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = SharedLock()
        self._twins = asyncio.Lock()
        self._suspicions: OrderedDict[int, _Suspicion] = OrderedDict()
        self._confirmed = 0

    def count_together(self, rows: Sequence[OutboxRow]) -> int:
        """Return how many of these rows, from the first on, to send together: suspected ones apart from others."""
        if not self._suspicions:
            return len(rows)
        first = self._suspicions.get(rows[0].id)
        alike = takewhile(lambda row: (row.id in self._suspicions) == (first is not None), rows)
        return min(sum(1 for _ in alike), len(rows) if first is None else first.together)

    def lacks_proof(self, row: OutboxRow) -> bool:
        """Return whether only a confirmation of another row is missing to refuse a row."""
        suspicion = self._suspicions.get(row.id)
        return suspicion is not None and suspicion.failures >= _MOST_FAILURES

    async def send(self, rows: Sequence[OutboxRow], send: Send) -> list[Exception | None]:
        """Send rows that `count_together` allows: beside those of other calls, or alone if they are suspected."""
        if rows[0].id not in self._suspicions:
            async with self._lock.shared():
                errors = await send(self._target)
            self._note(rows, errors, limit=len(errors))
            return errors
        async with self._alone() as target:
            if target is None:
                return [OutageError("The broker does not answer.")] * len(rows)
            errors = await send(target)
            lost = self._note(rows, errors, limit=max(1, len(rows) // _DIVISOR))
            if len(lost) == 1:
                errors[lost[0]] = await self._blame(rows[lost[0]], errors[lost[0]])
            return errors

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Target | None]:
        """Give a target with whose messages no other shares a connection; None if the broker does not answer."""
        twin = self._target.twin()
        if twin is None:
            async with self._lock.exclusive():
                yield self._target if await answers(self._target.alive, _ANSWER_SECONDS) else None
            return
        # Others are sent meanwhile: one that Kafka does not confirm for hours must not hold up this one.
        async with self._twins:
            try:
                up = await answers(self._target.alive, _ANSWER_SECONDS) and await answers(twin.connect, _TWIN_SECONDS)
                yield twin if up else None
            finally:
                with suppress(Exception):  # its connection may be lost
                    await within(_TWIN_SECONDS, twin.stop())

    def _note(self, rows: Sequence[OutboxRow], errors: Sequence[Exception | None], *, limit: int) -> list[int]:
        """Suspect the rows that were on their way when something was lost or failed, and return their numbers."""
        self._confirmed += errors.count(None)
        lost = [number for number, error in enumerate(errors) if isinstance(error, _SUSPICIOUS)]
        for number in lost:
            suspicion = self._suspicions.setdefault(rows[number].id, _Suspicion(limit, self._confirmed))
            suspicion.together = limit
        if self._suspicions:
            for row, error in zip(rows, errors, strict=False):
                if not isinstance(error, OutageError):
                    self._suspicions.pop(row.id, None)
        while len(self._suspicions) > _REMEMBERED:
            self._suspicions.popitem(last=False)
        return lost

    async def _blame(self, row: OutboxRow, error: Exception | None) -> Exception | None:
        """Count the failure against the row that was alone on its way; return a refusal if that was too often."""
        suspicion = self._suspicions[row.id]
        if not await answers(self._target.reachable, _ANSWER_SECONDS):
            suspicion.failures = 0  # the broker itself is down
            return error
        suspicion.failures += 1
        if suspicion.failures < _MOST_FAILURES or not suspicion.proves(error, self._confirmed):
            return error
        del self._suspicions[row.id]
        what = "failed this message" if isinstance(error, UnexplainedError) else "closed the connection"
        return RefusedError(
            f"The broker {what} {_MOST_FAILURES} times in a row while only this message was on its way, "
            f"and accepted others meanwhile. {error}"
        )
