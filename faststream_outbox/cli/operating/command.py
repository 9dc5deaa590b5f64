"""Commands of operators: coroutines that get an outbox, and return what to show."""

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from sqlalchemy.exc import DBAPIError

from faststream_outbox.cli.database import describe_error
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.operating.arguments import Bundle
from faststream_outbox.cli.operating.outbox import Outbox, open_outbox
from faststream_outbox.cli.operating.output import Format, Output
from faststream_outbox.cli.operating.settings import OperatorSettings
from faststream_outbox.cli.operating.views import View
from faststream_outbox.cli.options import with_settings
from faststream_outbox.cli.settings import keys_of
from faststream_outbox.operations import KeyBusyError, OperationsTableError, OutboxOperations
from faststream_outbox.storage.errors import LOCK_TIMEOUT, advice, sqlstate

PANELS: Final = {"The outbox": tuple(keys_of(OperatorSettings))}
Config = Annotated[Path | None, typer.Option(help="A TOML file with the same settings.", rich_help_panel="The outbox")]
_Output = Annotated[Format, typer.Option("--output", "-o", help="How to write the result.")]
_Watch = Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")]
_Interval = Annotated[float, typer.Option(help="Seconds between two looks of --watch.", min=0.1)]
# Often enough to see rows come and go; one look costs some statements.
_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Run:
    """What a command works with."""

    settings: OperatorSettings
    # The settings that were given as options, and neither by the environment nor by a file.
    given: Mapping[str, Any]
    outbox: Outbox
    output: Output

    @property
    def operations(self) -> OutboxOperations:
        """What can be read and done."""
        return self.outbox.operations


Command = Callable[..., Awaitable[View | None]]


def operator_command(
    group: typer.Typer, name: str, *bundles: Bundle, watch: bool = False, must_exist: bool = True
) -> Callable[[Command], Command]:
    """Add a command to a group; its function gets a `Run` and its own options, and returns what to show.

    The command also has the options of the bundles, of the connection, and `-o`; with `watch` also `--watch`.
    Without `must_exist` it also runs where the database or a table is missing.
    """

    def decorate(command: Command) -> Command:
        def run(config: Path | None = None, output: Format = Format.TABLE, **options: Any) -> None:
            keys = keys_of(OperatorSettings)
            chosen = {key: options.pop(key) for key in keys}
            settings = OperatorSettings.load(chosen, config)
            given = {key: value for key, value in {"config": config, **chosen}.items() if value is not None}
            interval = options.pop("interval", _SECONDS)
            interval = interval if options.pop("watch", False) else None
            for bundle in bundles:
                bundle.take(options)
            work = _run(partial(command, **options), settings, given, Output(output), interval, must_exist=must_exist)
            raise typer.Exit(run_to_end(work))

        _, *own = inspect.signature(command).parameters.values()
        added: list[tuple[str, Any, Any]] = [("output", _Output, Format.TABLE), ("config", Config, None)]
        if watch:
            added = [("watch", _Watch, False), ("interval", _Interval, _SECONDS), *added]
        shared = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, kind, default in added
        ]
        own = [each for each in own if each.name not in {bundle.name for bundle in bundles}]
        bundled = [parameter for bundle in bundles for parameter in bundle.parameters()]
        run.__signature__ = inspect.Signature([*own, *bundled, *shared])  # type: ignore[attr-defined]
        run.__doc__ = command.__doc__
        group.command(name)(with_settings(OperatorSettings, PANELS)(run))
        return command

    return decorate


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """Run a command, and return its exit code; errors of the core and of the database are one sentence."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        return 130
    except (KeyBusyError, OperationsTableError) as error:
        raise ProgramError(str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        # The reader has seen enough: `| head`. What is buffered cannot be written either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (DBAPIError, OSError) as error:
        if sqlstate(error) == LOCK_TIMEOUT:
            raise ProgramError(advice(error).strip()) from error
        raise ProgramError(f"The database refused it: {describe_error(error)}.") from error


async def _run(
    command: Command,
    settings: OperatorSettings,
    given: Mapping[str, Any],
    output: Output,
    interval: float | None,
    *,
    must_exist: bool,
) -> int:
    async with open_outbox(settings, must_exist=must_exist) as outbox:
        run = Run(settings, given, outbox, output)
        if interval is not None:
            return await output.watch(partial(command, run), interval)
        view = await command(run)
        if view is None:
            return 0
        output.show(view)
        return view.exit_code
