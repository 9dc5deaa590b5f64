"""Ends a server whose owner was killed: a class for the owner and, run by its path, the script of the watching process.

The script reads its standard input, a pipe whose other end only the owner holds. The owner writes `<pid> <signal>` to
name the process to end and the first signal to send, `forget <pid>` when that process has ended, and `done` to dismiss
the watchdog. When the pipe closes without `done`, the owner is dead.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

_POLL = 0.05
_REMOVE_ATTEMPTS = 20
# How many seconds a process gets to end after its first signal, and after each harder one.
_FIRST_TIMEOUT = 10.0
_HARDER = ((int(signal.SIGQUIT), 5.0), (int(signal.SIGKILL), 5.0))


class Watchdog:
    """Runs this file as a script and says what to watch.

    A pipe rather than `PR_SET_PDEATHSIG`: it works on every system, and a server outlives the thread that started it.
    """

    def __init__(self, *, remove: Iterable[Path], keep_open: Iterable[int]) -> None:
        self._process = subprocess.Popen(
            # -I and -S: quick to start, and no `.pth` file or `sitecustomize` runs a second time.
            [sys.executable, "-I", "-S", __file__, *map(str, remove)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=tuple(keep_open),
            cwd="/",
            start_new_session=True,
        )
        _watchdogs.add(self)

    def watch(self, pid: int, first_signal: signal.Signals) -> None:
        """End this process when the owner is dead, with `first_signal` before harder ones."""
        self._send(f"{pid} {int(first_signal)}")

    def forget(self, pid: int) -> None:
        """Do not end this process any more: it has ended, and its id may be given to another one."""
        self._send(f"forget {pid}")

    def dismiss(self) -> None:
        """End the watchdog; it ends and removes nothing."""
        self._send("done")
        self.close_pipe()
        self._process.wait()

    def close_pipe(self) -> None:
        """Close the owner's end of the pipe."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _send(self, line: str) -> None:
        # Without its watchdog the server still works, and still stops with its owner. ValueError: a forked child.
        with contextlib.suppress(BrokenPipeError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(f"{line}\n".encode())


_watchdogs: "weakref.WeakSet[Watchdog]" = weakref.WeakSet()


def _close_pipes() -> None:
    for watchdog in list(_watchdogs):
        watchdog.close_pipe()


# A forked child that held the pipe would keep the server alive after its owner died.
os.register_at_fork(after_in_child=_close_pipes)


def remove_tree(directory: str | os.PathLike[str]) -> None:
    """Remove a directory that an ending process may still write to."""
    for _ in range(_REMOVE_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
        time.sleep(_POLL)


def main(directories: list[str]) -> None:
    """Watch until the owner dismisses us or dies; then end its process and remove `directories`."""
    # Only the owner's end counts, not a signal that was sent to the owner and its children.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: tuple[int, int] | None = None
    for line in sys.stdin:
        match line.split():
            case ["done"]:
                return
            case ["forget", pid]:
                watched = None if watched is not None and watched[0] == int(pid) else watched
            case [pid, first_signal]:
                watched = int(pid), int(first_signal)
    if watched is not None:
        _end(*watched)
    for directory in directories:
        remove_tree(directory)


def _end(pid: int, first_signal: int) -> None:
    for number, seconds in ((first_signal, _FIRST_TIMEOUT), *_HARDER):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if _has_ended(pid):
                return
            time.sleep(_POLL)


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie has ended too, and the init process of many containers never reaps it.
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return True
    except OSError:
        return False  # a system without /proc


if __name__ == "__main__":
    main(sys.argv[1:])
