"""`python -m examples.inbox`: a day at the bank."""

import subprocess
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]


def test_a_day() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.inbox"],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    *told, total = run.stdout.splitlines()
    assert sorted(line for line in told if "booked" in line) == ["100 cents: booked", "25 cents: booked"]
    assert len([line for line in told if "undone" in line]) == 1
    assert total == "5 announcements, 125 cents"
