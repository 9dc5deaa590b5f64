"""`python -m examples.timers`: what happens at the box office."""

import re

from tests.examples.programs import told_by


def test_an_evening() -> None:
    printed = told_by("timers")
    told = [(float(time), text) for time, text in re.findall(r"^ *([\d.]+) s  (.*)$", printed, re.MULTILINE)]
    assert [text for _, text in told] == [
        "seat 1 is held for Ada",
        "seat 2 is held for Grace",
        "seat 3 is held for Alan",
        "seat 1 is paid",
        "seat 2 is held longer",
        "seat 3 is free again",
        "seat 2 is free again",
    ]
    when = {text: time for time, text in told}
    assert when["seat 3 is free again"] - when["seat 3 is held for Alan"] >= 0.9
    assert when["seat 2 is free again"] - when["seat 2 is held longer"] >= 1.9
