"""How many rows a subscriber should hold: enough to keep its workers busy, no more, because others could run them."""

from typing import Final

# Rows are claimed so far ahead: many round trips long, and hardly noticed by whoever waits for a row that waits here.
_AHEAD: Final = 0.5
# Rows of one key are settled together after so long: a crash has all of them handled again.
LONGEST_RUN: Final = 0.1
# No more than these, or than can run at once, while nobody knows how long handlers take, nor how large messages are.
_AT_FIRST: Final = 200
# How much one row's duration counts against all those before it.
_WEIGHT: Final = 0.2
# Shorter than any handler, so that there is something to divide by.
_SHORTEST: Final = 1e-6


class Prefetch:
    """Learns how long handlers take: fast ones are given a batch ahead, slow ones a row when they are free.

    Until it knows, it believes that they are fast, within limits; rows that then wait too long are given back
    (`returner.py`).
    """

    def __init__(self, *, max_workers: int, most: int, max_records: int = 1) -> None:
        self._workers = max_workers
        # Rows that run when every worker is as busy as it can be.
        self._running = max_workers * max_records
        self._records = max_records
        self._most = most
        self._seconds: float | None = None

    def observe(self, seconds: float) -> None:
        """Take note of how long a handler took for one row."""
        self._seconds = seconds if self._seconds is None else self._seconds + _WEIGHT * (seconds - self._seconds)

    @property
    def _ahead(self) -> int:
        known = max(_AT_FIRST, self._running) if self._seconds is None else self._done_in(self._workers * _AHEAD)
        return min(known, self._most - self._running)

    def _done_in(self, seconds: float) -> int:
        return int(seconds / (_SHORTEST if self._seconds is None else max(self._seconds, _SHORTEST)))

    @property
    def capacity(self) -> int:
        """How many rows to hold at most: as many as can run, and those that are claimed ahead."""
        return self._running + self._ahead

    @property
    def run_length(self) -> int:
        """How many rows of one key to claim together at most: those of a call, or what is done before they settle."""
        return max(self._records, self._done_in(LONGEST_RUN))

    @property
    def refill_at(self) -> int:
        """At how many rows in hand to claim again: a worker is free, or half of those claimed ahead are gone."""
        return self._running + self._ahead // 2 if self._ahead else self._running - 1
