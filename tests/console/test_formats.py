"""Numbers, times and charts as people read them."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from faststream_outbox.console import charts, formats
from faststream_outbox.operations import Body, Count


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0.2, "< 1 s"),
        (59.9, "59 s"),
        (61, "1 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86_400 * 3 + 5000, "3 d"),
        (86_400 * 4000, "4,000 d"),
    ],
)
def test_a_duration_has_its_unit(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "now"), (-90, "in 1 min"), (90, "1 min ago"), (7200, "2 h ago")], ids=str
)
def test_a_time_is_relative_and_has_the_exact_one_on_hover(seconds: int, text: str) -> None:
    now = datetime(2026, 11, 18, 12, tzinfo=UTC)
    shown = formats.moment(now - timedelta(seconds=seconds), now)
    assert f">{text}</time>" in shown
    assert re.search(r'title="2026-11-18 \d\d:\d\d:\d\d UTC"', shown)


def test_what_was_seconds_ago_has_words() -> None:
    assert [formats.ago(seconds) for seconds in (0.4, 90)] == ["just now", "1 min ago"]


def test_numbers_have_separators_and_say_where_counting_stopped() -> None:
    assert formats.number(Count(10_000, capped=True)) == "10,000+"
    assert formats.number(1_234_567) == "1,234,567"
    assert 'class="zero">0<' in formats.number(0)
    # Not "0": there may be some among the rows that were not counted.
    assert 'class="zero">0+<' in formats.number(Count(0, capped=True))
    assert [formats.size(n) for n in (12, 2048, 3 * 1024**2)] == ["12 B", "2.0 KiB", "3.0 MiB"]
    assert [formats.rate(n) for n in (None, 0.0, 2.34, 1234.5)] == ["\N{EN DASH}", "0", "2.3", "1,234"]
    assert formats.plural(Count(1), "row") == "1 row"
    assert formats.plural(Count(10_000, capped=True), "row") == "10,000+ rows"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ada/é \u0627 \U0001f469\u200d\U0001f4bb", "ada/é \u0627 \U0001f469\u200d\U0001f4bb"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\x1b[0m\n\u2066\U000e0041", "a\\u001b[0m\\u000a\\u2066\\U000e0041"),
    ],
    ids=["letters", "turned around", "control"],
)
def test_characters_of_a_name_that_are_not_seen_are_escaped(name: str, shown: str) -> None:
    assert formats.visible(name) == shown


def test_a_body_is_previewed_on_one_line_and_dumped_in_full() -> None:
    assert formats.preview(Body.of(b'{\n  "a": 1\n}', None)) == '{ "a": 1 }'
    assert formats.preview(Body.of(b"x" * 500, "text/plain")).endswith("x…")
    assert formats.preview(Body.of(b"\xff\x01", None)) == "ff 01"
    assert formats.hexadecimal(b"A\x00") == f"000000  {'41 00':<47}  A·"
    assert formats.short_exception("app.errors.PayError: no\nTraceback") == "PayError: no"
    assert formats.short_exception("retry_terminal: app.errors.PayError: no") == "PayError: no"
    assert formats.short_exception("operator: a wrong key") == "operator: a wrong key"
    assert formats.short_exception("given by hand: a.b") == "given by hand: a.b"


def test_charts_are_drawn_and_described() -> None:
    line = charts.sparkline([0, 5, 10], "depth of <orders>")
    assert 'aria-label="depth of &lt;orders&gt;"' in line
    assert len(re.findall(r"[\d.]+,[\d.]+", line.partition("<polyline")[2])) == 3
    assert "polyline" not in charts.sparkline([1], "too short")
    drawn = charts.bar([("ready", 50), ("blocked", 0), ("scheduled", 1)], 100, "50 ready")
    widths = [float(each) for each in re.findall(r'part-\w+" x="[\d.]+" width="([\d.]+)"', drawn)]
    assert widths == [50.0, 1.5]
