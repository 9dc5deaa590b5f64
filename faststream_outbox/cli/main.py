"""Where `faststream-outbox` and `python -m faststream_outbox` begin."""

import sys

from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.passwords import hide


def main() -> None:
    """Run the command that is named on the command line."""
    try:
        from faststream_outbox.cli.app import app  # noqa: PLC0415 - Typer is an optional dependency
    except ImportError as error:
        if error.name not in ("typer", "click", "rich"):
            raise
        _complain(f"The command line needs {error.name}: pip install 'faststream-outbox[cli]'.")
        sys.exit(1)
    try:
        app()
    except ProgramError as error:
        _complain(str(error))
        sys.exit(error.exit_code)


def _complain(text: str) -> None:
    sys.stderr.write(f"Error: {hide(text)}\n")
