"""The checker on histories made by hand: sound ones it lets pass, each kind of broken one it names."""

from collections.abc import Iterable
from itertools import count

import pytest

from tests.soak.checker import FinalState, Kind, Left, check
from tests.soak.history import (
    Answered,
    Ask,
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
    RolledBack,
    Started,
    Sure,
    Verb,
)
from tests.soak.row_histories import assemble, lines_of

LEASE = 10.0
# The token of a node that shows whether it sees its lock.
NODE = "0123456789ab"
OF_NODE = f"{NODE}8000"
EMPTY = FinalState()
_calls = count()


def published(uid: str = "r", *, at: float = 0.0, delay: float = 0.0, timer: str | None = None) -> list[Event]:
    """Inserted at `at`, commit sent 0.2 s later and answered 0.1 s after that."""
    tx = f"tx of {uid}"
    return [Inserted(at + 0.1, tx, uid, 1, at, delay, timer), Committing(at + 0.2, tx), Committed(at + 0.3, tx)]


def claimed(
    token: str, at: float, *, took: float = 0.1, deliveries: int = 1, suspect: bool = False, uid: str = "r"
) -> list[Event]:
    """Sent at `at`; the lease counts from there."""
    row = ClaimedRow(uid, 1, token, deliveries, 1000 + at, 1000 + at + LEASE)
    return [Claiming(at, f"claim {token}", suspect, LEASE), Claimed(at + took, f"claim {token}", at + LEASE, [row])]


def handled(token: str, at: float, *, uid: str = "r") -> list[Event]:
    return [Started(at, uid, token), Ended(at + 0.1, uid, token, ok=True)]


def asked(
    verb: Verb, token: str, at: float, *, held: bool | None = True, seconds: float = 0.0, uid: str = "r"
) -> list[Event]:
    """Sent at `at`, answered 0.1 s later, or never when `held` is None."""
    call = f"call {next(_calls)}"
    question = Asked(at, call, [Ask(uid, token, verb, seconds)])
    if held is None:
        return [question]
    return [question, Answered(at + 0.1, call, [(uid, token)] if held else [], complete=True)]


def cancelled(at: float, *, committed: bool = True, uid: str = "r") -> list[Event]:
    """Sent at `at`, answered 0.1 s later, committed 1 s after that."""
    tx = f"cancel of {uid}"
    ends: list[Event] = [Committing(at + 1.1, tx), Committed(at + 1.2, tx)] if committed else [RolledBack(at + 1.1, tx)]
    return [Cancelled(at + 0.1, tx, at, uid), *ends]


def found(*parts: Iterable[Event], final: FinalState = EMPTY) -> list[Kind]:
    return [violation.kind for violation in check(assemble(event for part in parts for event in part), final)]


