"""Where a claimer goes on among the keys, by what its claims met."""

import pytest

from faststream_outbox.storage.ordering import KeyCursor
from faststream_outbox.storage.ordering.key_cursor import LAST_ID


@pytest.fixture
def cursor(monkeypatch: pytest.MonkeyPatch) -> KeyCursor:
    monkeypatch.setattr("random.choice", lambda _: "7")
    return KeyCursor(["q"])


def met(cursor: KeyCursor, last: str | None, *, found: int = 0, lost: int = 0, ended: bool = False) -> str:
    """Record a claim, and tell behind which key the next one begins."""
    cursor.record(cursor.plan(), last=last, ended=ended, found=found, lost=lost, next_due=None)
    key, row_id = cursor.plan().after
    assert row_id == LAST_ID or not key
    return key


def test_a_claimer_goes_on_behind_the_last_key_that_it_met(cursor: KeyCursor) -> None:
    assert met(cursor, "80", found=2) == "80"
    assert met(cursor, "81", found=1, lost=1) == "81"
    assert met(cursor, "82") == "82"  # all were leased, and by whom does not matter
    assert met(cursor, "83", found=1, ended=True) == ""


def test_a_claimer_that_loses_all_to_another_one_goes_elsewhere(cursor: KeyCursor) -> None:
    assert met(cursor, "80", lost=2) == "7"
    assert met(cursor, "71", found=1) == "71"
    assert met(cursor, "80", lost=2) == "7"


def test_a_round_is_whole_only_from_the_first_key(cursor: KeyCursor) -> None:
    assert met(cursor, None, ended=True) == ""
    assert met(cursor, "80", lost=2) == "7"
    assert met(cursor, None, ended=True) == ""
    assert not cursor.at_rest
    met(cursor, None, ended=True)
    assert cursor.at_rest


def test_whoever_holds_locks_does_not_keep_a_claimer_from_coming_to_rest(cursor: KeyCursor) -> None:
    for _ in range(2):
        met(cursor, "80", lost=1)
        assert met(cursor, "80", lost=1) == "80"
        met(cursor, None, ended=True)
    met(cursor, "80", lost=1)
    met(cursor, None, ended=True)
    assert cursor.at_rest
