"""The rules on arrivals that were made by hand: sound ones pass, each kind of broken one is named."""

from collections.abc import Sequence

import pytest

from tests.relay.faults.rules import check_arrivals, count_repeats
from tests.soak.checker import CLOCK_SLACK, FinalState, Kind, Left, kinds
from tests.soak.history import Arrived, Committed, Committing, Event, Inserted, RolledBack
from tests.soak.row_histories import assemble

# Rows 1 to 4 of one key, in one transaction each.
ROWS = (1, 2, 3, 4)


def published(*, committed: Sequence[int] = ROWS, rolled_back: Sequence[int] = ()) -> list[Event]:
    events: list[Event] = []
    for row in ROWS:
        events.append(Inserted(row, f"tx{row}", f"r{row}", row, row, 0.0, None, "k"))
        if row in committed:
            events += [Committing(row + 0.1, f"tx{row}"), Committed(row + 0.2, f"tx{row}")]
        elif row in rolled_back:
            events.append(RolledBack(row + 0.1, f"tx{row}"))
        else:
            events.append(Committing(row + 0.1, f"tx{row}"))
    return events


def arrived(*rows: int, partition: str = "p") -> list[Event]:
    return [Arrived(9.0, n, 8.0, partition, f"r{row}", f"relay/{row}", "k", row) for n, row in enumerate(rows, 1)]


def found(events: list[Event], final: FinalState = FinalState(), *, once: bool = False) -> list[Kind]:  # noqa: B008 - a value
    return sorted(kinds(check_arrivals(assemble(events), final, CLOCK_SLACK, once=once)).elements())


@pytest.mark.parametrize(
    "events",
    [
        [*published(), *arrived(1, 2, 3, 4)],
        [*published(), *arrived(1, 2, 1, 2, 3, 1, 4)],
        [*published(committed=(1, 3, 4), rolled_back=(2,)), *arrived(1, 3, 4)],
        # A commit that was not answered may have happened or not.
        [*published(committed=(1, 3, 4)), *arrived(1, 3, 4)],
        [*published(committed=(1, 3, 4)), *arrived(1, 2, 3, 4)],
    ],
)
def test_sound_arrivals_pass(events: list[Event]) -> None:
    assert found(events) == []


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("loss", [*published(), *arrived(1, 2, 4)]),
        ("order", [*published(), *arrived(1, 3, 2, 4)]),
        ("order", [*published(), *arrived(1, 3, 1, 2, 3, 4)]),
        ("order", [*published(committed=(1, 3, 4)), *arrived(1, 3, 4, 2)]),
        ("uncommitted", [*published(committed=(1, 3, 4), rolled_back=(2,)), *arrived(1, 2, 3, 4)]),
        ("uncommitted", [*published(), *arrived(1, 2, 3, 4), Arrived(9.0, 9, 8.0, "p", "r9", "relay/9", None, None)]),
        ("header", [*published(), *arrived(1, 2, 3, 4), Arrived(9.0, 9, 8.0, "p", "r4", "relay/5", "k", 4)]),
        ("header", [*published(), *arrived(1, 2, 3), Arrived(9.0, 9, 8.0, "p", "r4", "relay/4", "other", 4)]),
        ("header", [*published(), *arrived(1, 2, 3), Arrived(9.0, 9, 8.0, "p", "r4", "relay/4", "k", 3)]),
    ],
)
def test_broken_arrivals_are_named(kind: Kind, events: list[Event]) -> None:
    assert found(events) == [kind]


def test_a_key_comes_on_one_partition() -> None:
    moved = Arrived(9.0, 9, 8.0, "elsewhere", "r4", "relay/4", "k", 4)
    assert found([*published(), *arrived(1, 2, 3), moved]) == ["order"]


def test_what_comes_again_is_counted_and_needs_an_excuse() -> None:
    events = [*published(), *arrived(1, 2, 3, 1, 3, 4)]
    assert found(events) == []
    assert found(events, once=True) == ["duplicate", "duplicate"]
    assert count_repeats(assemble(events)) == {
        "messages that came again": 2,
        "stale repeats": 1,
        "stale repeats, up to 10 messages back": 1,
    }


def test_what_is_left_behind_is_named() -> None:
    events = [*published(), *arrived(1, 2, 3)]
    assert found(events, FinalState(outbox=[Left("r4", 4, 0)])) == ["stuck"]
    assert found(events, FinalState(dead=[Left("r4", 4, 0)])) == ["dead"]
    assert found([*published(), *arrived(1, 2, 3, 4)], FinalState(burnt=["r4"])) == ["attempt"]
