"""What a replay of dead letters did: which went back into the outbox, and which were left and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

SkipReason = Literal["gone", "locked", "publishing", "in_flight", "id_taken", "id_not_drawn", "timer_waits"]

# These pass by themselves: another replay of the same dead letter may succeed a moment later.
PASSING: Final[frozenset[SkipReason]] = frozenset({"locked", "publishing", "in_flight"})

# Each reason for people to read.
SKIPPED_BECAUSE: Final[Mapping[SkipReason, str]] = {
    "gone": "it is not in the dead-letter table (any more)",
    "locked": "another transaction is replaying or changing it",
    "publishing": "an open transaction has published for its key, or for another key that shares its lock",
    "in_flight": "a message of its key is being handled",
    "id_taken": "the outbox has a row with its original id",
    "id_not_drawn": "its original id is higher than all ids that the outbox has drawn: the table was made anew",
    "timer_waits": "a timer of the same name waits in its queue",
}


@dataclass(slots=True)
class Replayed:
    """The dead letters that went back, and those that were skipped, by their ids in the dead-letter table."""

    back: list[int] = field(default_factory=list)
    skipped: dict[int, SkipReason] = field(default_factory=dict)

    @property
    def passing(self) -> list[int]:
        """The dead letters whose replay may succeed a moment later."""
        return [letter_id for letter_id, reason in self.skipped.items() if reason in PASSING]
