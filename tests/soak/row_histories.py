"""A history put together again: for each row, who published it, who held it when, and what became of it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from tests.soak.history import (
    Answered,
    Arrived,
    Asked,
    Cancelled,
    Claimed,
    ClaimedRow,
    Claiming,
    Committed,
    Committing,
    Crashed,
    Ended,
    Event,
    Inserted,
    Refused,
    Replayed,
    Replaying,
    RolledBack,
    Started,
    Sure,
    Trouble,
    Verb,
)

FINAL: Final = ("ack", "dead")


@dataclass(slots=True)
class Transaction:
    """When its commit was sent and answered, or its rollback sent; None for what did not happen, or nobody knows."""

    committing: float | None = None
    committed: float | None = None
    rolled_back: float | None = None


@dataclass(slots=True)
class Operation:
    """A settle, renewal or release of one lease; `held` is None while nobody knows."""

    verb: Verb
    asked: float
    seconds: float = 0.0
    answered: float | None = None
    held: bool | None = None

    @property
    def ends(self) -> bool:
        """Whether the lease is over if this worked."""
        return self.verb != "renew"


@dataclass(slots=True)
class Hold:
    """One claim of one row: it took effect somewhere between `asked` and `received`."""

    row: ClaimedRow
    suspect: bool
    asked: float
    received: float
    expires_at: float
    operations: list[Operation] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    # Of the starts, those that began a call: between the messages of one call nobody asks whether the node is sure.
    called: list[float] = field(default_factory=list)
    ended_well: list[float] = field(default_factory=list)
    # What its node saw of its lock, if the token is that of a node, and until when it saw it without a gap.
    sures: list[Sure] = field(default_factory=list)
    sure_until: float = math.inf

    def done(self, *verbs: Verb) -> Iterator[Operation]:
        """The operations that were answered as held; of some verbs, or all."""
        return (o for o in self.operations if o.held and (not verbs or o.verb in verbs))

    def possible(self, *verbs: Verb) -> Iterator[Operation]:
        """The operations of these verbs that worked or, for all that is known, may have."""
        return (o for o in self.operations if o.held is not False and o.verb in verbs)

    @property
    def free_from(self) -> float:
        """The earliest moment at which somebody else may have got the row.

        Either the lease ran out by the holder's own clock, or its node did not see its lock for too long, or the holder
        asked for its end. A renewal counts only when
        it is known to have worked; then nobody was there in between, even if it came late.
        """
        expiry = max([self.expires_at, *(o.asked + o.seconds for o in self.done("renew"))])
        return min([expiry, self.sure_until, *(o.asked for o in self.possible("ack", "retry", "dead", "release"))])

    def was_sure(self, t: float, slack: float) -> bool:
        """Whether its node, so many seconds before or later, had seen its lock and not lost it since the claim."""
        return not self.sures or any(
            sure.t <= t and sure.until > t - slack and sure.owned_since <= self.asked for sure in self.sures
        )

    def surely_before(self, other: "Hold", slack: float) -> bool:
        """Whether the other cannot have come first: it still had the row when this claim had been answered."""
        return self.received < other.free_from - slack


@dataclass(slots=True)
class Cancel:
    """A cancel that answered True."""

    asked: float
    answered: float
    tx: Transaction


@dataclass(slots=True)
class Return:
    """A replay of a dead letter that put its row back, between `asked` and `answered`; maybe, if that is None."""

    asked: float
    answered: float | None = None


@dataclass(slots=True)
class RowHistory:
    """All that is known of one row. One that nobody logged as inserted has no transaction."""

    uid: str
    row_id: int | None = None
    began: float = -math.inf
    delay: float = 0.0
    timer_id: str | None = None
    key: str | None = None
    tx: Transaction | None = None
    # In the order of the claims, by the database's clock.
    holds: list[Hold] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    # In the order in which they lie on the server.
    arrivals: list[Arrived] = field(default_factory=list)
    # In the order in which they were asked for.
    returns: list[Return] = field(default_factory=list)

    def returned(self, since: float, until: float) -> bool:
        """Whether a replay may have put the row back in some time."""
        return any(each.asked <= until and (each.answered is None or each.answered >= since) for each in self.returns)

    def surely_open(self, since: float, until: float) -> bool:
        """Whether the row surely was in the outbox for all of some time, as far as it was published by then.

        It was never settled for good, or it was replayed and not settled for good since. What was asked for before the
        replay cannot settle it later: its token is gone.
        """
        back = max((each.asked for each in self.returns if (each.answered or math.inf) <= since), default=-math.inf)
        return not any(back <= operation.asked <= until for _, operation in self.possible(*FINAL))

    def done(self, *verbs: Verb) -> list[tuple[Hold, Operation]]:
        """What was answered as held, over all holds."""
        return [(hold, operation) for hold in self.holds for operation in hold.done(*verbs)]

    def possible(self, *verbs: Verb) -> list[tuple[Hold, Operation]]:
        """What worked or may have, over all holds."""
        return [(hold, operation) for hold in self.holds for operation in hold.possible(*verbs)]


@dataclass(slots=True)
class LostClaim:
    """A claim whose answer never came: it may have taken rows that nobody then knew of."""

    asked: float
    lease_seconds: float


@dataclass(slots=True)
class RowHistories:
    """The rows, and what concerns none of them alone."""

    rows: dict[str, RowHistory] = field(default_factory=dict)
    lost_claims: list[LostClaim] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    crowded: list[Claimed] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)


def assemble(events: Iterable[Event]) -> RowHistories:  # noqa: C901, PLR0912, PLR0915 - one case an event
    """Put a history together; the events may come in any order that keeps each process's own."""
    histories = RowHistories()
    transactions: dict[str, Transaction] = defaultdict(Transaction)
    claims: dict[str, Claiming] = {}
    holds: dict[tuple[str, str], Hold] = {}
    asked: dict[str, dict[tuple[str, str], Operation]] = {}
    arrived: list[Arrived] = []
    replays: dict[str, dict[str, Return]] = {}
    sures: dict[str, list[Sure]] = defaultdict(list)

    def history(uid: str) -> RowHistory:
        return histories.rows.setdefault(uid, RowHistory(uid))

    for event in sorted(events, key=attrgetter("t")):
        match event:
            case Inserted(_, tx, uid, row_id, began, delay, timer_id, key):
                histories.rows[uid] = RowHistory(
                    uid, row_id, began, delay, timer_id, key, transactions[tx], history(uid).holds
                )
            case Refused():
                histories.refused.append(event)
            case Cancelled(t, tx, at, uid):
                history(uid).cancels.append(Cancel(at, t, transactions[tx]))
            case Committing(t, tx):
                transactions[tx].committing = t
            case Committed(t, tx):
                transactions[tx].committed = t
            case RolledBack(t, tx):
                transactions[tx].rolled_back = t
            case Claiming(call=call):
                claims[call] = event
            case Claimed(t, call, expires_at, rows):
                claim = claims.pop(call)
                if claim.suspect and len(rows) > 1:
                    histories.crowded.append(event)
                for row in rows:
                    holds[row.uid, row.token] = hold = Hold(row, claim.suspect, claim.t, t, expires_at)
                    history(row.uid).holds.append(hold)
            case Sure(node=node):
                sures[node].append(event)
            case Started(t, uid, token, behind):
                holds[uid, token].started.append(t)
                if not behind:
                    holds[uid, token].called.append(t)
            case Ended(t, uid, token, ok):
                if ok:
                    holds[uid, token].ended_well.append(t)
            case Asked(t, call, asks):
                operations = {(a.uid, a.token): Operation(a.verb, t, a.seconds) for a in asks}
                for held_by, operation in operations.items():
                    holds[held_by].operations.append(operation)
                asked[call] = operations
            case Answered(t, call, held, complete):
                _answer(asked.pop(call), held, t, complete=complete)
            case Replaying(t, call, uids):
                replays[call] = {uid: Return(t) for uid in uids}
                for uid, each in replays[call].items():
                    history(uid).returns.append(each)
            case Replayed(t, call, uids):
                for uid, each in replays.pop(call).items():
                    if uid in uids:
                        each.answered = t
                    else:
                        history(uid).returns.remove(each)
            case Arrived():
                arrived.append(event)
            case Crashed(text=text):
                histories.crashes.append(text)
            case Trouble():
                pass
    histories.lost_claims = [LostClaim(claim.t, claim.lease_seconds) for claim in claims.values()]
    for arrival in sorted(arrived, key=attrgetter("number")):
        history(arrival.uid).arrivals.append(arrival)
    for hold in holds.values():
        if hold.row.token[12:13] == "8":
            hold.sures = sures[hold.row.token[:12]]
            hold.sure_until = _sure_until(hold.sures, hold.received)
    for row_life in histories.rows.values():
        row_life.holds.sort(key=lambda hold: hold.row.acquired_epoch)
    return histories


