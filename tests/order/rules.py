"""The rules that the rows of one key keep together, beside those that each row keeps by itself.

As there, the store has the benefit of the doubt: what was asked for and not answered may have worked or not.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import attrgetter
from typing import Final, NamedTuple

from tests.soak.checker import CLOCK_SLACK, FinalState, Kind, Violation, check
from tests.soak.row_histories import FINAL, Hold, RowHistories, RowHistory

# Of one rule: what is broken breaks again with every row.
MAX_PER_KEY: Final = 3


@dataclass(slots=True)
class KeyHold:
    """One claim of a key: some of its rows, under one token."""

    token: str
    asked: float
    received: float
    rows: list[tuple[RowHistory, Hold]] = field(default_factory=list)

    @property
    def free_from(self) -> float:
        """The earliest moment at which somebody else may have got the key."""
        return min(hold.free_from for _, hold in self.rows)


class Key:
    """The rows of a key that surely were committed, by their ids, and who held some of them when."""

    def __init__(self, name: str, rows: list[RowHistory], holds: list[KeyHold]) -> None:
        self.name = name
        self.rows = rows
        self.holds = holds
        # From when on each row may have been settled for good; then the same of all rows before it.
        self._over = [min((o.asked for _, o in history.possible(*FINAL)), default=math.inf) for history in self.rows]
        self._all_over = [-math.inf, *accumulate(self._over, max)]
        # Those that came back from the dead letters, with their numbers.
        self.replayed = [(number, history) for number, history in enumerate(rows) if history.returns]

    def open_before(self, number: int, t: float) -> Iterator[RowHistory]:
        """The rows before one of them that surely were not settled for good up to a time."""
        for before in range(number - 1, -1, -1):
            if self._all_over[before + 1] <= t:
                return
            if self._over[before] > t:
                yield self.rows[before]

    def back_before(self, number: int, since: float, until: float) -> Iterator[RowHistory]:
        """The rows before one of them that were settled for good, and surely were back for all of some time."""
        for before, history in self.replayed:
            if before < number and self._over[before] <= until and history.surely_open(since, until):
                yield history


class Finding(NamedTuple):
    """What one row of a key is evidence of."""

    history: RowHistory
    text: str


def gather_keys(histories: RowHistories, final: FinalState) -> list[Key]:
    """Put the rows of each key together."""
    left = {each.uid for each in (*final.outbox, *final.dead)}
    by_key: dict[str, list[RowHistory]] = defaultdict(list)
    for history in histories.rows.values():
        if history.key is not None and (
            history.holds or history.uid in left or (history.tx and history.tx.committed is not None)
        ):
            by_key[history.key].append(history)
    return [_key(name, rows) for name, rows in sorted(by_key.items())]


def _key(name: str, rows: list[RowHistory]) -> Key:
    rows.sort(key=lambda history: history.row_id or 0)
    holds: dict[str, KeyHold] = {}
    for history in rows:
        for hold in history.holds:
            token = hold.row.token
            whole = holds.setdefault(token, KeyHold(token, hold.asked, hold.received))
            whole.rows.append((history, hold))
    return Key(name, rows, sorted(holds.values(), key=attrgetter("received")))


class KeyChecker:
    """The rules, over the keys of one history."""

    def __init__(self, keys: Sequence[Key], slack: float) -> None:
        self._keys = keys
        self._slack = slack

    def violations(self) -> Iterator[Violation]:
        """Check every rule on every key."""
        rules: tuple[tuple[Kind, Callable[[Key], Iterator[Finding]]], ...] = (
            ("order", self.published),
            ("order", self.handed_out),
            ("order", self.started),
            ("exclusion", self.exclusion),
            ("exclusion", self.replayed),
            ("zombie", self.zombie),
        )
        for key in self._keys:
            for kind, rule in rules:
                for history, text in islice(rule(key), MAX_PER_KEY):
                    yield Violation(kind, history.uid, f"key {key.name}: {text}")

    def published(self, key: Key) -> Iterator[Finding]:
        """The ids of a key follow its commits: whoever has the lower one commits before the next is drawn."""
        soonest, follower = math.inf, None
        for history in reversed(key.rows):
            if history.tx is None:
                continue
            if follower is not None and history.tx.committing is not None and soonest < history.tx.committing:
                late = f"{history.tx.committing - soonest:.3f} s after row {follower.row_id} was there"
                yield Finding(history, f"row {history.row_id} was committed {late}, which follows it")
            if history.tx.committed is not None and history.tx.committed < soonest:
                soonest, follower = history.tx.committed, history

    def handed_out(self, key: Key) -> Iterator[Finding]:
        """Whoever gets a row gets all before it that are not settled for good."""
        for number, history in enumerate(key.rows):
            for hold in history.holds:
                back = key.back_before(number, hold.asked, hold.received)
                for other in (*key.open_before(number, hold.received), *back):
                    if _under(other, hold.row.token) is None:
                        text = f"row {history.row_id} was handed out as {hold.row.token[:8]} without row {other.row_id}"
                        yield Finding(history, f"{text}, which was not settled")

    def started(self, key: Key) -> Iterator[Finding]:
        """A row's handler starts when those of all rows before it have come to a good end."""
        for number, history in enumerate(key.rows):
            for hold, t in _starts(history):
                for other in key.open_before(number, t):
                    same = _under(other, hold.row.token)
                    if same is None or not any(end <= t for end in same.ended_well):
                        text = f"row {history.row_id} was started by {hold.row.token[:8]} at {t:.3f}"
                        yield Finding(history, f"{text}, before row {other.row_id} was handled")
                # Who has lost the key may not know that a row came back.
                lost = t >= hold.free_from - self._slack
                for other in () if lost else key.back_before(number, t, t):
                    same = _under(other, hold.row.token)
                    if same is None or not any(_last_return(other, t) <= end <= t for end in same.ended_well):
                        text = f"row {history.row_id} was started by {hold.row.token[:8]} at {t:.3f}"
                        yield Finding(history, f"{text}, after row {other.row_id} was back and before it was handled")

    def exclusion(self, key: Key) -> Iterator[Finding]:
        """One at a time has rows of a key, whichever rows they are."""
        earlier: list[KeyHold] = []
        for hold in key.holds:
            earlier = [other for other in earlier if hold.received < other.free_from - self._slack]
            for other in earlier:
                if other.received < hold.free_from - self._slack:
                    yield Finding(hold.rows[0][0], f"{_span(hold)}, while {_span(other)}")
            earlier.append(hold)

    def replayed(self, key: Key) -> Iterator[Finding]:
        """No row comes back from the dead letters while somebody has the key."""
        for _, back in key.replayed:
            for each in back.returns:
                if each.answered is None:
                    continue
                for history in key.rows:
                    for hold in history.holds:
                        if hold.received <= each.asked and each.answered < hold.free_from - self._slack:
                            had = f"while {hold.row.token[:8]} had row {history.row_id} until {hold.free_from:.3f}"
                            text = f"row {back.row_id} was replayed at {each.asked:.3f}-{each.answered:.3f}"
                            yield Finding(back, f"{text}, {had}")

    def zombie(self, key: Key) -> Iterator[Finding]:
        """Who lost the key changes none of its rows any more."""
        for number, hold in enumerate(key.holds):
            done = [(history, operation) for history, row in hold.rows for operation in row.done()]
            last = max((operation.asked for _, operation in done), default=-math.inf)
            for other in key.holds[number + 1 :]:
                if other.received > last:
                    break
                for history, operation in done:
                    if hold.received <= other.asked and other.received <= operation.asked:
                        text = f"{operation.verb} of row {history.row_id} by {hold.token[:8]} worked"
                        late = f"{operation.asked - other.received:.3f} s after the key had gone to {other.token[:8]}"
                        yield Finding(history, f"{text} {late}")


