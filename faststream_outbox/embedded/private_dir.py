"""The temporary directory that a server lives in, closed to other users and removed with its owner."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from faststream_outbox.embedded.account import Account
from faststream_outbox.embedded.errors import AccountError
from faststream_outbox.embedded.watchdog_process import remove_tree

PREFIX = "faststream-outbox-pg-"
_LOCK = "owner.lock"
_PUBLIC = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - mkdtemp makes a private directory inside
_MEMORY = Path("/dev/shm")  # noqa: S108 - same
# Containers often have only 64 MB there, which a few test databases would fill.
_MEMORY_ROOM = 2 * 1024**3
# A directory this young may belong to a process that has not locked it yet.
_SETTLED_AFTER = 60.0


class PrivateDir:
    """A fresh directory of mode 0700, locked for as long as this process (or its watchdog) lives."""

    def __init__(self, parent: Path, account: Account | None) -> None:
        self._account = account
        _remove_abandoned(parent, account)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self.lock_fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # A file system without locks costs only the clean-up after a dead owner.
        with contextlib.suppress(OSError):
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def hand_over_file(self, file: Path) -> None:
        """Make the account the owner of a file in here."""
        if self._account is not None:
            os.chown(file, self._account.uid, self._account.gid)

    def hand_over(self) -> None:
        """Make the account the owner of the directory; root must not write here after that, nor follow its links."""
        if self._account is not None:
            os.chown(self.path, self._account.uid, self._account.gid)

    def delete(self) -> None:
        """Delete the directory and everything in it."""
        remove_tree(str(self.path))

    def close(self) -> None:
        """Delete the directory and let go of its lock."""
        self.delete()
        os.close(self.lock_fd)


def temporary_parent(wanted: Path | None, account: Account | None) -> Path:
    """Find a directory for temporary files that `account` can enter; `wanted` allows no other."""
    usual = wanted or Path(tempfile.gettempdir())
    if account is None:
        return usual
    # Root's own temporary directory may be closed to everybody else.
    for parent in (usual,) if wanted is not None else (usual, *_PUBLIC):
        if parent.is_dir() and account.can_enter(parent):
            return parent
    raise AccountError(
        f"The account {account.name!r}, which runs the server, cannot enter the temporary directory {str(usual)!r}. "
        "Name one that it can enter with temp_dir= or the environment variable TMPDIR."
    )


def memory_parent(account: Account | None) -> Path | None:
    """Find a file system in memory with enough room; making a database there can be ten times faster."""
    usable = (
        _MEMORY.is_dir()
        and os.access(_MEMORY, os.W_OK | os.X_OK)
        and (account is None or account.can_enter(_MEMORY))
        and shutil.disk_usage(_MEMORY).free >= _MEMORY_ROOM
    )
    return _MEMORY if usable else None


def _remove_abandoned(parent: Path, account: Account | None) -> None:
    """Remove directories whose owner died together with its watchdog, as when a container is killed.

    A server that still runs in one notices within a minute that its files are gone, and shuts itself down.
    """
    owners = {os.geteuid()} if account is None else {os.geteuid(), account.uid}
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = directory.lstat()
            if status.st_uid not in owners or time.time() - status.st_mtime < _SETTLED_AFTER:
                continue
            lock_fd = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock_fd)
