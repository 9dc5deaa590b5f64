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
from tests.order.settings import MIXED, STRATEGIES, OrderSettings, with_long_leases
from tests.relay.faults.round import relay_rounds
from tests.relay.faults.settings import ENDPOINTS, RelayRoundSettings
from tests.soak.database import own_database
from tests.soak.report import Display, show_results
from tests.soak.round import Result, run_round
from tests.soak.settings import FaultRates, Settings
from tests.upgrade.older import VERSIONS, older_version
from tests.upgrade.settings import RelayUpgradeRound, RelayUpgradeSettings, UpgradeRound, UpgradeSettings

PASSED, BROKEN, INTERRUPTED = 0, 1, 130
# A round is checked as a whole, in memory, after its table was drained: long enough for faults to meet, short enough to
# tell of a violation soon, and to find it again from a seed.
ROUND_SECONDS: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak and return its exit status."""
    console = Console()
    results: list[Result] = []
    interrupted = False
    try:
        soak(arguments, console, results)
    except KeyboardInterrupt:
        interrupted = True
        console.print("Interrupted; the last round was not checked.")
    show_results(console, results)
    if any(result.violations for result in results):
        return BROKEN
    return INTERRUPTED if interrupted else PASSED


def soak(arguments: Sequence[str] | None, console: Console, results: list[Result]) -> None:
    """Run the soak that a command line asks for, and add the result of each round."""
    options = _parser().parse_args(arguments)
    if options.beside is not None:
        options.order = options.order or MIXED
    what = "rows without a key" if options.order is None else f"keys in order, {options.order}"
    if options.relay is not None:
        what = f"relays to {options.relay}, {options.order or 'any strategy'}"
    if options.beside is not None:
        what += f", beside the version {options.beside[:7]}"
    console.print(
        f"seed {options.seed}: {what}, {options.seconds:.0f} s, {options.processes} processes, {options.driver}. "
        "The seed decides what is tried; when it happens is up to the machine.",
        soft_wrap=True,
    )
    with ExitStack() as stack:
        run: Callable[..., Result] = run_round
        if options.relay is not None:
            run = stack.enter_context(relay_rounds(options.relay))
        if options.beside is not None:
            options.older = stack.enter_context(older_version(options.beside))
            run = partial(run, make=UpgradeRound if options.relay is None else RelayUpgradeRound)
        database, restart = stack.enter_context(own_database(options.dsn))
        display = stack.enter_context(Display(console, options.seconds))
        _run_rounds(options, database, partial(run, restart=restart, progress=display.show), display, results)


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
    if options.relay is not None and options.beside is not None:
        return RelayUpgradeSettings(
            url, Path(), seed, until=0.0, to=options.relay, strategy=options.order, older=options.older, **processes
        )
    if options.relay is not None:
        strategy = options.order or random.Random(seed).choice(STRATEGIES)
        return RelayRoundSettings(url, Path(), seed, until=0.0, to=options.relay, strategy=strategy, **processes)
    if options.beside is not None:
        return UpgradeSettings(
            url, Path(), seed, until=0.0, faults=faults, strategy=options.order, older=options.older, **processes
        )
    if options.order is None:
        return Settings(url, Path(), seed, until=0.0, faults=faults, **processes)
    settings = OrderSettings(
        url, Path(), seed, until=0.0, faults=faults, strategy=options.order, fails=0.1, replay_every=0.5, **processes
    )
    return settings if options.lease is None else with_long_leases(settings, options.lease)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Publishes, claims and settles under random faults, and checks the history of every row.",
        epilog="Without --order, claimers and settlers of rows without a key are driven one operation at a time. With "
        "it, whole brokers handle messages with and without keys, and the order of each key is checked as well: one at "
        "a time has it, nothing is handed out or handled before what precedes it, and who lost it changes nothing. "
        "Dead letters are replayed meanwhile, and come before what waits of their keys. "
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
    parser.add_argument(
        "--beside",
        nargs="?",
        const=list(VERSIONS.values())[-1],
        metavar="COMMIT",
        help="let processes of an older version work on the same tables, relays too with --relay (default: of the last "
        "one that is tested)",
    )
    parser.add_argument(
        "--lease",
        type=float,
        metavar="N",
        help="with --order: leases of so many seconds, which only a recovery ends in time; at least 30",
    )
    parser.add_argument("--driver", choices=("asyncpg", "psycopg"), default="asyncpg", help="default: asyncpg")
    return parser


if __name__ == "__main__":
    sys.exit(main())
