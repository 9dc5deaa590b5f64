"""`python -m faststream_outbox.embedded`: runs a server until Ctrl-C, or as long as a command runs."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from faststream_outbox.embedded.database import DSN_VARIABLE
from faststream_outbox.embedded.errors import EmbeddedPostgresError
from faststream_outbox.embedded.server import EmbeddedPostgres

_SERVER_POLL = 0.5
# The exit codes of a shell for a command that is missing, and for one that a signal ended.
_NOT_FOUND = 127
_SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    options = vars(_parse(arguments))
    command = options.pop("command")
    command = command[1:] if command[:1] == ["--"] else command
    if command and shutil.which(command[0]) is None:
        sys.stderr.write(f"There is no command {command[0]!r} to run.\n")
        return _NOT_FOUND
    # Without a handler SIGTERM would end us at once, and leave the clean-up to the watchdog.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(_SIGNALLED + number))
    try:
        with EmbeddedPostgres(**options) as server:
            return _run(command, server) if command else _wait(server)
    except EmbeddedPostgresError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m faststream_outbox.embedded",
        description="Run a PostgreSQL server until Ctrl-C, or as long as a command runs.",
    )
    parser.add_argument("--bin-dir", help="the bin directory of a PostgreSQL installation (default: the wheel's)")
    parser.add_argument("--data-dir", help="keep the data here (default: remove it with the server)")
    parser.add_argument("--port", type=int, help="a fixed port (default: a free one)")
    parser.add_argument("--fast", action="store_true", help="give up durability for speed, for tests")
    help_text = f"run this with {DSN_VARIABLE} set, and exit with its exit code"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- command", help=help_text)
    return parser.parse_args(arguments)


def _wait(server: EmbeddedPostgres) -> int:
    sys.stdout.write(f"{server.dsn}\n{server.url('asyncpg')}\n")
    sys.stdout.flush()
    try:
        while server.pid is not None:
            time.sleep(_SERVER_POLL)
    except KeyboardInterrupt:
        # The usual way to end this program, and therefore a success.
        return 0
    raise EmbeddedPostgresError(f"The server ended by itself. The end of its log:\n{server.log_tail()}")


def _run(command: list[str], server: EmbeddedPostgres) -> int:
    process: subprocess.Popen[bytes] | None = None
    terminated = False

    def terminate(_number: int, _frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        if process is not None:
            process.terminate()

    # The handlers must not raise: an exception between the start of the command and the assignment would orphan it.
    signal.signal(signal.SIGTERM, terminate)
    # The terminal sends Ctrl-C to the command as well, which may want to finish its work. Where the parent ignores
    # Ctrl-C, as a shell does for a program in the background, the command must inherit that.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
    process = subprocess.Popen(command, env=os.environ | {DSN_VARIABLE: server.dsn})
    if terminated:
        process.terminate()
    code = process.wait()
    return code if code >= 0 else _SIGNALLED - code


if __name__ == "__main__":
    sys.exit(main())
