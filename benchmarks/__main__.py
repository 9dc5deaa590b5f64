"""Measure what the outbox costs and print it as Markdown; `make bench ARGS="--help"`."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.aims import AIMS, summary
from benchmarks.machine import facts
from benchmarks.peers.child import Programs
from benchmarks.results import Result
from benchmarks.scenario import Bench, Scale, Scenario
from benchmarks.scenarios import SCENARIOS
from faststream_outbox.embedded import Database, EmbeddedPostgres, ServerStartError

DRIVERS: Final = ("asyncpg", "psycopg")
# Enough memory and log that neither cold pages nor a checkpoint in the middle of a run are measured: keys are claimed
# from all over a table of a million rows, which is a gigabyte.
SETTINGS: Final = {"shared_buffers": "2GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h"}
# Counts the statements of the measured process, if it is another one.
COUNTING: Final = {"shared_preload_libraries": "pg_stat_statements"}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    names = ", ".join(SCENARIOS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what the outbox costs, on a Postgres of its own, and print it as Markdown.",
        epilog="scenarios: " + "; ".join(f"{name}: {scenario.summary}" for name, scenario in SCENARIOS.items()),
    )
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument(
        "--quick", dest="scale", action="store_const", const="quick", help="P1 to P12, about 5 minutes (default)"
    )
    scale.add_argument("--full", dest="scale", action="store_const", const="full", help="all scenarios, more rounds")
    parser.add_argument("--only", type=_scenarios, metavar="A,B", help=f"some scenarios only: {names}")
    parser.add_argument("--driver", choices=DRIVERS, help="one driver only (quick: asyncpg, full: both)")
    parser.add_argument("--bin-dir", metavar="DIR", help="the programs of another Postgres installation")
    parser.add_argument("--dsn", help="a server of yours; a database is created there, and dropped at the end")
    parser.add_argument("--seed", type=int, default=1, help="of payloads and of the order of turns (default 1)")
    parser.add_argument("--seconds", type=_seconds, help="how long held snapshots are churned against (60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as well")
    parser.set_defaults(scale="quick")
    options = parser.parse_args(arguments)
    if options.dsn and options.bin_dir:
        parser.error("--dsn names a server that runs, --bin-dir one to start: choose one of them.")
    return options


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"from a tenth of a second to an hour, not {text}")
    return seconds


def _scenarios(text: str) -> list[str]:
    names = [name for given in text.split(",") for name in _family(given.strip())]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return names


def _family(name: str) -> list[str]:
    """Tell which scenarios a name stands for: its own, or all that begin with it, as those of the peers do."""
    return [name] if name in SCENARIOS else [each for each in SCENARIOS if each.startswith(f"{name}-")] or [name]


@contextmanager
def server(options: argparse.Namespace) -> Iterator[Database]:
    """Start a server, or take the one that was named."""
    if options.dsn:
        yield Database(options.dsn)
        return
    with ExitStack() as stack:
        try:
            started = stack.enter_context(EmbeddedPostgres(bin_dir=options.bin_dir, settings=SETTINGS | COUNTING))
        except ServerStartError:  # an installation without that library
            started = stack.enter_context(EmbeddedPostgres(bin_dir=options.bin_dir, settings=SETTINGS))
        yield started.database


def chosen(options: argparse.Namespace) -> list[str]:
    """Tell which scenarios to run: those that were named, all of them, or those that P1 to P12 are read from."""
    needed = SCENARIOS if options.scale == "full" else {aim.scenario for aim in AIMS}
    return options.only or [name for name in SCENARIOS if name in needed]


async def measure(database: Database, options: argparse.Namespace, console: Console) -> dict[str, list[Result]]:
    """Run the scenarios that were asked for; one that fails is reported, and has no results."""
    names = chosen(options)
    results: dict[str, list[Result]] = {}
    programs = Programs()
    bar = (SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    try:
        with Progress(*bar, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(names))
            for number, name in enumerate(names, 1):
                began = time.monotonic()
                progress.update(task, description=name)
                try:
                    say = partial(_show, progress, task, name)
                    results[name] = await _run(SCENARIOS[name], database, options, programs, say)
                except Exception:  # noqa: BLE001 - an hour of the others' results is not lost for it
                    console.print_exception()
                    results[name] = []
                progress.advance(task)
                end = "" if results[name] else ", failed"
                console.print(f"{number} of {len(names)}: {name}, {time.monotonic() - began:.0f} s{end}")
    finally:
        await programs.end()
    return results


async def _run(
    scenario: Scenario,
    database: Database,
    options: argparse.Namespace,
    programs: Programs,
    say: Callable[[str], None],
) -> list[Result]:
    scale: Scale = options.scale
    control = await asyncpg.connect(database.dsn)
    try:
        bench = Bench(
            database,
            control,
            scale=scale,
            drivers=(options.driver,) if options.driver else DRIVERS if scale == "full" else DRIVERS[:1],
            seed=options.seed,
            seconds=options.seconds,
            say=say,
            programs=programs,
        )
        return await scenario.run(bench)
    finally:
        await control.close()


def _show(progress: Progress, task: TaskID, scenario: str, text: str) -> None:
    progress.update(task, description=f"{scenario}: {text}")


def command(options: argparse.Namespace) -> str:
    """Write the command that repeats a run, without what only this machine has."""
    given = ["--full"] if options.scale == "full" else ["--quick"]
    given += ["--only", ",".join(options.only)] if options.only else []
    given += ["--driver", options.driver] if options.driver else []
    given += ["--bin-dir", "DIR"] if options.bin_dir else []
    given += ["--dsn", "DSN"] if options.dsn else []
    given += ["--seconds", f"{options.seconds:g}"] if options.seconds else []
    return f'make bench ARGS="{" ".join([*given, "--seed", str(options.seed)])}"'


def main() -> int:
    """Measure and print."""
    options = parse()
    console = Console(stderr=True)
    with server(options) as maintenance:
        database = maintenance.create_database()
        try:
            surroundings = asyncio.run(facts(database))
            results = asyncio.run(measure(database, options, console))
        finally:
            maintenance.drop_database(database)
    print(f"`{command(options)}`\n")
    print("\n".join(f"- {name}: {value}" for name, value in surroundings.items()))
    print(f"\n{summary(results)}" if summary(results) else "")
    for tables in results.values():
        for table in tables:
            print(f"\n{table.markdown()}")
    if options.json:
        content = {
            "command": command(options),
            "surroundings": surroundings,
            "results": {name: [table.as_json() for table in tables] for name, tables in results.items()},
        }
        options.json.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    # Once more where it is seen, when all the tables went to a file or have scrolled away.
    console.print(Markdown(summary(results)))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
