"""How many rows a subscriber should hold: enough to keep its workers busy, no more, because others could run them."""

from typing import Final

# Rows are claimed so far ahead: many round trips long, and hardly noticed by whoever waits for a row that waits here.
_AHEAD: Final = 0.5
# How much one row's duration counts against all those before it.
_WEIGHT: Final = 0.2
# Shorter than any handler, so that there is something to divide by.
_SHORTEST: Final = 1e-6


class Pace:
    """Learns how long handlers take: fast ones are given a batch ahead, slow ones a row when they are free.

    Until it knows, it believes that they are fast; rows that then wait too long are given back (`returner.py`).
    """

    def __init__(self, *, max_workers: int, most: int) -> None:
        self._workers = max_workers
        self._most = most
        self._seconds: float | None = None

    def observe(self, seconds: float) -> None:
        """Take note of how long a handler took."""
        self._seconds = seconds if self._seconds is None else self._seconds + _WEIGHT * (seconds - self._seconds)

    @property
    def _ahead(self) -> int:
        seconds = _SHORTEST if self._seconds is None else max(self._seconds, _SHORTEST)
        return min(int(self._workers * _AHEAD / seconds), self._most - self._workers)

    @property
    def capacity(self) -> int:
        """How many rows to hold at most: one per worker, and those that are claimed ahead."""
        return self._workers + self._ahead

    @property
    def refill_at(self) -> int:
        """At how many rows in hand to claim again: a worker is free, or half of those claimed ahead are gone."""
        return self._workers + self._ahead // 2 if self._ahead else self._workers - 1
