"""The commands of `faststream-outbox`; their options are made from their settings."""

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from pydantic.fields import FieldInfo

from faststream_outbox.__about__ import __version__
from faststream_outbox.cli.addresses import show_address
from faststream_outbox.cli.errors import UsageError
from faststream_outbox.cli.logs import set_up_logging
from faststream_outbox.cli.secrets import hide
from faststream_outbox.cli.settings import TUNING, RelaySettings, keys_of

app = typer.Typer(
    help="The transactional outbox on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# The groups of options in --help; other options come first.
_PANELS: Final = {
    "The outbox": ("dsn", "dsn_password", "table", "schema", "dlq_table", "shards_table"),
    "Several nodes": ("ordering", "shards", "own_shards"),
    "Running": ("graceful_timeout", "log_level", "log_format", "progress", "progress_interval", "health"),
    "Tuning": {*TUNING, "retry_strategy"} - {"on_dead"},
}


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options that come before a command."""


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting; it receives them by the keys of the settings."""
    own = [each for each in inspect.signature(command).parameters.values() if each.kind is each.KEYWORD_ONLY]
    made = map(_make_option, keys_of(RelaySettings), RelaySettings.model_fields.values())
    command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    return command


def _make_option(key: str, field: FieldInfo) -> inspect.Parameter:
    kinds = (field.annotation, *get_args(field.annotation))
    kind: Any = next((each for each in (bool, int, float) if each in kinds), str)
    names, metavar = [], None
    if key == "routes":
        kind, names, metavar = list[str], ["--route"], "QUEUE=DESTINATION"
    # The value of an option that is not given is None: the default belongs to the settings, and is only shown here.
    shown = f"{field.default:g}" if kind is float else field.default
    default = "" if field.is_required() or field.default is None or field.default is False else f" (default: {shown})"
    panel = next((name for name, keys in _PANELS.items() if key in keys), None)
    option = typer.Option(*names, help=f"{field.description}{default}", metavar=metavar, rich_help_panel=panel)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@app.command(
    context_settings={"allow_extra_args": True},
    epilog="Each option can also be set by a variable, such as OUTBOX_DSN for --dsn, and by a key of the file, such as "
    "on_dead for --on-dead. An option wins over a variable, and a variable over the file.",
)
@_with_settings
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
    raise typer.Exit(asyncio.run(_check(settings) if check else _relay(settings)))


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
    from faststream_outbox.cli.program import Program  # noqa: PLC0415 - not needed for --help

    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    set_up_logging(level=settings.log_level, json_lines=as_json)
    return await Program(settings).run()


async def _check(settings: RelaySettings) -> int:
    from faststream_outbox.cli.program import Program  # noqa: PLC0415 - not needed for --help

    # Clients log the failures that are printed here as one sentence each.
    set_up_logging(level="critical", json_lines=False)
    failures = 0
    async for passed, text in Program(settings).check():
        failures += not passed
        typer.echo(f"{'ok   ' if passed else 'wrong'} {hide(text)}")
    return 1 if failures else 0
