"""Gives back the rows of claims whose answer was lost: they are leased, and no process knows that it holds them."""

import math
import time
from dataclasses import dataclass
from typing import Final

from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.storage.contract import GivenBack, SentClaim
from faststream_outbox.storage.errors import is_outage, sqlstate

# The time between looks is doubled while the server may still execute a claim of which no row is seen.
_FIRST_WAIT: Final = 0.25
_LONGEST_WAIT: Final = 10.0


def may_have_committed(error: BaseException) -> bool:
    """Return whether a claim that failed with this error may have leased rows: the server has not refused it."""
    return not sqlstate(error) or is_outage(error)


@dataclass(slots=True)
class _Lost:
    sent: SentClaim
    # When a look was first answered without an end of the claim, on the monotonic clock.
    looked_at: float | None = None


class LostClaims:
    """Remembers the claims of one claimer whose answer was lost, and looks for their rows until it is clear.

    A claim is forgotten once its rows were given back, or once the server process that executed it has ended. Where
    that process is unknown (behind a pooler), it is forgotten after the time of a lease.
    """

    def __init__(self, lane: ReconnectingLane, lease_seconds: float) -> None:
        self._lane = lane
        self._lease_seconds = lease_seconds
        self._lost: list[_Lost] = []
        self._not_before = -math.inf
        self._wait = _FIRST_WAIT

    def add(self, sent: SentClaim) -> None:
        """Remember a claim; the next look is at once."""
        self._lost.append(_Lost(sent))
        self._not_before, self._wait = -math.inf, _FIRST_WAIT

    @property
    def due_at(self) -> float:
        """When to look again, on the monotonic clock; infinity while there is nothing to look for."""
        return self._not_before if self._lost else math.inf

    async def give_back(self) -> int:
        """Release the rows that are there by now, their delivery uncounted; return how many."""
        freed = 0
        for lost in tuple(self._lost):
            given = await self._look(lost.sent)
            freed += given.freed
            now = time.monotonic()
            lost.looked_at = now if lost.looked_at is None else lost.looked_at
            too_late = given.ended is None and now >= lost.looked_at + self._lease_seconds
            if given.freed or given.ended or too_late:
                self._lost.remove(lost)
        self._not_before, self._wait = time.monotonic() + self._wait, min(2 * self._wait, _LONGEST_WAIT)
        return freed

    async def _look(self, sent: SentClaim) -> GivenBack:
        return await self._lane.run(lambda lane: lane.give_back(sent))
