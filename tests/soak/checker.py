"""The rules that a history must keep: a pure function from what was logged, and what is left, to what was broken.

Every rule gives the store the benefit of the doubt. What was sent and not answered may have worked or not; what is
known to have happened happened somewhere between its sending and its answer. So a correct store breaks no rule,
whenever its processes die, and a broken one is found when the times leave no excuse.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, islice, pairwise
from typing import Final, Literal

from faststream_outbox.storage.nodes import GRACE
from tests.soak.row_histories import FINAL, Hold, RowHistories, RowHistory

Kind = Literal[
    "loss",
    "uncommitted",
    "cancelled",
    "double effect",
    "exclusion",
    "order",
    "zombie",
    "suspect",
    "deliveries",
    "early",
    "stuck",
    "crash",
    # Of rows that are relayed.
    "duplicate",
    "header",
    "dead",
    "attempt",
]

# The database's clock is steered while the monotonic one of the processes is not: they may part by that much in the
# seconds of a lease. More than it takes by far, and far less than a lease.
CLOCK_SLACK: Final = 0.02
# How many claims without an end make a row a suspect.
MAKES_SUSPECT: Final = 2


# Of one rule: the claims of a row that everybody claims would fill pages.
MAX_PER_ROW: Final = 3


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, by which row, and the evidence."""

    kind: Kind
    uid: str
    text: str


@dataclass(frozen=True, slots=True)
class Left:
    """A row that was found in a table after the round."""

    uid: str
    row_id: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class FinalState:
    """What is in the tables when everybody has gone."""

    outbox: list[Left] = field(default_factory=list)
    dead: list[Left] = field(default_factory=list)
    # Rows of which an attempt was counted, where that is watched.
    burnt: list[str] = field(default_factory=list)