def check_keys(histories: RowHistories, final: FinalState, slack: float = CLOCK_SLACK) -> list[Violation]:
    """Return every violation that the history proves of keys."""
    return list(KeyChecker(gather_keys(histories, final), slack).violations())


def check_with_keys(
    histories: RowHistories, final: FinalState, slack: float = CLOCK_SLACK, start_slack: float = math.inf
) -> list[Violation]:
    """Return every violation that the history proves, of rows and of keys."""
    of_rows = check(histories, final, slack=slack, recovers=True, start_slack=start_slack)
    return [*of_rows, *check_keys(histories, final, slack)]


def _starts(history: RowHistory) -> list[tuple[Hold, float]]:
    return [(hold, t) for hold in history.holds for t in hold.started]


def _under(history: RowHistory, token: str) -> Hold | None:
    """The claim of a row under some token."""
    return next((hold for hold in history.holds if hold.row.token == token), None)


def _last_return(history: RowHistory, t: float) -> float:
    """When the last replay was asked for that had surely put a row back."""
    return max(each.asked for each in history.returns if each.answered is not None and each.answered <= t)


def _span(hold: KeyHold) -> str:
    ids = [history.row_id for history, _ in hold.rows]
    return f"{hold.token[:8]} had rows {ids[0]} to {ids[-1]} from {hold.received:.3f} to {hold.free_from:.3f}"
