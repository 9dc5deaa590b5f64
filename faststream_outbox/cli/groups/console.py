"""`faststream-outbox console`: the web console of an outbox, on this machine or where a hook says who may use it."""

from typing import Annotated, Final

import typer

from faststream_outbox.cli.addresses import split_address
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.operating.application import load_attribute
from faststream_outbox.cli.operating.command import Run

_EXTRA: Final = ("jinja2", "starlette", "uvicorn")


async def console(
    run: Run,
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:8010",
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no acts; transactions are READ ONLY.")] = False,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function that gets a request and returns an Access. Without one, only this machine gets in, with a "
            "token.",
        ),
    ] = None,
) -> None:
    """Serve the web console until Ctrl-C, and print its address."""
    try:
        from faststream_outbox.console.server import serve_console  # noqa: PLC0415 - needs the extra `console`
    except ImportError as error:
        if error.name not in _EXTRA:
            raise
        raise ProgramError(str(error)) from error
    hook = None if access is None else load_attribute(access, "--access", "access")
    if hook is not None and not callable(hook):
        raise UsageError(f"--access: {access} is a {type(hook).__name__}, not a function.")
    try:
        host, port = split_address(listen)
        await serve_console(
            run.operations, host=host, port=port, say=run.output.plain, access=hook, read_only=read_only
        )
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from error