class Checker:
    """The rules, over one history."""

    def __init__(
        self,
        histories: RowHistories,
        final: FinalState,
        slack: float = CLOCK_SLACK,
        *,
        recovers: bool = False,
        start_slack: float = math.inf,
    ) -> None:
        self._lives = histories
        # How long it may take from the decision to start a handler to its first line: without a limit if the handler
        # waits for a session before, or its process may be paused.
        self._start_slack = start_slack
        # Whether rows are freed whose lease is over for the first time.
        self._recovers = recovers
        self._outbox = _by_uid(final.outbox)
        self._dead = _by_uid(final.dead)
        self._slack = slack

    def violations(self) -> Iterator[Violation]:
        """Check every rule on every row."""
        rules: tuple[tuple[Kind, Callable[[RowHistory], Iterator[str]]], ...] = (
            ("loss", self.loss),
            ("uncommitted", self.uncommitted),
            ("cancelled", self.cancelled),
            ("double effect", self.double_effect),
            ("exclusion", self.exclusion),
            ("exclusion", self.unsure),
            ("zombie", self.zombie),
            ("suspect", self.suspect),
            ("deliveries", self.deliveries),
            ("early", self.early),
            ("stuck", self.stuck),
        )
        unheard = (self._outbox.keys() | self._dead.keys()) - self._lives.rows.keys()
        for history in (*self._lives.rows.values(), *map(RowHistory, sorted(unheard))):
            for kind, rule in rules:
                for text in islice(rule(history), MAX_PER_ROW):
                    yield Violation(kind, history.uid, text)
        yield from self._of_no_row()

    def _of_no_row(self) -> Iterator[Violation]:
        for claim in self._lives.crowded:
            yield Violation("suspect", claim.rows[0].uid, f"claim_suspect brought {len(claim.rows)} rows at once")
        timers = defaultdict(list)
        for history in self._lives.rows.values():
            timers[history.timer_id].append(history)
        for refused in self._lives.refused:
            if not any(_may_be_there(history, refused.asked, refused.t) for history in timers[refused.timer_id]):
                yield Violation("loss", refused.timer_id, "a timer was refused although none of its name was waiting")
        for text in self._lives.crashes:
            yield Violation("crash", "", text)

    def loss(self, history: RowHistory) -> Iterator[str]:
        """What was committed is in a table, or was handled and acked, or was cancelled."""
        if (
            history.tx is None
            or history.tx.committed is None
            or history.uid in self._outbox
            or history.uid in self._dead
        ):
            return
        if any(cancel.tx.committing is not None for cancel in history.cancels):
            return
        acks = history.possible("ack")
        if len(history.done("dead")) > len(history.returns) or (not acks and history.possible("dead")):
            yield "dead-lettered, and not in the dead-letter table"
        elif not acks:
            yield "committed and gone, and nobody settled it"
        elif not any(hold.ended_well for hold in history.holds):
            yield "acked and gone, and no handler ever came to its end"

    def uncommitted(self, history: RowHistory) -> Iterator[str]:
        """Only what was committed is delivered, and not before its commit was sent."""
        tx = history.tx
        if tx is None:
            seen = bool(history.holds) or history.uid in self._outbox or history.uid in self._dead
            if seen:
                yield "there is a row that nobody published"
            return
        for hold in history.holds:
            if hold.row.row_id != history.row_id:
                yield f"published as row {history.row_id}, claimed as row {hold.row.row_id}"
            if tx.committing is None:
                yield "claimed, and its transaction never was committed"
            elif hold.received < tx.committing:
                yield f"claimed {tx.committing - hold.received:.3f} s before its commit was sent"
        if tx.committing is None and (history.uid in self._outbox or history.uid in self._dead):
            yield "left in a table, and its transaction never was committed"

    def cancelled(self, history: RowHistory) -> Iterator[str]:
        """A timer that was cancelled is not delivered; one that is in flight is not cancelled."""
        for cancel in history.cancels:
            for hold in history.holds:
                if hold.received <= cancel.asked and cancel.answered < hold.free_from - self._slack:
                    yield f"cancelled {hold.free_from - cancel.answered:.3f} s before its lease was over"
                # A transaction whose connection broke let go of the row before its end; only a commit proves it whole.
                if cancel.tx.committing is None or cancel.tx.committed is None:
                    continue
                if hold.asked >= cancel.answered and hold.received <= cancel.tx.committing:
                    yield "claimed while its cancel was waiting for its commit"
                if hold.asked >= cancel.tx.committed:
                    yield "claimed after its cancel was committed"
                if any(o.ends and o.asked >= cancel.tx.committed for o in hold.done()):
                    yield "settled after its cancel was committed"

    def double_effect(self, history: RowHistory) -> Iterator[str]:
        """A row is settled for good once, and once more for each replay; what is gone does not come back otherwise."""
        finals = history.done(*FINAL)
        if len(finals) > 1 + len(history.returns):
            yield "settled for good by " + " and by ".join(f"{o.verb} of {h.row.token[:8]}" for h, o in finals)
        for hold in history.holds:
            ends = [o for o in hold.done() if o.ends]
            if len(ends) > 1:
                yield f"one lease ended by {' and by '.join(o.verb for o in ends)}, each answered as held"
        for _, final in finals:
            later = [hold for hold in history.holds if final.answered is not None and hold.asked >= final.answered]
            if any(not history.returned(final.asked, hold.received) for hold in later):
                yield f"claimed again after its {final.verb} was answered"
        dead, waiting = len(self._dead.get(history.uid, ())), len(self._outbox.get(history.uid, ()))
        if dead + waiting > 1:
            yield f"{waiting} times in the outbox and {dead} times in the dead-letter table"
        if finals and waiting and not history.returned(finals[-1][1].asked, math.inf):
            yield f"its {finals[0][1].verb} was answered, and it is still in the outbox"

    def exclusion(self, history: RowHistory) -> Iterator[str]:
        """Of two claims, one came after the other's lease; each had it at a time that the answers leave open."""
        for one, other in combinations(history.holds, 2):
            if one.surely_before(other, self._slack) and other.surely_before(one, self._slack):
                yield (
                    f"claimed twice: {_span(one)} and {_span(other)}, and neither had ended when the other began "
                    f"(the free times: {one.free_from:.3f}, {other.free_from:.3f})"
                )

    def unsure(self, history: RowHistory) -> Iterator[str]:
        """A handler is called only while its node has seen its lock lately."""
        for hold in history.holds:
            for t in hold.called:
                if not hold.was_sure(t, self._start_slack):
                    yield f"started under {hold.row.token[:8]} at {t:.3f}, when its node had not seen its lock for long"

    def zombie(self, history: RowHistory) -> Iterator[str]:
        """Who lost the row, or gave it up, changes it no more."""
        for hold in history.holds:
            for operation in hold.done():
                for other in history.holds:
                    later = other is not hold and hold.received <= other.asked
                    if later and other.received <= operation.asked:
                        yield (
                            f"{operation.verb} of {hold.row.token[:8]} worked {operation.asked - other.received:.3f} s "
                            f"after the row had gone to {other.row.token[:8]}"
                        )
                ends = [o.answered for o in hold.done() if o.ends and o is not operation and o.answered is not None]
                if any(operation.asked >= ended for ended in ends):
                    yield f"{operation.verb} of {hold.row.token[:8]} worked after that lease had been ended"

    def suspect(self, history: RowHistory) -> Iterator[str]:
        """A row whose lease ran out is a suspect, and goes alone; any other row is none."""
        if history.key is not None:
            return  # only the first row of a key has a lease of its own
        first = self._first(history)
        if first is not None and first.suspect and not self._lost_between(_published(history), first):
            yield "claimed as a suspect before anybody else had it"
        for former, later in self._pairs(history):
            if not later.suspect:
                freed = any(o.verb == "retry" or not former.suspect for o in former.possible("retry", "release"))
                if not freed and not (self._recovers and self._came_back_once(history, former)):
                    yield f"its lease {former.row.token[:8]} ran out, and it was claimed among others"
                continue
            lost = self._lost_between(former.asked, later)
            freed = any(o.verb == "retry" or not former.suspect for o in former.done("retry", "release"))
            if freed and not lost:
                yield f"free after {former.row.token[:8]}, and claimed as a suspect"
            # Others may take the row when its holder asked for that, or when the holder's node seems dead.
            ended = any(former.possible("retry", "release")) or former.sure_until <= later.received
            if not ended and later.row.acquired_epoch < former.row.lease_epoch:
                early = former.row.lease_epoch - later.row.acquired_epoch
                yield f"claimed as a suspect {early:.3f} s before its lease was over by the database's clock"

    @staticmethod
    def _came_back_once(history: RowHistory, last: Hold) -> bool:
        """Whether at most one claim up to this one had no end, so that the row was freed and is no suspect."""
        until = history.holds[: history.holds.index(last) + 1]
        back = max((each.asked for each in history.returns if each.asked <= last.received), default=-math.inf)
        until = [hold for hold in until if hold.received >= back]
        return sum(not any(hold.possible("retry", "release")) for hold in until) < MAKES_SUSPECT

    def deliveries(self, history: RowHistory) -> Iterator[str]:
        """Each claim counts one, each release takes one back."""
        if history.key is not None:
            return  # those behind the first row of a key are handed out unwritten
        first = self._first(history)
        if first is not None:
            lost = self._lost_between(_published(history), first)
            yield from _outside(first.row.deliveries, 1, 1 + lost, "its first claim")
        for former, later in self._pairs(history):
            released = any(former.done("release"))
            maybe_released = any(former.possible("release"))
            lowest = former.row.deliveries + (0 if maybe_released else 1)
            highest = former.row.deliveries + (0 if released else 1) + self._lost_between(former.asked, later)
            after = f"its claim after one that was counted as {former.row.deliveries}" + " and released" * released
            yield from _outside(later.row.deliveries, lowest, highest, after)
        buried = {hold.row.deliveries for hold, _ in history.possible("dead")}
        for dead in self._dead.get(history.uid, ()):
            if dead.deliveries not in buried:
                yield f"dead after {dead.deliveries} deliveries, and settled so after {sorted(buried)}"

    def early(self, history: RowHistory) -> Iterator[str]:
        """Nothing is delivered before it is due."""
        due = history.began + history.delay
        for hold in history.holds:
            if hold.received < due - self._slack:
                yield f"claimed {due - hold.received:.3f} s before it was due"
        for former, later in self._pairs(history):
            for retry in former.done("retry"):
                due = retry.asked + retry.seconds
                if later.received < due - self._slack:
                    yield f"claimed {due - later.received:.3f} s before its retry was due"

    def stuck(self, history: RowHistory) -> Iterator[str]:
        """When nothing goes wrong any more, everything is delivered."""
        for left in self._outbox.get(history.uid, ()):
            yield f"still in the outbox as row {left.row_id}, after {left.deliveries} deliveries"

    def _sure(self, one: Hold, other: Hold) -> bool:
        """Whether the order of two claims is sure; a paused process hears of its claim long after it was over."""
        return one.surely_before(other, self._slack)

    def _first(self, history: RowHistory) -> Hold | None:
        """The first claim of a row, if it is sure which that was."""
        first, others = history.holds[:1], history.holds[1:]
        return first[0] if first and all(self._sure(first[0], other) for other in others) else None

    def _pairs(self, history: RowHistory) -> Iterator[tuple[Hold, Hold]]:
        """Claims of which it is sure that one followed the other, with none that is known in between."""
        for n, (former, later) in enumerate(pairwise(history.holds)):
            before, after = history.holds[:n], history.holds[n + 2 :]
            if (
                self._sure(former, later)
                and not self._sure(later, former)
                and not history.returned(former.asked, later.received)
                and all(self._sure(other, former) for other in before)
                and all(self._sure(later, other) for other in after)
            ):
                yield former, later

    def _lost_between(self, since: float, later: Hold) -> int:
        """How many claims nobody heard of may have had the row before this one.

        Each made the row a suspect, and had it for a whole lease. Where rows are recovered, it made the row free maybe,
        and had it until its node was dead.
        """
        lost = [claim for claim in self._lives.lost_claims if claim.asked < later.received]
        if not lost or not (later.suspect or self._recovers):
            return 0
        shortest = min(claim.lease_seconds for claim in lost)
        if self._recovers:
            shortest = min(shortest, GRACE)
        return min(len(lost), int((later.received - since + self._slack) / shortest))


