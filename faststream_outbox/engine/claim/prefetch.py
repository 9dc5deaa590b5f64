"""Decides how many rows to claim: enough to keep workers busy; other processes can run the rest."""

from typing import Final

from faststream_outbox.engine.ledger import Ledger

# Claim about half a second of work ahead: enough to hide round trips, little enough that another process does not wait
# for rows we hold.
_AHEAD: Final = 0.5
# Rows of one key that take this many seconds are settled together; after a crash all of them are handled again.
LONGEST_RUN: Final = 0.1
# Until the first handler has ended, its duration is unknown: claim this many rows ahead, or as many as can run at once
# if that is more.
_AT_FIRST: Final = 200
# Claim no more rows while those in hand, and the answers to them that are not written yet, have this many bytes, and
# call no handler while the answers alone do: large messages must not fill the memory.
MOST_BYTES: Final = 64 * 2**20
# The weight of one row's duration in the moving average.
_WEIGHT: Final = 0.2
# Shorter than any handler takes; avoids a division by zero.
_SHORTEST: Final = 1e-6


class Prefetch:
    """Learns how long handlers take: claims a batch ahead for fast ones, and a row per free worker for slow ones.

    Before the first handler ends it assumes that handlers are fast; rows that then wait too long are given back by the
    `StaleReturner`.
    """

    for_callers = False

    def __init__(self, *, max_workers: int, most: int, max_records: int = 1) -> None:
        self._workers = max_workers
        # Rows that run when every worker has a full call.
        self._running = max_workers * max_records
        self._records = max_records
        self._most = most
        self._seconds: float | None = None

    def observe(self, seconds: float) -> None:
        """Note how long a handler took for one row."""
        self._seconds = seconds if self._seconds is None else self._seconds + _WEIGHT * (seconds - self._seconds)

    def rows_wanted(self, ledger: Ledger) -> int:
        """Return how many rows to claim now; 0 while enough are in hand."""
        # Rows whose outcome is being written leave room for others, unless writing does not keep up.
        if ledger.occupied > self.refill_at or ledger.finished > self.capacity:
            return 0
        if ledger.bytes + ledger.output_bytes >= MOST_BYTES:
            return 0
        return self.capacity - ledger.occupied

    @property
    def capacity(self) -> int:
        """How many rows to hold at most: as many as can run, and those that are claimed ahead."""
        return self._running + self._ahead

    @property
    def refill_at(self) -> int:
        """At how many rows in hand to claim again: a worker is free, or half of those claimed ahead are gone."""
        return self._running + self._ahead // 2 if self._ahead else self._running - 1

    @property
    def run_length(self) -> int:
        """How many rows of one key to claim together at most: a full call, or what is done within `LONGEST_RUN`."""
        return max(self._records, self._done_in(LONGEST_RUN))

    @property
    def _ahead(self) -> int:
        known = max(_AT_FIRST, self._running) if self._seconds is None else self._done_in(self._workers * _AHEAD)
        return min(known, self._most - self._running)

    def _done_in(self, seconds: float) -> int:
        return int(seconds / (_SHORTEST if self._seconds is None else max(self._seconds, _SHORTEST)))


class CallerDemand:
    """Wants one row for each caller that waits, and none ahead."""

    for_callers = True
    run_length = 1

    def __init__(self) -> None:
        self.callers = 0

    def rows_wanted(self, ledger: Ledger) -> int:
        """Return how many callers wait for a row that was not claimed yet."""
        return max(0, self.callers - ledger.waiting)