GOOD: dict[str, list[list[Event]]] = {
    "claimed, handled and acked": [published(), claimed("a", 1), handled("a", 2), asked("ack", "a", 3)],
    "retried, then acked": [
        published(),
        claimed("a", 1),
        asked("retry", "a", 2, seconds=1),
        *(claimed("b", 3, deliveries=2), handled("b", 4), asked("ack", "b", 5)),
    ],
    "released, then acked": [
        published(),
        claimed("a", 1),
        asked("release", "a", 2),
        *(claimed("b", 3), handled("b", 4), asked("ack", "b", 5)),
    ],
    "the lease ran out; late settle and renewal are refused": [
        published(),
        claimed("a", 1),
        claimed("b", 12, deliveries=2, suspect=True),
        *(asked("renew", "a", 13, held=False, seconds=LEASE), asked("ack", "a", 13, held=False)),
        *(handled("b", 13), asked("ack", "b", 14)),
    ],
    "renewed, even late, and nobody else came": [
        published(),
        claimed("a", 1),
        *(asked("renew", "a", 9, seconds=LEASE), asked("renew", "a", 25, seconds=LEASE)),
        *(handled("a", 30), asked("ack", "a", 31)),
    ],
    "an ack whose answer was lost, and that is lost when it is sent again": [
        published(),
        claimed("a", 1),
        *(handled("a", 2), asked("ack", "a", 3, held=None), asked("ack", "a", 4, held=False)),
    ],
    "a retry whose answer was lost may have worked": [
        published(),
        claimed("a", 1),
        asked("retry", "a", 2, held=None),
        *(claimed("b", 3, deliveries=2), handled("b", 4), asked("ack", "b", 5)),
    ],
    "a retry whose answer was lost may have failed": [
        published(),
        claimed("a", 1),
        asked("retry", "a", 2, held=None),
        *(claimed("b", 12, deliveries=2, suspect=True), handled("b", 13), asked("ack", "b", 14)),
    ],
    "a claim whose answer was lost counts, and leaves a suspect": [
        published(),
        [Claiming(1, "lost", False, LEASE)],  # noqa: FBT003 - the fields of the event
        *(claimed("b", 12, deliveries=2, suspect=True), handled("b", 13), asked("ack", "b", 14)),
    ],
    "a suspect that was released stays one, and its delivery is not counted": [
        published(),
        claimed("a", 1),
        *(claimed("b", 12, deliveries=2, suspect=True), asked("release", "b", 13)),
        *(claimed("c", 14, deliveries=2, suspect=True), handled("c", 15), asked("ack", "c", 16)),
    ],
    "a node that did not see its lock for long is dead for others, whatever its lease": [
        published(),
        [Sure(0.5, NODE, 5.25, 0.0)],
        *(claimed(OF_NODE, 1), claimed("b", 7, deliveries=2, suspect=True), handled("b", 8), asked("ack", "b", 9)),
    ],
    "claims that crossed: the second began before the first had been given back": [
        published(),
        claimed("a", 1),
        asked("release", "a", 2),
        *(claimed("b", 1.9, took=0.5), handled("b", 4), asked("ack", "b", 5)),
    ],
    "a paused process hears of its claim when it is long over": [
        published(),
        claimed("a", 1, took=20),
        *(claimed("b", 12, deliveries=2, suspect=True), handled("b", 13), asked("ack", "b", 14)),
        asked("ack", "a", 22, held=False),
    ],
    "rolled back and never seen": [[Inserted(0.1, "tx", "r", 1, 0, 0, None), RolledBack(0.2, "tx")]],
    "killed before its commit": [[Inserted(0.1, "tx", "r", 1, 0, 0, None)]],
    "a commit that nobody heard of may have failed": [[Inserted(0.1, "tx", "r", 1, 0, 0, None), Committing(0.2, "tx")]],
    "a commit that nobody heard of may have worked": [
        [Inserted(0.1, "tx", "r", 1, 0, 0, None), Committing(0.2, "tx")],
        *(claimed("a", 1), handled("a", 2), asked("ack", "a", 3)),
    ],
    "cancelled in time": [published(delay=5), cancelled(1)],
    "a cancel that was rolled back": [
        published(),
        cancelled(1, committed=False),
        *(claimed("a", 3), handled("a", 4), asked("ack", "a", 5)),
    ],
    "cancelled after its lease had run out": [
        published(),
        claimed("a", 1),
        cancelled(12),
        asked("ack", "a", 14, held=False),
    ],
    "a timer is refused while one waits": [published(timer="t"), [Refused(1.1, 1.0, "t")], cancelled(2)],
}


@pytest.mark.parametrize("events", GOOD.values(), ids=GOOD)
def test_a_sound_history_passes(events: list[list[Event]]) -> None:
    assert found(*events) == []


LATER = (*claimed("b", 12, deliveries=2, suspect=True), *handled("b", 13))

BAD: dict[str, tuple[list[Kind], list[Iterable[Event]]]] = {
    "committed and gone": (["loss"], [published()]),
    "claimed and gone": (["loss"], [published(), claimed("a", 1), handled("a", 2)]),
    "acked, and never handled": (["loss"], [published(), claimed("a", 1), asked("ack", "a", 2)]),
    "dead, and in no table": (["loss"], [published(), claimed("a", 1), asked("dead", "a", 2)]),
    "its ack is known to have been refused": (
        ["loss"],
        [published(), claimed("a", 1), handled("a", 2), asked("ack", "a", 3, held=False)],
    ),
    "a timer is refused, and none waits": (["loss"], [[Refused(1.1, 1.0, "t")]]),
    "a timer is refused after the one that waited was acked": (
        ["loss"],
        [
            *(published(timer="t"), claimed("a", 1), handled("a", 2), asked("ack", "a", 3)),
            [Refused(5.1, 5.0, "t")],
        ],
    ),
    "rolled back and delivered": (
        ["uncommitted"],
        [[Inserted(0.1, "tx", "r", 1, 0, 0, None), RolledBack(0.2, "tx")], claimed("a", 1)],
    ),
    "delivered before its commit was sent": (
        ["uncommitted"],
        [
            [Inserted(0.1, "tx", "r", 1, 0, 0, None), Committing(9, "tx"), Committed(9.1, "tx")],
            *(claimed("a", 1), handled("a", 2), asked("ack", "a", 10)),
        ],
    ),
    "delivered, and published by nobody": (["uncommitted"], [claimed("a", 1)]),
    "cancelled and delivered": (
        ["cancelled", "cancelled"],
        [published(), cancelled(1), claimed("a", 3), handled("a", 4), asked("ack", "a", 5)],
    ),
    "delivered while its cancel waited for its commit": (
        ["cancelled", "cancelled"],
        [published(), cancelled(1), claimed("a", 1.5), handled("a", 4), asked("ack", "a", 5)],
    ),
    "cancelled in flight": (
        ["cancelled"],
        [published(), claimed("a", 1), cancelled(2), handled("a", 2), asked("ack", "a", 9, held=False)],
    ),
    "acked twice": (
        ["double effect", "zombie"],
        [published(), claimed("a", 1), LATER, asked("ack", "a", 14), asked("ack", "b", 14)],
    ),
    "one lease ended twice": (
        ["double effect", "zombie"],
        [
            *(published(), claimed("a", 1), handled("a", 2), asked("release", "a", 3), asked("release", "a", 4)),
            *(claimed("b", 5), handled("b", 6), asked("ack", "b", 7)),
        ],
    ),
    "claimed after its ack": (
        ["double effect"],
        [
            *(published(), claimed("a", 1), handled("a", 2), asked("ack", "a", 3)),
            *(claimed("b", 12, deliveries=2, suspect=True), asked("ack", "b", 14, held=False)),
        ],
    ),
    "claimed under a lease that stood": (
        ["exclusion"],
        [
            *(published(), claimed("a", 1), claimed("b", 5, deliveries=2, suspect=True)),
            *(handled("b", 6), asked("ack", "b", 7), asked("ack", "a", 7.5, held=False)),
        ],
    ),
    "claimed by two at once": (
        ["exclusion"],
        [published(), claimed("a", 1), claimed("b", 1.05, deliveries=2), handled("b", 6), asked("ack", "b", 7)],
    ),
    "claimed under a lease that had been renewed": (
        ["exclusion"],
        [published(), claimed("a", 1), asked("renew", "a", 9, seconds=LEASE), LATER, asked("ack", "b", 14)],
    ),
    "settled by one who had lost it": (
        ["zombie"],
        [published(), claimed("a", 1), LATER, asked("ack", "a", 14), asked("ack", "b", 14, held=False)],
    ),
    "renewed by one who had lost it": (
        ["exclusion", "zombie"],
        [published(), claimed("a", 1), LATER, asked("renew", "a", 13, seconds=LEASE), asked("ack", "b", 14)],
    ),
    "released by one who had lost it": (
        ["zombie", "suspect", "deliveries"],
        [published(), claimed("a", 1), LATER, asked("release", "a", 13), asked("ack", "b", 14)],
    ),
    "a lease ran out, and the row came among others": (
        ["suspect"],
        [published(), claimed("a", 1), claimed("b", 12, deliveries=2), handled("b", 13), asked("ack", "b", 14)],
    ),
    "a released suspect came among others": (
        ["suspect"],
        [
            *(published(), claimed("a", 1), claimed("b", 12, deliveries=2, suspect=True), asked("release", "b", 13)),
            *(claimed("c", 14, deliveries=2), handled("c", 15), asked("ack", "c", 16)),
        ],
    ),
    "a free row came as a suspect": (
        ["suspect"],
        [
            *(published(), claimed("a", 1), asked("retry", "a", 2)),
            *(claimed("b", 3, deliveries=2, suspect=True), handled("b", 4), asked("ack", "b", 5)),
        ],
    ),
    "a suspect came before its lease was over by the database's clock": (
        ["suspect"],
        [
            *(published(), claimed("a", 1), claimed("b", 10.5, took=1, deliveries=2, suspect=True)),
            *(handled("b", 13), asked("ack", "b", 14)),
        ],
    ),
    "a suspect came while its node saw its lock": (
        ["exclusion"],
        [
            published(),
            [Sure(0.5, NODE, 5.25, 0.0), Sure(5.0, NODE, 9.75, 0.0)],
            *(claimed(OF_NODE, 1), claimed("b", 7, deliveries=2, suspect=True), handled("b", 8), asked("ack", "b", 9)),
        ],
    ),
    "a new row came as a suspect": (
        ["suspect"],
        [published(), claimed("a", 1, suspect=True), handled("a", 4), asked("ack", "a", 5)],
    ),
    "a claim was not counted": (
        ["deliveries"],
        [
            *(published(), claimed("a", 1), asked("retry", "a", 2)),
            *(claimed("b", 3, deliveries=1), handled("b", 4), asked("ack", "b", 5)),
        ],
    ),
    "a release was counted": (
        ["deliveries"],
        [
            *(published(), claimed("a", 1), asked("release", "a", 2)),
            *(claimed("b", 3, deliveries=2), handled("b", 4), asked("ack", "b", 5)),
        ],
    ),
    "a release took two back": (
        ["deliveries"],
        [
            *(published(), claimed("a", 1), claimed("b", 12, deliveries=2, suspect=True), asked("release", "b", 13)),
            *(claimed("c", 14, deliveries=1, suspect=True), handled("c", 15), asked("ack", "c", 16)),
        ],
    ),
    "the first claim was counted as the second": (
        ["deliveries"],
        [published(), claimed("a", 1, deliveries=2), handled("a", 4), asked("ack", "a", 5)],
    ),
    "one lost claim explains one delivery, not two": (
        ["deliveries"],
        [
            published(),
            [Claiming(1, "lost", False, LEASE)],  # noqa: FBT003 - the fields of the event
            *(claimed("b", 12, deliveries=3, suspect=True), handled("b", 13), asked("ack", "b", 14)),
        ],
    ),
    "delivered before it was due": (
        ["early"],
        [published(delay=5), claimed("a", 1), handled("a", 4), asked("ack", "a", 5)],
    ),
    "delivered before its retry was due": (
        ["early"],
        [
            *(published(), claimed("a", 1), asked("retry", "a", 2, seconds=5)),
            *(claimed("b", 3, deliveries=2), handled("b", 4), asked("ack", "b", 5)),
        ],
    ),
    "something that no fault explains": (["crash"], [[Crashed(1, "Traceback")]]),
}


