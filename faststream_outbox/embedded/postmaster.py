"""One run of the `postgres` program, from its start to its end."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from faststream_outbox.embedded.account import Account, switch_to
from faststream_outbox.embedded.binaries import Binaries
from faststream_outbox.embedded.cluster import in_use
from faststream_outbox.embedded.environment import clean_environment
from faststream_outbox.embedded.errors import OldProcessesError, PortTakenError, ServerStartError
from faststream_outbox.embedded.log import ServerLog

StopMode = Literal["fast", "immediate"]

_READY_POLL = 0.005
_STATUS_LINE = 7
# A fast shutdown writes a checkpoint, which a slow disk may hold up; an immediate one has nothing to wait for.
_PATIENCE = {signal.SIGINT: 30.0, signal.SIGQUIT: 10.0, signal.SIGKILL: 10.0}
_STEPS: dict[StopMode, tuple[signal.Signals, ...]] = {
    "fast": (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL),
    "immediate": (signal.SIGQUIT, signal.SIGKILL),
}


class Postmaster:
    """A running server process; it is our child, so its id stays its own until we have seen it end."""

    def __init__(
        self,
        binaries: Binaries,
        data_dir: Path,
        account: Account | None,
        *,
        settings: Mapping[str, str],
        log: ServerLog,
    ) -> None:
        self._data_dir = data_dir
        self._log = log
        self._log_start = log.size()
        command = [binaries.postgres, "-D", str(data_dir)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        # A session of its own: Ctrl-C in the terminal must not stop the server before we do.
        self._process = subprocess.Popen(
            command,
            env=clean_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log.fd,
            stderr=log.fd,
            start_new_session=True,
            **switch_to(account),
        )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def wait_until_ready(self, timeout: float) -> None:
        """Return when the server accepts connections; raise when it ends instead, or takes longer than `timeout`."""
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if not self.running:
                raise self._why_it_ended()
            if time.monotonic() > deadline:
                raise ServerStartError(
                    f"PostgreSQL was not ready after {timeout:g} seconds. The end of its log:\n{self._tail()}"
                )
            time.sleep(_READY_POLL)

    def stop(self, mode: StopMode) -> None:
        """End the process, harder and harder until it is gone."""
        for number in _STEPS[mode]:
            self._process.send_signal(number)
            try:
                self._process.wait(_PATIENCE[number])
            except subprocess.TimeoutExpired:
                continue
            return
        raise ServerStartError(f"PostgreSQL (process {self.pid}) does not end, even when killed.")

    def _is_ready(self) -> bool:
        try:
            lines = (self._data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # The first line tells our file from one that a crashed server left behind.
        return len(lines) > _STATUS_LINE and lines[0] == str(self.pid) and lines[_STATUS_LINE].strip() == "ready"

    def _why_it_ended(self) -> Exception:
        tail = self._tail()
        if "could not bind" in tail and os.strerror(errno.EADDRINUSE) in tail:
            return PortTakenError(f"Another process listens on the port of this server. The end of its log:\n{tail}")
        if 'lock file "postmaster.pid" already exists' in tail:
            return in_use(self._data_dir)
        if "pre-existing shared memory block" in tail:
            return OldProcessesError(
                "Processes of an earlier server still use this data directory. End them, or choose another directory. "
                f"The end of the log:\n{tail}"
            )
        code = self._process.returncode
        return ServerStartError(f"PostgreSQL did not start (exit code {code}). The end of its log:\n{tail}")

    def _tail(self) -> str:
        return self._log.tail(since=self._log_start)
