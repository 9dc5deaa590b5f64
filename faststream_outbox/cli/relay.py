"""`faststream-outbox relay`: rows of an outbox on their way to another broker."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from faststream_outbox.cli.check import findings
from faststream_outbox.cli.logs import set_up_logging
from faststream_outbox.cli.passwords import hide
from faststream_outbox.cli.program import Program
from faststream_outbox.cli.routes import split_routes
from faststream_outbox.cli.settings import RelaySettings, make_settings

_OUTBOX, _RUNNING = "The outbox", "Running"


def relay(
    *,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with the same settings; options given here come first.")
    ] = None,
    dsn: Annotated[str | None, typer.Option(envvar="OUTBOX_DSN", help="postgresql://…, or env:NAME.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            envvar="OUTBOX_TO",
            help="kafka://host:9092, kafka+confluent://, amqp://, amqps://, nats://, redis:// or rediss://; "
            "or env:NAME.",
        ),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUEUE=DESTINATION", help="Repeat it. By a header: queue=header:name or header:name|default."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="What this outbox is called in outbox_id, for good (default: the table's name).")
    ] = None,
    cloudevents: Annotated[bool | None, typer.Option(help="Add headers after CloudEvents.")] = None,
    ordering: Annotated[
        str | None, typer.Option(help="How nodes share keys: head-lease (default), advisory-locks, hash-shards.")
    ] = None,
    shards: Annotated[int | None, typer.Option(help="Into how many shards hash-shards divides the keys (16).")] = None,
    on_dead: Annotated[
        str | None, typer.Option(help="A refused message: skip (default) goes on without it, park stops its key.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="The outbox's table (outbox).", rich_help_panel=_OUTBOX)] = None,
    schema: Annotated[str | None, typer.Option(help="The schema of its tables.", rich_help_panel=_OUTBOX)] = None,
    dlq_table: Annotated[
        str | None, typer.Option(help="Its dead-letter table, if it has one.", rich_help_panel=_OUTBOX)
    ] = None,
    shards_table: Annotated[
        str | None, typer.Option(help="The table of shards, for hash-shards (outbox_shards).", rich_help_panel=_OUTBOX)
    ] = None,
    lease_ttl: Annotated[
        float | None,
        typer.Option(help="Seconds until others take a dead node's rows (60).", rich_help_panel=_RUNNING),
    ] = None,
    graceful_timeout: Annotated[
        float | None, typer.Option(help="Seconds to drain when stopped (15).", rich_help_panel=_RUNNING)
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info (default), warning or error.", rich_help_panel=_RUNNING)
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="json, text, or auto: text in a terminal.", rich_help_panel=_RUNNING)
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option(help="A live view (default: in a terminal).", rich_help_panel=_RUNNING),
    ] = None,
    progress_interval: Annotated[
        float | None,
        typer.Option(help="Seconds between lines of progress in the log (10).", rich_help_panel=_RUNNING),
    ] = None,
    health: Annotated[
        str | None, typer.Option(help="Serve health at host:port, or at a local port.", rich_help_panel=_RUNNING)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check settings, tables and broker, and relay nothing.")
    ] = False,
) -> None:
    """Send the rows of an outbox to another broker, those of a key in their order."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "check", "route"):
        del given[name]
    given["routes"] = split_routes(route or ())
    settings = make_settings(given, config)
    raise typer.Exit(_check(settings) if check else _run(settings))


def _run(settings: RelaySettings) -> int:
    on_terminal = sys.stderr.isatty()
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not on_terminal)
    set_up_logging(level=settings.log_level, json_lines=as_json)
    return asyncio.run(_relay(settings))


async def _relay(settings: RelaySettings) -> int:
    return await Program(settings).run()


def _check(settings: RelaySettings) -> int:
    # What clients log meanwhile is told in a sentence.
    set_up_logging(level="critical", json_lines=False)
    return asyncio.run(_tell_findings(settings))


async def _tell_findings(settings: RelaySettings) -> int:
    failures = 0
    async for well, what in findings(Program(settings)):
        failures += not well
        typer.echo(f"{'ok   ' if well else 'wrong'} {hide(what)}")
    return 1 if failures else 0
