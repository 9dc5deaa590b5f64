"""Finds a message that makes the broker close the connection, by sending the suspected ones alone."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from faststream_outbox.relay.outage import answers
from faststream_outbox.relay.targets.base import ConnectionLostError, OutageError, RefusedError, SharedLock, Target
from faststream_outbox.storage import OutboxRow

# How often in a row the connection must be lost with one message alone on its way, until that message is refused.
_MOST_LOSSES: Final = 3
# Of rows that were sent together and lost the connection, so large a part is sent together next.
_DIVISOR: Final = 8
# How long the broker may take to answer before rows are sent alone, and to accept a new connection after a loss.
_ANSWER_SECONDS: Final = 5.0
# How many suspected rows to remember; an older one that fails again is suspected anew.
_REMEMBERED: Final = 100_000

# Sends some rows; returns an error, or None, for each that was on its way.
Send = Callable[[], Awaitable[list[Exception | None]]]


@dataclass(slots=True)
class _Suspicion:
    """What is known of a row that was on its way when the connection was lost."""

    # With how many rows, itself included, it may be sent next.
    together: int
    # How many messages the broker had confirmed when that happened first.
    confirmed_before: int
    # How often in a row it happened with this row alone on its way.
    losses: int = 0


class Isolation:
    """Sends rows side by side while the connection holds; after a loss, those that were on their way alone.

    A row is refused if the connection is lost several times in a row while only this row is on its way, although the
    broker answers right before and accepts a new connection right after, and has confirmed other rows meanwhile. In an
    outage one of these does not hold, so no row is refused, however often it fails.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = SharedLock()
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
        return suspicion is not None and suspicion.losses >= _MOST_LOSSES

    async def send(self, rows: Sequence[OutboxRow], send: Send) -> list[Exception | None]:
        """Send rows that `count_together` allows: beside those of other calls, or alone if they are suspected."""
        if rows[0].id not in self._suspicions:
            async with self._lock.shared():
                errors = await send()
            self._note(rows, errors, limit=len(errors))
            return errors
        async with self._lock.exclusive():
            if not await answers(self._target.alive, _ANSWER_SECONDS):
                return [OutageError("The broker does not answer.")] * len(rows)
            errors = await send()
            lost = self._note(rows, errors, limit=max(1, len(rows) // _DIVISOR))
            if len(lost) == 1:
                errors[lost[0]] = await self._blame(rows[lost[0]], errors[lost[0]])
            return errors

    def _note(self, rows: Sequence[OutboxRow], errors: Sequence[Exception | None], *, limit: int) -> list[int]:
        """Suspect the rows that were on their way when the connection was lost, and return their numbers."""
        self._confirmed += errors.count(None)
        lost = [number for number, error in enumerate(errors) if isinstance(error, ConnectionLostError)]
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
        """Count the loss against the row that was alone on its way; return a refusal if that was too often."""
        suspicion = self._suspicions[row.id]
        if not await answers(self._target.reachable, _ANSWER_SECONDS):
            suspicion.losses = 0  # the broker itself is down
            return error
        suspicion.losses += 1
        if suspicion.losses < _MOST_LOSSES or self._confirmed <= suspicion.confirmed_before:
            return error
        del self._suspicions[row.id]
        return RefusedError(
            f"The broker closed the connection {_MOST_LOSSES} times in a row while only this message was on its way, "
            f"and accepted others meanwhile. {error}"
        )
