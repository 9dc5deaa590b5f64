"""The owner's side of the process that ends a server when its owner was killed without a chance to do so."""

import contextlib
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path

from faststream_outbox.embedded import watchdog_process

_DISMISS_TIMEOUT = 5.0


class Watchdog:
    """Runs `watchdog_process` and tells it what to watch.

    A pipe rather than `PR_SET_PDEATHSIG`: it works on every system, and does not fire when merely the thread that
    started the server ends.
    """

    def __init__(self, *, remove: Iterable[Path], keep_open: Iterable[int]) -> None:
        read_end, self._write_end = os.pipe()
        try:
            # -I and -S: quick to start, and no `.pth` file or `sitecustomize` runs a second time.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog_process.__file__, *map(str, remove)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=tuple(keep_open),
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)
        _watchdogs.add(self)

    def watch(self, pid: int, first_signal: signal.Signals) -> None:
        """End this process when we are gone, with `first_signal` if it heeds it."""
        self._tell(f"{pid} {int(first_signal)}")

    def forget(self) -> None:
        """Watch nothing, because the watched process ended."""
        self._tell("forget")

    def dismiss(self) -> None:
        """End the watchdog, and leave everything else alone."""
        self._tell("done")
        self.close_pipe()
        _watchdogs.discard(self)
        try:
            self._process.wait(_DISMISS_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close_pipe(self) -> None:
        """Let go of our end of the pipe."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def _tell(self, words: str) -> None:
        # If somebody killed the watchdog, the server still works and still stops with us.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_end, f"{words}\n".encode())


_watchdogs: "weakref.WeakSet[Watchdog]" = weakref.WeakSet()


def _let_go_in_forked_child() -> None:
    # A forked child that held the pipe would keep the server alive after its real owner died.
    for watchdog in list(_watchdogs):
        watchdog.close_pipe()


os.register_at_fork(after_in_child=_let_go_in_forked_child)
