"""The command `faststream-outbox relay`."""

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from faststream_outbox.cli.addresses import show_address
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.options import with_settings
from faststream_outbox.cli.relay.logs import LOGGER, set_up_logging
from faststream_outbox.cli.relay.settings import TUNING, RelaySettings
from faststream_outbox.cli.secrets import hide

# How long the tasks and threads of clients may take to end after the relay has stopped.
_END_SECONDS: Final = 5.0

# The groups of options in --help; other options come first.
_PANELS: Final = {
    "The outbox": (
        *("dsn", "dsn_password", "table", "schema", "dlq_table", "control_table", "audit_table", "nodes_table"),
        "shards_table",
    ),
    "Several nodes": ("ordering", "shards", "own_shards"),
    "Running": ("graceful_timeout", "log_level", "log_format", "progress", "progress_interval", "health"),
    "Tuning": {*TUNING, "retry_strategy"} - {"on_dead"},
}


@with_settings(RelaySettings, _PANELS, {"routes": "QUEUE=DESTINATION"})
def relay(
    *,
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the same settings.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check settings, tables and broker; relay nothing.")] = False,
    **options: Any,
) -> None:
    """Send the rows of an outbox to another broker; the rows of a key arrive in their order."""
    # Typer's own error would show an argument with the password that is in it.
    if context.args:
        raise UsageError(f"{show_address(context.args[0])!r} is not an option; see faststream-outbox relay --help.")
    options["routes"] = _split_routes(options["routes"] or ())
    settings = RelaySettings.load(options, config)
    raise typer.Exit(run_to_end(_check(settings) if check else _relay(settings)))


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """Return the exit code of `work`; end the process with it if a client's task or thread does not end soon after it.

    `asyncio.run` would wait for these without limit, and a client may try on although it is cancelled.
    """
    runner, code, failure = asyncio.Runner(), 1, ""
    try:
        code = runner.run(work)
    except ProgramError as error:
        code, failure = error.exit_code, f" {error}"
        raise
    finally:
        ending = threading.Timer(_END_SECONDS, _end_process, [code, failure])
        ending.daemon = True
        ending.start()
        runner.close()
        ending.cancel()
    return code


def _end_process(code: int, failure: str) -> None:
    message = f"A client of the broker did not end within {_END_SECONDS:g} seconds; the process ends without it."
    LOGGER.warning("%s%s", message, failure, extra={"event": "relay_not_closed"})
    sys.stdout.flush()
    os._exit(code)


def _split_routes(routes: Iterable[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for text in routes:
        queue, equals, destination = text.partition("=")
        if not (queue and equals and destination):
            raise UsageError(f"--route: {text!r} is not a route; write queue=destination.")
        if queue in found:
            both = f"{found[queue]!r} and {destination!r}"
            raise UsageError(f"--route: queue {queue!r} has two routes, {both}; keep one.")
        found[queue] = destination
    return found or None


async def _relay(settings: RelaySettings) -> int:
    from faststream_outbox.cli.relay.program import Program  # noqa: PLC0415 - not needed for --help

    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    set_up_logging(level=settings.log_level, json_lines=as_json)
    return await Program(settings).run()


async def _check(settings: RelaySettings) -> int:
    from faststream_outbox.cli.relay.program import Program  # noqa: PLC0415 - not needed for --help

    # Clients log the failures that are printed here as one sentence each.
    set_up_logging(level="critical", json_lines=False)
    failures = 0
    async for passed, text in Program(settings).check():
        failures += not passed
        typer.echo(f"{'ok   ' if passed else 'wrong'} {hide(text)}")
    return 1 if failures else 0
