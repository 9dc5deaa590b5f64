"""`python -m tests.soak`: rounds of random faults for as long as wanted; exit status 1 when one broke a rule."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from faststream_outbox.embedded import Database
from tests.order.settings import STRATEGIES, OrderSettings
from tests.relay.faults.round import relay_rounds
from tests.relay.faults.settings import ENDPOINTS, RelayRoundSettings
from tests.soak.database import own_database
from tests.soak.report import Display, show_results
from tests.soak.round import Result, run_round
from tests.soak.settings import FaultRates, Settings

PASSED, BROKEN, INTERRUPTED = 0, 1, 130
# A round is checked as a whole, in memory, after its table was drained: long enough for faults to meet, short enough to
# tell of a violation soon, and to find it again from a seed.
ROUND_SECONDS: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak and return its exit status."""
    options = _parser().parse_args(arguments)
    console = Console()
    what = "rows without a key" if options.order is None else f"keys in order, {options.order}"
    if options.relay is not None:
        what = f"relays to {options.relay}, {options.order or 'any strategy'}"
    console.print(
        f"seed {options.seed}: {what}, {options.seconds:.0f} s, {options.processes} processes, {options.driver}. "
        "The seed decides what is tried; when it happens is up to the machine.",
        soft_wrap=True,
    )
    results: list[Result] = []
    interrupted = False
    try:
        with ExitStack() as stack:
            database, restart = stack.enter_context(own_database(options.dsn))
            run = run_round if options.relay is None else stack.enter_context(relay_rounds(options.relay))
            display = stack.enter_context(Display(console, options.seconds))
            _run_rounds(options, database, partial(run, restart=restart, progress=display.show), display, results)
    except KeyboardInterrupt:
        interrupted = True
        console.print("Interrupted; the last round was not checked.")
    show_results(console, results)
    if any(result.violations for result in results):
        return BROKEN
    return INTERRUPTED if interrupted else PASSED


def _run_rounds(
    options: argparse.Namespace,
    database: Database,
    run: Callable[..., Result],
    display: Display,
    results: list[Result],
) -> None:
    end = time.monotonic() + options.seconds
    seed = options.seed
    while not results or end - time.monotonic() > 1.0:
        settings = _settings(options, database, seed)
        seconds = max(1.0, min(ROUND_SECONDS, end - time.monotonic()))
        results.append(run(settings, database, seconds))
        display.ended(results[-1])
        seed += 1


def _settings(options: argparse.Namespace, database: Database, seed: int) -> Settings:
    faults = FaultRates(restart=1)
    producers = max(1, options.processes // 3)
    processes = {"workers": max(1, options.processes - producers), "producers": producers}
    url = database.url(options.driver)
    if options.relay is not None:
        strategy = options.order or random.Random(seed).choice(STRATEGIES)
        return RelayRoundSettings(url, Path(), seed, until=0.0, to=options.relay, strategy=strategy, **processes)
    if options.order is None:
        return Settings(url, Path(), seed, until=0.0, faults=faults, **processes)
    return OrderSettings(url, Path(), seed, until=0.0, faults=faults, strategy=options.order, **processes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Publishes, claims and settles under random faults, and checks the history of every row.",
        epilog="Without --order, claimers and settlers of rows without a key are driven one operation at a time. With "
        "it, whole brokers handle messages with and without keys, and the order of each key is checked as well: one at "
        "a time has it, nothing is handed out or handled before what precedes it, and who lost it changes nothing. "
        "With --relay they send them to a server, and the messages on it and their order are checked in the end.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="how long (default: 60)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), metavar="S", help="of the first round (default: any)"
    )
    parser.add_argument(
        "--processes", type=int, default=6, metavar="N", help="producers and workers together (default: 6)"
    )
    parser.add_argument(
        "--dsn", metavar="DSN", help="a server to make a database on (default: an embedded one, which is crashed too)"
    )
    parser.add_argument(
        "--order",
        choices=STRATEGIES,
        nargs="?",
        const=STRATEGIES[0],
        metavar="STRATEGY",
        help=f"check messages with keys, claimed by {', '.join(STRATEGIES)} (default: {STRATEGIES[0]})",
    )
    parser.add_argument(
        "--relay",
        choices=ENDPOINTS,
        metavar="SERVER",
        help=f"check what arrives on {', '.join(ENDPOINTS)}, which is killed too",
    )
    parser.add_argument("--driver", choices=("asyncpg", "psycopg"), default="asyncpg", help="default: asyncpg")
    return parser


if __name__ == "__main__":
    sys.exit(main())
