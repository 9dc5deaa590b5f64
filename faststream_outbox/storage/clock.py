"""The clock of leases."""

import time
from typing import Final

# It goes on while the machine sleeps, as the database's clock does; CLOCK_MONOTONIC stands still, and a row would be
# started after another process claimed it. Systems other than Linux have no such clock.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def lease_now() -> float:
    """Return the time, in seconds, by which this process counts how long a lease lasts."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
