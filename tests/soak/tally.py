"""What a soak did so far, in numbers."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from tests.soak.history import (
    Answered,
    Arrived,
    Ask,
    Asked,
    Cancelled,
    Claimed,
    Claiming,
    Committed,
    Committing,
    Event,
    Inserted,
    Refused,
    Replayed,
    RolledBack,
    Started,
    Trouble,
    Verb,
)

_PLAIN: Final[dict[type[Event], str]] = {
    Inserted: "rows inserted",
    Committing: "commits sent",
    Committed: "commits answered",
    RolledBack: "rollbacks",
    Refused: "timers refused",
    Cancelled: "timers cancelled",
    Started: "handlers started",
    Arrived: "messages arrived",
    Trouble: "broken connections noticed",
}
_DONE: Final[dict[Verb, str]] = {
    "ack": "rows acked",
    "retry": "rows retried",
    "dead": "rows dead-lettered",
    "renew": "leases renewed",
    "release": "rows released",
}


class Tally:
    """Counts events as they come in; what was asked and never answered shows in the end."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._asked: dict[str, list[Ask]] = {}
        self._claiming: dict[str, bool] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Count events; those of one process come in their order."""
        for event in events:
            if name := _PLAIN.get(type(event)):
                self._counts[name] += 1
            match event:
                case Claiming(call=call, suspect=suspect):
                    self._claiming[call] = suspect
                case Claimed(call=call, rows=rows):
                    self._counts["suspects claimed" if self._claiming.pop(call) else "rows claimed"] += len(rows)
                case Asked(call=call, asks=asks):
                    self._asked[call] = asks
                case Replayed(uids=uids):
                    self._counts["dead letters replayed"] += len(uids)
                case Answered(call=call, held=held, complete=complete):
                    self._answered(self._asked.pop(call), set(held), complete=complete)

    def _answered(self, asks: list[Ask], held: set[tuple[str, str]], *, complete: bool) -> None:
        for ask in asks:
            if (ask.uid, ask.token) in held:
                self._counts[_DONE[ask.verb]] += 1
            else:
                self._counts["leases found lost" if complete else "answers lost"] += 1

    @property
    def counts(self) -> Counter[str]:
        """The numbers."""
        unanswered = sum(map(len, self._asked.values()))
        return self._counts + Counter({"answers lost": unanswered, "claims unanswered": len(self._claiming)})
