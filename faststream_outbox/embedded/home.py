"""Everything a server needs besides its process: binaries, data directory, password, log and watchdog."""

import contextlib
import os
import signal
from pathlib import Path

from faststream_outbox.embedded.account import Account, account_to_run_as
from faststream_outbox.embedded.binaries import Binaries, find_bin_dir, usable_binaries
from faststream_outbox.embedded.cluster import PersistentDataDir, run_initdb
from faststream_outbox.embedded.credentials import CHEAP_ITERATIONS, STANDARD_ITERATIONS, new_password, scram_verifier
from faststream_outbox.embedded.log import ServerLog
from faststream_outbox.embedded.private_dir import PrivateDir, memory_parent, temporary_parent
from faststream_outbox.embedded.watchdog import Watchdog


class Home:
    """Made once for a server, used by each of its starts, removed with it."""

    account: Account | None
    binaries: Binaries
    data_dir: Path
    password: str
    log: ServerLog
    watchdog: Watchdog

    def __init__(
        self,
        *,
        bin_dir: str | os.PathLike[str] | None,
        data_dir: Path | None,
        temp_dir: Path | None,
        account_name: str | None,
        fast: bool,
    ) -> None:
        found = find_bin_dir(bin_dir)
        self.account = account_to_run_as(account_name)
        with contextlib.ExitStack() as undo:
            private = PrivateDir(temporary_parent(temp_dir, self.account), self.account)
            undo.callback(private.close)
            self.log = ServerLog(private.path / "server.log")
            undo.callback(self.log.close)
            data: PrivateDir | PersistentDataDir = private
            self._private_dirs = {private}
            if data_dir is not None:
                data = PersistentDataDir(data_dir, self.account)
                undo.callback(data.release)
            elif fast and temp_dir is None and (memory := memory_parent(self.account)) is not None:
                # Only the data: programs often may not be run from a file system in memory.
                data = PrivateDir(memory, self.account)
                self._private_dirs.add(data)
                undo.callback(data.close)
            self.watchdog = Watchdog(
                remove={private_dir.path for private_dir in self._private_dirs},
                keep_open={private.lock_fd, data.lock_fd},
            )
            undo.callback(self.watchdog.dismiss)
            self.password = new_password()
            verifier = private.path / "verifier"
            verifier.touch(mode=0o600)
            verifier.write_text(scram_verifier(self.password, CHEAP_ITERATIONS if fast else STANDARD_ITERATIONS))
            private.hand_over_file(verifier)
            self.binaries = usable_binaries(found, self.account, private)
            for private_dir in self._private_dirs:
                private_dir.hand_over()
            if isinstance(data, PersistentDataDir):
                self._use(data, verifier, sync=not fast)
            else:
                self.data_dir = data.path / "data"
                # Temporary data does not outlive the machine, so nothing is gained by waiting for its disk.
                self._make_data(verifier, sync=False)
            self._undo = undo.pop_all()

    def remove(self) -> None:
        """Delete the temporary files and give everything back."""
        # Before the watchdog goes: should this be interrupted, it finishes the work.
        for private_dir in self._private_dirs:
            private_dir.delete()
        self._undo.close()

    def _use(self, data: PersistentDataDir, verifier: Path, *, sync: bool) -> None:
        self.data_dir = data.path
        if data.is_made(self.binaries.major):
            self.password = data.read_password()
            return
        self._make_data(verifier, sync=sync)
        data.write_password(self.password)

    def _make_data(self, verifier: Path, *, sync: bool) -> None:
        run_initdb(
            self.binaries,
            self.data_dir,
            self.account,
            password_file=verifier,
            sync=sync,
            # Not SIGINT, which initdb ignores while it runs another program.
            on_start=lambda pid: self.watchdog.watch(pid, signal.SIGTERM),
        )
        self.watchdog.forget()
