"""Values in cells and as JSON."""

from datetime import UTC, datetime, timedelta

import pytest

from faststream_outbox.cli.operating.values import as_cell, as_json, as_relative, printable
from faststream_outbox.operations import Body, Count

NOON = datetime(2026, 5, 1, 12, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "-"),
        (True, "yes"),
        (NOON, "2026-05-01 12:00:00Z"),
        (12345, "12,345"),
        (0.04, "0.0 s"),
        (90.0, "1.5 min"),
        (7200.0, "2.0 h"),
        (200_000.0, "2.3 d"),
        (Count(10_000, capped=True), "10,000+"),
        ("two\nlines", "two lines"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("x" * 100, "x" * 79 + "…"),
        (["orders", "mail"], "orders, mail"),
        ({"queue": "orders", "n": 1}, "queue=orders, n=1"),
        ({"where": {"queue": "orders", "key": "a"}, "ids": [1, 2]}, "where=(queue=orders, key=a), ids=(1, 2)"),
        (Body.of(b'{"a":\n1}', "application/json"), '{"a": 1}'),
    ],
    ids=repr,
)
def test_a_cell_is_one_line_of_printable_text(value: object, cell: str) -> None:
    assert as_cell(value) == cell


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Count(3), {"number": 3, "capped": False}),
        (NOON, "2026-05-01T12:00:00.000005+00:00"),
        (Body.of(b"[1]", "application/json"), {"content_type": "application/json", "data": [1]}),
        (Body.of(b"plain", None), {"content_type": None, "data": "plain"}),
        (Body.of(b"\xff", None), {"content_type": None, "base64": "/w=="}),
        (("a", {"b": NOON}), ["a", {"b": "2026-05-01T12:00:00.000005+00:00"}]),
    ],
    ids=repr,
)
def test_json_has_whole_values(value: object, written: object) -> None:
    assert as_json(value) == written


def test_a_text_of_several_lines_keeps_them_and_no_other_control_characters() -> None:
    assert printable("a\n\tb\r\x07\u202e") == "a\n\tb\\r\\x07\\u202e"


@pytest.mark.parametrize(("hours", "shown"), [(-2.02, "2.0 h ago"), (72.02, "in 3.0 d")])
def test_a_time_beside_now(hours: float, shown: str) -> None:
    assert as_relative(datetime.now(UTC) + timedelta(hours=hours)) == shown
