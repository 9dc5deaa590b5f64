"""The program `faststream-outbox`: a relay without a line of Python."""

import sys
from typing import Final

from faststream_outbox.cli.errors import ProgramError, hide

_EXTRA: Final = ("typer", "click", "rich", "pydantic_settings")


def main() -> None:
    """Run the command that the command line names, and exit."""
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
