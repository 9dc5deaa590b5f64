"""Runs an example as a reader would."""

import subprocess
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]


def told_by(example: str) -> str:
    """Run `python -m examples.…` to its good end, and return what it printed."""
    run = subprocess.run(
        [sys.executable, "-m", f"examples.{example}"],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout
