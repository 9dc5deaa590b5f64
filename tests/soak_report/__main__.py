"""`python -m tests.soak_report`: run every soak for as long as wanted, and write docs/soak.md."""

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.order.settings import STRATEGIES
from tests.relay.faults.settings import ENDPOINTS
from tests.soak.__main__ import BROKEN, INTERRUPTED, PASSED, soak
from tests.soak.checker import Violation
from tests.soak.report import show_results
from tests.soak.round import Result
from tests.soak_report.page import Run, render
from tests.upgrade.older import VERSIONS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "soak.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all soaks, write the page, and return the exit status: 1 when one broke a rule."""
    options = _parser().parse_args(arguments)
    console = Console()
    state = describe_state()
    try:
        runs = [_run(plan, console) for plan in plans(options)]
    except KeyboardInterrupt:
        console.print(f"Interrupted; {options.page} is as it was.")
        return INTERRUPTED
    told = f"--minutes {options.minutes:g} --relay-minutes {options.relay_minutes:g} --seed {options.seed}"
    command = f'make soak-report ARGS="{told}"'
    options.page.write_text(render(runs, command=command, state=state))
    console.print(f"Wrote {options.page}: {sum(run.violations for run in runs)} violations.")
    return BROKEN if any(run.violations for run in runs) else PASSED


def plans(options: argparse.Namespace) -> list[Run]:
    """Return every soak with the arguments that run it."""
    long, short = (["--seconds", f"{minutes * 60:g}"] for minutes in (options.minutes, options.relay_minutes))
    seed = ["--seed", str(options.seed)]
    return [
        Run("rows without a key", [*long, *seed]),
        *(Run(f"keys, {strategy}", ["--order", strategy, *long, *seed]) for strategy in STRATEGIES),
        *(Run(f"beside version {name}", ["--beside", sha[:7], *short, *seed]) for name, sha in VERSIONS.items()),
        *(Run(f"relay to {name}", ["--relay", name, *short, *seed]) for name in ENDPOINTS),
    ]


def _run(plan: Run, console: Console) -> Run:
    console.rule(plan.what)
    results: list[Result] = []
    began = time.monotonic()
    try:
        soak(plan.arguments, console, results)
    except SystemExit as lacking:
        console.print(f"Not run: {lacking}")
        return Run(plan.what, plan.arguments, lacks=str(lacking))
    except Exception as error:  # noqa: BLE001 - the others are run, and the page says that this one failed
        console.print_exception()
        failure = Violation("crash", "", f"the soak itself failed: {error!r}")
        results.append(Result(-1, [failure], Counter(), Counter(), 0.0, {}))
    show_results(console, results)
    return Run(plan.what, plan.arguments, time.monotonic() - began, results)


def describe_state() -> str:
    """Return which version of the code is here: the date and the name of its commit."""
    try:
        shown = subprocess.run(
            ["git", "log", "-1", "--format=the commit %h of %cs"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "a copy without its history"
    return f"{shown}, with changes that were not committed" if changed else shown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_report", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=15.0, metavar="N", help="of each strategy, and of rows without a key"
    )
    parser.add_argument(
        "--relay-minutes", type=float, default=5.0, metavar="N", help="of each broker, and of each older version"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), metavar="S", help="default: any")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="what to write (default: docs/soak.md)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
