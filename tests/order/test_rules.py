"""The rules of keys on histories made by hand: sound ones pass, each kind of broken one is named."""

from itertools import chain, count

import pytest

from tests.order.rules import check_with_keys
from tests.soak.checker import FinalState, Kind, Left
from tests.soak.history import (
    Answered,
    Ask,
    Asked,
    Claimed,
    ClaimedRow,
    Claiming,
    Committed,
    Committing,
    Ended,
    Event,
    Inserted,
    Replayed,
    Replaying,
    RolledBack,
    Started,
    Verb,
)
from tests.soak.row_histories import assemble

LEASE = 10.0
_calls = count()


def published(*rows: int, at: float = 0.0, commits_at: float = 0.2) -> list[Event]:
    """Each in a transaction of its own, which is answered 0.1 s after it was sent."""
    events: list[Event] = []
    for row in rows:
        tx = f"tx {row}"
        events += [Inserted(at + 0.1, tx, f"r{row}", row, at, 0.0, None, "k")]
        events += [Committing(at + commits_at, tx), Committed(at + commits_at + 0.1, tx)]
    return events


def claimed(token: str, at: float, *rows: int, took: float = 0.1) -> list[Event]:
    """Sent at `at`; the lease counts from there."""
    taken = [ClaimedRow(f"r{row}", row, token, 1, 1000 + at, 1000 + at + LEASE) for row in rows]
    call = f"claim {token}"
    return [Claiming(at, call, False, LEASE), Claimed(at + took, call, at + LEASE, taken)]  # noqa: FBT003 - its fields


def handled(token: str, at: float, *rows: int, ok: bool = True) -> list[Event]:
    """One after the other, 0.1 s each."""
    spans = [(f"r{row}", at + n / 10) for n, row in enumerate(rows)]
    return [event for uid, t in spans for event in (Started(t, uid, token), Ended(t + 0.09, uid, token, ok))]


def asked(verb: Verb, token: str, at: float, *rows: int, held: bool | None = True) -> list[Event]:
    """Sent at `at`, answered 0.1 s later, or never when `held` is None."""
    call = f"call {next(_calls)}"
    question = Asked(at, call, [Ask(f"r{row}", token, verb) for row in rows])
    if held is None:
        return [question]
    return [question, Answered(at + 0.1, call, [(f"r{row}", token) for row in rows] if held else [], complete=True)]


def done(token: str, at: float, *rows: int) -> list[Event]:
    """Claimed, handled and acked within a second."""
    return [*claimed(token, at, *rows), *handled(token, at + 0.2, *rows), *asked("ack", token, at + 0.8, *rows)]


def dies(token: str, at: float, *rows: int) -> list[Event]:
    """Claimed, handled and dead-lettered within a second."""
    return [*claimed(token, at, *rows), *handled(token, at + 0.2, *rows), *asked("dead", token, at + 0.8, *rows)]


def replayed(at: float, *rows: int, back: bool | None = True) -> list[Event]:
    """Sent at `at`, answered 0.1 s later, or never when `back` is None."""
    call, uids = f"call {next(_calls)}", [f"r{row}" for row in rows]
    question = Replaying(at, call, uids)
    return [question] if back is None else [question, Replayed(at + 0.1, call, uids if back else [])]


def found(events: list[list[Event]], final: FinalState | None = None) -> list[Kind]:
    return [each.kind for each in check_with_keys(assemble(chain(*events)), final or FinalState())]


GOOD: dict[str, list[list[Event]]] = {
    "one after the other": [published(1, 2), done("a", 1, 1), done("b", 2, 2)],
    "together": [published(1, 2, 3), done("a", 1, 1, 2, 3)],
    "one is tried again, and the rest waits": [
        *(published(1, 2, 3), claimed("a", 1, 1, 2, 3), handled("a", 2, 1), handled("a", 3, 2, ok=False)),
        *(asked("ack", "a", 4, 1), asked("retry", "a", 4, 2), asked("release", "a", 4, 3), done("b", 5, 2, 3)),
    ],
    "the lease ran out while a handler ran, and what it says then is refused": [
        *(published(1, 2, 3), claimed("a", 1, 1, 2, 3), handled("a", 2, 1), done("b", 12, 1)),
        [Started(3, "r2", "a"), Ended(14, "r2", "a", ok=True)],
        *(asked("ack", "a", 14.1, 1, 2, held=False), done("c", 15, 2, 3)),
    ],
    "an ack that was not answered may have worked": [
        *(published(1, 2), claimed("a", 1, 1), handled("a", 2, 1), asked("ack", "a", 3, 1, held=None)),
        done("b", 4, 2),
    ],
    "a row that was rolled back is in nobody's way": [
        [Inserted(0.1, "tx", "r1", 1, 0.0, 0.0, None, "k"), RolledBack(0.2, "tx")],
        *(published(2), done("a", 1, 2)),
    ],
    "a commit that was not answered may not have been one": [
        [Inserted(0.1, "tx", "r1", 1, 0.0, 0.0, None, "k"), Committing(0.2, "tx")],
        *(published(2), done("a", 1, 2)),
    ],
    "a process that was stopped hears of its claim when it is over": [
        *(published(1, 2), claimed("a", 1, 1, 2, took=11.5), claimed("b", 11.5, 1), handled("b", 12, 1)),
        *(asked("release", "a", 13, 1, 2, held=False), asked("ack", "b", 14, 1), done("c", 15, 2)),
    ],
    "replayed, and handled before what waits": [
        *(published(1, 2, 3), dies("a", 1, 1), replayed(2, 1), done("b", 3, 1, 2), done("c", 4, 3)),
    ],
    "replayed when all that followed is done": [
        *(published(1, 2), dies("a", 1, 1), done("b", 2, 2), replayed(3, 1), done("c", 4, 1)),
    ],
    "replayed twice": [
        *(published(1, 2), dies("a", 1, 1), replayed(2, 1), dies("b", 3, 1), replayed(4, 1), done("c", 5, 1, 2)),
    ],
    "a replay that was not answered may have worked": [
        *(published(1, 2), dies("a", 1, 1), replayed(2, 1, back=None), done("b", 3, 2), done("c", 4, 1)),
    ],
    "a claim that was sent before the replay may have come before it": [
        *(published(1, 2), dies("a", 1, 1), replayed(2, 1), claimed("b", 2.05, 1, 2), handled("b", 3, 1, 2)),
        asked("ack", "b", 4, 1, 2),
    ],
    "replayed when a lease had run out, whose handler does not know": [
        *(published(1, 2, 3), dies("a", 1, 1), claimed("b", 2, 2, 3), replayed(13, 1), handled("b", 13.5, 2)),
        *(asked("ack", "b", 14, 2, 3, held=False), done("c", 15, 1), done("d", 16, 2, 3)),
    ],
}


