"""Control: which queues operators have paused, as this process knows it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.operating.registry import NodeRegistry

# The notification that the control table has changed. No queue has this name, and processes of older versions take it
# for a reason to look at all queues.
CONTROL_CHANGED: Final = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue that an operator has paused, until a time or until it is resumed.

    Example:
        for pause in await broker.operations.pauses():
            print(pause.queue, pause.until, pause.by, pause.reason)

    """

    queue: str
    until: datetime | None
    reason: str
    by: str
    paused_at: datetime


@dataclass(frozen=True, slots=True)
class PauseNote:
    """What a process logs of a pause; `until` is as Postgres shows it, empty without an end."""

    queue: str
    by: str
    reason: str
    until: str

    def __str__(self) -> str:
        return f"by {self.by}{f' until {self.until}' if self.until else ''} ({self.reason})"


class Control:
    """The pauses that were there at the last look, of all queues.

    A process reads them once a second, in the statement that looks at the locks of nodes, and when it is notified.
    """

    def __init__(self) -> None:
        self.pauses: Mapping[str, PauseNote] = MappingProxyType({})
        # Counts changes: cheap to compare before each claim.
        self.version = 0
        # Whether the first read is under way: nothing should be claimed before it.
        self.read_expected = False
        # When the listening connection last read them, by the clock of leases.
        self.looked_at = -math.inf

    def note(self, found: Iterable[Sequence[str]], *, looked: bool) -> bool:
        """Note the pauses that a statement found, each as the fields of a note; return whether they have changed."""
        pauses = {queue: PauseNote(queue, *rest) for queue, *rest in found}
        changed = pauses != self.pauses
        if changed:
            self.pauses = MappingProxyType(pauses)
            self.version += 1
        if looked:
            self.looked_at = lease_now()
        self.read_expected = False
        return changed

    def paused_of(self, queues: Collection[str]) -> frozenset[str]:
        """Return those of the queues that are paused."""
        return frozenset(self.pauses).intersection(queues)


class Pausing(ABC):
    """Pauses and resumes queues, on the synchronous session of a transaction; `Store.run` calls it.

    Every process is notified by the commit.

    Example:
        await store.run(session, store.pausing.pause, "orders", None, by="ann", reason="deploy")

    """

    @abstractmethod
    def pause(self, session: Any, queue: str, until: datetime | None, *, by: str, reason: str) -> Pause:
        """Pause a queue, or change the pause that it has."""

    @abstractmethod
    def resume(self, session: Any, queue: str) -> bool:
        """Resume a queue; return whether it was paused."""

    @abstractmethod
    def read(self, session: Any) -> list[Pause]:
        """Return the pauses that are not over, by queue."""


class ControlledStore(ABC):
    """The part of a store that operators control; a store in memory has none of these tables."""

    control_table: Table | None = None
    audit_table: Table | None = None
    nodes_table: Table | None = None
    # Which queues are paused.
    control: Control
    # What pauses and resumes them, where there is a control table.
    pausing: Pausing | None = None
    # What writes the table of nodes, where there is one.
    registry: NodeRegistry | None = None

    async def read_control(self) -> bool:
        """Read which queues are paused into `control`, if there is a control table; return whether that changed."""
        return False