@pytest.mark.parametrize(("kinds", "events"), BAD.values(), ids=BAD)
def test_a_broken_history_is_named(kinds: list[Kind], events: list[Iterable[Event]]) -> None:
    assert found(*events) == kinds


def test_a_row_that_is_left_is_stuck_not_lost() -> None:
    assert found(published(), final=FinalState(outbox=[Left("r", 1, 0)])) == ["stuck"]


def test_a_row_that_is_left_after_its_ack_is_a_double_effect() -> None:
    events = [*published(), *claimed("a", 1), *handled("a", 2), *asked("ack", "a", 3)]
    assert found(events, final=FinalState(outbox=[Left("r", 1, 1)])) == ["double effect", "stuck"]


def test_what_is_left_of_a_rolled_back_transaction_is_uncommitted() -> None:
    events = [Inserted(0.1, "tx", "r", 1, 0, 0, None), RolledBack(0.2, "tx")]
    assert found(events, final=FinalState(outbox=[Left("r", 1, 0)])) == ["uncommitted", "stuck"]


def test_what_nobody_published_is_uncommitted_also_when_it_was_never_claimed() -> None:
    assert found(final=FinalState(dead=[Left("r", 1, 0)])) == ["uncommitted", "deliveries"]


def test_a_dead_row_is_kept_once_with_its_count() -> None:
    events = [*published(), *claimed("a", 1), *asked("dead", "a", 2)]
    assert found(events, final=FinalState(dead=[Left("r", 1, 1)])) == []
    assert found(events, final=FinalState(dead=[Left("r", 1, 2)])) == ["deliveries"]
    assert found(events, final=FinalState(dead=[Left("r", 1, 1), Left("r", 1, 1)])) == ["double effect"]


