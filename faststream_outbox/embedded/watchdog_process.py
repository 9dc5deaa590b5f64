"""Ends a server whose owner is gone; a script that uses the standard library only and is run by its path.

Its standard input is a pipe whose other end only the owner holds. The owner writes the id of the process to watch and
the signal that ends it in good order, `forget` to watch none, and `done` to dismiss the watchdog. The pipe ending
without `done` means that the owner died.
"""

import os
import select
import shutil
import signal
import sys
import time

# How many seconds a process gets to end in good order, and then on each harder signal.
_PATIENCE = 10.0
_HARDER = ((signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
_POLL = 0.05
_REMOVE_ATTEMPTS = 20


class WatchedProcess:
    """A process that is signalled by handle where the system has handles, so that a reused id is never hit."""

    def __init__(self, pid: int, first_signal: signal.Signals) -> None:
        self._pid = pid
        self._first_signal = first_signal
        self._gone = False
        self._handle: int | None = None
        if sys.platform == "linux":
            try:
                self._handle = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone = True
            except OSError:
                # A kernel without handles; the owner tells us before an id can be reused.
                pass

    def end(self) -> None:
        """End the process, harder and harder until it is gone."""
        for number, patience in ((self._first_signal, _PATIENCE), *_HARDER):
            self._send(number)
            if self._ended_within(patience):
                return

    def close(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            os.close(self._handle)

    def _send(self, number: signal.Signals) -> None:
        if self._gone:
            return
        try:
            if sys.platform == "linux" and self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            else:
                os.kill(self._pid, number)
        except ProcessLookupError:
            self._gone = True

    def _ended_within(self, seconds: float) -> bool:
        if self._gone:
            return True
        if self._handle is not None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                os.kill(self._pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(_POLL)
        return False


def remove_tree(directory: str) -> None:
    """Remove a directory that a dying process may still be writing to."""
    for _ in range(_REMOVE_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
        time.sleep(_POLL)


def main(private_dirs: list[str]) -> None:
    """Follow the owner's words until it dismisses us or dies."""
    # The owner's end decides, not a signal that was meant for the owner.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: WatchedProcess | None = None
    for line in sys.stdin:
        if watched is not None:
            watched.close()
            watched = None
        match line.split():
            case ["done"]:
                return
            case [pid, first_signal]:
                watched = WatchedProcess(int(pid), signal.Signals(int(first_signal)))
    if watched is not None:
        watched.end()
    for private_dir in private_dirs:
        remove_tree(private_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
