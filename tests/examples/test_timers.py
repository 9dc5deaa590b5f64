"""`python -m examples.timers`: what happens at the box office."""

import re
import subprocess
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]


def test_an_evening() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.timers"],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    told = [(float(time), text) for time, text in re.findall(r"^ *([\d.]+) s  (.*)$", run.stdout, re.MULTILINE)]
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