def test_suspects_come_one_by_one() -> None:
    rows = [ClaimedRow(uid, 1, "b", 2, 1012, 1022) for uid in ("r", "s")]
    events = [
        *(*published(), *published("s"), *claimed("a", 1), *claimed("a2", 1, uid="s")),
        *(Claiming(12, "both", True, LEASE), Claimed(12.1, "both", 22, rows)),  # noqa: FBT003 - the fields of the event
        *(*handled("b", 13), *handled("b", 13, uid="s"), *asked("ack", "b", 14), *asked("ack", "b", 14, uid="s")),
    ]
    assert found(events) == ["suspect"]


def test_clocks_may_part_by_the_slack_and_no_more() -> None:
    def taken_over(at: float) -> list[Kind]:
        later = claimed("b", at, took=0.0, deliveries=2, suspect=True)
        events = [*published(), *claimed("a", 1), *later, *handled("b", 13), *asked("ack", "b", 14)]
        return [
            violation.kind for violation in check(assemble(events), EMPTY, slack=0.5) if violation.kind != "suspect"
        ]

    assert taken_over(10.6) == []
    assert taken_over(10.4) == ["exclusion"]


def test_a_call_begins_while_the_node_has_seen_its_lock_lately() -> None:
    def called_at(at: float, *, behind: bool = False) -> list[Kind]:
        seen: list[Event] = [Sure(0.5, NODE, 5.25, 0.0)]
        call: list[Event] = [Started(at, "r", OF_NODE, behind), Ended(at + 0.1, "r", OF_NODE, ok=True)]
        events = [*published(), *seen, *claimed(OF_NODE, 1), *call, *asked("ack", OF_NODE, 9)]
        return [violation.kind for violation in check(assemble(events), EMPTY, start_slack=2.0)]

    assert called_at(7.2) == []
    assert called_at(7.3) == ["exclusion"]
    assert called_at(7.3, behind=True) == []


def test_events_may_come_in_the_order_of_the_files() -> None:
    worker = [*claimed("a", 1), *handled("a", 2), *asked("ack", "a", 3)]
    assert found(worker, published()) == []


def test_a_life_is_told_in_its_order() -> None:
    events = [*published(), *claimed("a", 1), *handled("a", 2), *asked("ack", "a", 3, held=None), *cancelled(14)]
    told = lines_of(assemble(events).rows["r"])
    assert [line.split(" ", 1)[1] for line in told] == [
        "transaction began; row 1, due 0.000 s later",
        "commit sent",
        "commit answered",
        "a: claim sent",
        "a: claim answered, delivery 1, lease until 11.000",
        "a: handler started",
        "a: handler ended well",
        "a: ack sent: no answer",
        "cancel sent, answered at 14.100",
        "cancel committed",
    ]
