"""What a call of a handler is to the loops around it: rows go in, and what became of them comes out."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from faststream_outbox.storage import OutboxRow, Settled, Settlement

NOTHING: Final = Settled()


@dataclass(slots=True)
class Handled:
    """What became of the rows of one call, each of them.

    Most of it is still to be written. What the handler's own transaction has written is in `settled`, and so are the
    leases that were lost by then.
    """

    settlements: Sequence[Settlement]
    settled: Settled = NOTHING


# Handles rows in one call. It answers for its own failures; what it raises all the same is a bug.
Handle = Callable[[Sequence[OutboxRow]], Awaitable[Handled]]