def check(
    histories: RowHistories,
    final: FinalState,
    *,
    slack: float = CLOCK_SLACK,
    recovers: bool = False,
    start_slack: float = math.inf,
) -> list[Violation]:
    """Return every violation that the history proves."""
    return list(Checker(histories, final, slack, recovers=recovers, start_slack=start_slack).violations())


def _outside(count: int, lowest: int, highest: int, what: str) -> Iterator[str]:
    if not lowest <= count <= highest:
        expected = str(lowest) if lowest == highest else f"{lowest} to {highest}"
        yield f"{what} was counted as {count}, not {expected}"


def _published(history: RowHistory) -> float:
    """The earliest moment at which a row may have been claimed, as far back as anything was logged."""
    return 0.0 if history.tx is None or history.tx.committing is None else history.tx.committing


def _may_be_there(history: RowHistory, asked: float, answered: float) -> bool:
    """Whether a row may have been in the table at some moment of a question."""
    if history.tx is None or history.tx.committing is None or history.tx.committing > answered:
        return False
    gone = [o.answered for _, o in history.done(*FINAL)] + [cancel.tx.committed for cancel in history.cancels]
    return not any(at is not None and at < asked for at in gone)


def _by_uid(rows: Iterable[Left]) -> dict[str, list[Left]]:
    by_uid: dict[str, list[Left]] = defaultdict(list)
    for row in rows:
        by_uid[row.uid].append(row)
    return dict(by_uid)


def _span(hold: Hold) -> str:
    return f"{hold.row.token[:8]} at {hold.asked:.3f}-{hold.received:.3f}"


def kinds(violations: Iterable[Violation]) -> Counter[Kind]:
    """Count violations by their kind."""
    return Counter(violation.kind for violation in violations)
