"""Outcomes that the database refused: written again a few times, apart from the others, which do not wait for them."""

import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from faststream_outbox.storage import Lease, Settlement

# A lock or a migration passes within seconds; a violated constraint does not pass at all.
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.5


class SettleRetries:
    """Collects refused outcomes; all of them are tried again together, after a pause."""

    def __init__(self) -> None:
        self._waiting: list[Settlement] = []
        self._tries: Counter[Lease] = Counter()
        self.due_at = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, settlement: Settlement) -> bool:
        """Keep an outcome for its next try; return False, and forget it, when it has had its last."""
        self._tries[settlement.lease] += 1
        if self._tries[settlement.lease] >= _TRIES:
            self.forget([settlement.lease])
            return False
        self._waiting.append(settlement)
        self.due_at = min(self.due_at, time.monotonic() + _PAUSE_SECONDS)
        return True

    def forget(self, leases: Iterable[Lease]) -> None:
        """Forget how often these were tried: they are settled, or get another outcome."""
        if not self._tries:
            return
        for lease in leases:
            self._tries.pop(lease, None)

    def take(self) -> list[Settlement]:
        """Remove and return all outcomes that wait for another try."""
        waiting, self._waiting, self.due_at = self._waiting, [], math.inf
        return waiting