@pytest.mark.parametrize("events", GOOD.values(), ids=GOOD)
def test_a_sound_history_passes(events: list[list[Event]]) -> None:
    assert found(events) == []


BAD: dict[str, tuple[list[Kind], list[list[Event]]]] = {
    "the lower id was committed later": (
        ["order"],
        [published(1, commits_at=0.6), published(2, commits_at=0.2), done("a", 1, 1, 2)],
    ),
    "the lower id came when the higher one was gone": (
        ["order", "order", "order"],
        [published(2), done("a", 1, 2), published(1, at=3), done("b", 4, 1)],
    ),
    "handed out before what precedes it": (
        ["order"],
        [
            *(published(1, 2), claimed("a", 1, 2), asked("release", "a", 2, 2)),
            *(done("b", 3, 1), done("c", 4, 2)),
        ],
    ),
    "handled before what precedes it": (
        ["order"],
        [published(1, 2), claimed("a", 1, 1, 2), handled("a", 2, 2, 1), asked("ack", "a", 3, 1, 2)],
    ),
    "handled behind one that failed": (
        ["order"],
        [
            *(published(1, 2), claimed("a", 1, 1, 2), handled("a", 2, 1, ok=False), handled("a", 2.2, 2)),
            *(asked("retry", "a", 3, 1), asked("release", "a", 3, 2), done("b", 4, 1, 2)),
        ],
    ),
    "two at once, with rows of their own": (
        ["order", "order", "exclusion", "zombie"],
        [
            *(published(1, 2), claimed("a", 1, 1), claimed("b", 2, 2), handled("a", 3, 1), handled("b", 3.05, 2)),
            *(asked("ack", "a", 4, 1), asked("ack", "b", 4, 2)),
        ],
    ),
    "settled by one who had lost the key": (
        ["zombie", "zombie", "zombie"],
        [
            *(published(1, 2, 3), claimed("a", 1, 1, 2), handled("a", 2, 1, 2), claimed("b", 12, 1)),
            *(asked("ack", "a", 13, 1, 2), asked("release", "b", 14, 1, held=False), done("c", 23, 3)),
        ],
    ),
    "gone although its settle was refused": (
        ["loss", "order", "order"],
        [
            *(published(1, 2, 3), claimed("a", 1, 1, 2), handled("a", 2, 1, 2), claimed("b", 12, 1)),
            *(asked("ack", "a", 13, 1, 2, held=False), handled("b", 13, 1), asked("ack", "b", 14, 1), done("c", 15, 3)),
        ],
    ),
    "acked, and handed out again": (
        ["double effect", "double effect"],
        [published(1), done("a", 1, 1), done("b", 2, 1)],
    ),
    "dead, and handed out although its replay left it where it was": (
        ["loss", "double effect", "double effect"],
        [published(1), dies("a", 1, 1), replayed(2, 1, back=False), done("b", 3, 1)],
    ),
    "replayed, and passed over": (
        ["order", "order"],
        [published(1, 2), dies("a", 1, 1), replayed(2, 1), done("b", 3, 2), done("c", 4, 1)],
    ),
    "replayed while what follows is handled": (
        ["exclusion"],
        [
            *(published(1, 2), dies("a", 1, 1), claimed("b", 2, 2), handled("b", 2.2, 2), replayed(3, 1)),
            *(asked("ack", "b", 4, 2), done("c", 5, 1)),
        ],
    ),
    "replayed between a claim and its answer, which does not bring the row": (
        ["order"],
        [
            *(published(1, 2), dies("a", 1, 1), claimed("b", 2, 2, took=0.5), replayed(2.1, 1)),
            *(handled("b", 3, 2), asked("ack", "b", 4, 2), done("c", 5, 1)),
        ],
    ),
    "replayed, and gone": (["loss"], [published(1), dies("a", 1, 1), replayed(2, 1)]),
}


@pytest.mark.parametrize(("kinds", "events"), BAD.values(), ids=BAD)
def test_a_broken_history_is_named(kinds: list[Kind], events: list[list[Event]]) -> None:
    assert found(events) == kinds


def test_a_row_that_is_left_is_stuck_and_blocks_its_key() -> None:
    events = [published(1, 2), done("a", 1, 2)]
    assert found(events, FinalState(outbox=[Left("r1", 1, 0)])) == ["stuck", "order", "order"]


def test_keys_do_not_wait_for_each_other() -> None:
    other = [Inserted(0.1, "tx", "r1", 1, 0.0, 0.0, None, "other"), Committing(0.2, "tx"), Committed(0.3, "tx")]
    assert found([[*other], published(2), done("a", 1, 2), done("b", 3, 1)]) == []
