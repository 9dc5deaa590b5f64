"""The program `faststream-outbox`: operate an outbox, or relay it, without a line of Python."""

import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Final

from faststream_outbox._installation import needs_extra
from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.secrets import hide

# What the newer parsers say of an option or an argument.
_NO_INTEGER: Final = "Input should be a valid integer, unable to parse string as an integer"
_EXTRA: Final = ("typer", "click", "rich", "pydantic_settings")


def main() -> None:
    """Run the command that the command line names, and exit: 0 done, 1 something is wrong, 2 the usage is wrong."""
    sys.excepthook = _print_without_secrets
    threading.excepthook = _print_thread_without_secrets
    try:
        from faststream_outbox.cli.commands import app  # noqa: PLC0415 - needs the extra `cli`

        sys.exit(app(standalone_mode=False))
    except ImportError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"Error: {error.name} is not installed. {needs_extra('The command line', 'cli')}.")
    except ProgramError as error:
        sys.stderr.write(f"Error: {hide(str(error))}\n")
        sys.exit(error.exit_code)
    except Exception as error:
        _exit_with_usage(error)
        raise


def _exit_with_usage(error: Any) -> None:
    """Exit with one line if the error is one of the parser; which class it has depends on the version of typer."""
    context = getattr(error, "ctx", None)
    if not hasattr(error, "format_message"):
        return
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    path = getattr(context, "command_path", "faststream-outbox")
    message = hide(error.format_message()).replace(_NO_INTEGER, "this must be a whole number").rstrip(".")
    if type(error).__name__ == "NoSuchOption" and getattr(context, "parent", None) is None:
        message += "; options come after the command"
    sys.stderr.write(f"Error: {message}{'' if message.endswith('?') else '.'} See {path} --help.\n")
    sys.exit(error.exit_code)


def _print_without_secrets(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print the traceback of an error that nothing caught."""
    sys.stderr.write(hide("".join(traceback.format_exception(kind, error, where))))


def _print_thread_without_secrets(arguments: Any) -> None:
    _print_without_secrets(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