def _sure_until(sures: Sequence[Sure], t: float) -> float:
    """Return until when a node saw its lock, from then on without a gap."""
    until = math.inf
    for sure in sures:
        if sure.t > t and sure.t >= until:
            break
        until = sure.until
    return until


def _answer(
    operations: dict[tuple[str, str], Operation], held: Sequence[tuple[str, str]], t: float, *, complete: bool
) -> None:
    for key, operation in operations.items():
        if key in held:
            operation.held, operation.answered = True, t
        elif complete:
            operation.held, operation.answered = False, t


def lines_of(history: RowHistory) -> list[str]:
    """Return a row's history, a line for each event, in the order in which they happened."""
    steps: list[tuple[float, str]] = []
    if history.tx is not None:
        tx = history.tx
        row = f"row {history.row_id}" if history.key is None else f"row {history.row_id} of key {history.key}"
        steps.append((history.began, f"transaction began; {row}, due {history.delay:.3f} s later"))
        for t, text in (
            (tx.committing, "commit sent"),
            (tx.committed, "commit answered"),
            (tx.rolled_back, "rollback"),
        ):
            if t is not None:
                steps.append((t, text))
    for cancel in history.cancels:
        steps.append((cancel.asked, f"cancel sent, answered at {cancel.answered:.3f}"))
        steps.append((cancel.tx.committed or math.inf, "cancel committed"))
    for each in history.returns:
        at = "no answer" if each.answered is None else f"answered at {each.answered:.3f}"
        steps.append((each.asked, f"replay sent, {at}"))
    steps.extend((each.at, f"arrived as message {each.number} of {each.partition}") for each in history.arrivals)
    for hold in history.holds:
        name, kind = hold.row.token[:8], "suspect claim" if hold.suspect else "claim"
        until = f"lease until {hold.expires_at:.3f}"
        steps.append((hold.asked, f"{name}: {kind} sent"))
        steps.append((hold.received, f"{name}: {kind} answered, delivery {hold.row.deliveries}, {until}"))
        steps.extend((t, f"{name}: handler started") for t in hold.started)
        steps.extend((t, f"{name}: handler ended well") for t in hold.ended_well)
        for o in hold.operations:
            answer = {True: "held", False: "lost", None: "no answer"}[o.held]
            at = "" if o.answered is None else f" at {o.answered:.3f}"
            steps.append((o.asked, f"{name}: {o.verb} sent: {answer}{at}"))
    return [f"{t:.3f} {text}" for t, text in sorted(steps) if t < math.inf]
