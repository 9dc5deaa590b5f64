"""The program `faststream-outbox`: a relay without a line of Python."""

import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Final

from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.secrets import hide

_EXTRA: Final = ("typer", "click", "rich", "pydantic_settings")


def main() -> None:
    """Run the command that the command line names, and exit."""
    sys.excepthook = _print_without_secrets
    threading.excepthook = _print_thread_without_secrets
    try:
        from faststream_outbox.cli.commands import app  # noqa: PLC0415 - needs the extra `cli`

        app()
    except ImportError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"Error: The command line needs {error.name}: pip install 'faststream-outbox[cli]'.")
    except ProgramError as error:
        sys.stderr.write(f"Error: {hide(str(error))}\n")
        sys.exit(error.exit_code)


def _print_without_secrets(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print the traceback of an error that nothing caught."""
    sys.stderr.write(hide("".join(traceback.format_exception(kind, error, where))))


def _print_thread_without_secrets(arguments: Any) -> None:
    _print_without_secrets(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
