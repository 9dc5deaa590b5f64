"""`python -m tests.soak_report`: run every soak, and write docs/soak.md and the totals of docs/proof.md."""

import argparse
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.order.settings import MIXED, STRATEGIES
from tests.relay.faults.settings import ENDPOINTS
from tests.soak.__main__ import BROKEN, INTERRUPTED, PASSED
from tests.soak_report.jobs import run_in_turn, run_side_by_side
from tests.soak_report.page import Run, render
from tests.soak_report.proof import PROOF, SOAK, renewed
from tests.upgrade.older import VERSIONS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = SOAK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all soaks, write the page, and return the exit status: 1 when one broke a rule."""
    options = _parser().parse_args(arguments)
    console = Console()
    state = describe_state()
    try:
        if options.jobs == 1:
            runs = run_in_turn(plans(options), console)
        else:
            runs = run_side_by_side(plans(options), options.jobs, console)
    except KeyboardInterrupt:
        console.print(f"Interrupted; {options.page} is as it was.")
        return INTERRUPTED
    given = f"--minutes {options.minutes:g} --relay-minutes {options.relay_minutes:g} --seed {options.seed}"
    if options.jobs != 1:
        given += f" --jobs {options.jobs}"
    page = render(runs, command=f'make soak-report ARGS="{given}"', state=state)
    options.page.write_text(page)
    if options.page == PAGE:
        PROOF.write_text(renewed(PROOF.read_text(), page))
    console.print(f"Wrote {options.page}: {sum(run.violations for run in runs)} violations.")
    return BROKEN if any(run.violations for run in runs) else PASSED


def plans(options: argparse.Namespace) -> list[Run]:
    """Return every soak with the arguments that run it."""
    long, short = (["--seconds", f"{minutes * 60:g}"] for minutes in (options.minutes, options.relay_minutes))
    seed = ["--seed", str(options.seed)]
    return [
        Run("rows without a key", [*long, *seed]),
        *(Run(f"keys, {strategy}", ["--order", strategy, *long, *seed]) for strategy in STRATEGIES),
        Run("keys, leases of a minute", ["--order", MIXED, "--lease", "60", *long, *seed]),
        *(Run(f"beside version {name}", ["--beside", sha[:7], *short, *seed]) for name, sha in VERSIONS.items()),
        *(Run(f"relay to {name}", ["--relay", name, *short, *seed]) for name in ENDPOINTS),
        *(
            Run(f"relay to redis, beside version {name}", ["--relay", "redis", "--beside", sha[:7], *short, *seed])
            for name, sha in VERSIONS.items()
        ),
    ]


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
    parser.add_argument(
        "--jobs", type=_positive, default=1, metavar="N", help="how many soaks run at the same time (default: 1)"
    )
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="what to write (default: docs/soak.md)")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least one soak has to run")
    return number


if __name__ == "__main__":
    # SIGTERM does what Ctrl-C does: it ends the servers and processes of its soaks.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
