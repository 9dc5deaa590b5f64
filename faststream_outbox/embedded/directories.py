"""The files of a server: temporary directories, data directory, password, log, and the watchdog that removes them."""

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import tempfile
import time
from pathlib import Path

from faststream_outbox.embedded.errors import AccountError, DataDirError
from faststream_outbox.embedded.programs import StrPath, can_enter, find_account, find_bin_dir, give_to, load_programs
from faststream_outbox.embedded.watchdog import Watchdog, remove_tree

PREFIX = "faststream-outbox-postgres-"
_PUBLIC = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - mkdtemp makes a private directory inside
_MEMORY = Path("/dev/shm")  # noqa: S108 - same
# Containers often have only 64 MB there, which a few test databases would fill.
_MEMORY_ROOM = 2 * 1024**3
# A directory younger than this may belong to a process that has not locked it yet.
_LOCKED_AFTER = 60.0
# A server whose owner was just killed needs a moment to shut down and release its data directory.
_LOCK_TIMEOUT = 3.0
_LOCK_POLL = 0.05
_PASSWORD_FILE = "faststream_outbox_password"  # noqa: S105 - the name of the file, not a password
_TAIL_BYTES = 4000


class ServerFiles:
    """Everything on disk that a server needs: made once, used by each of its starts, removed with it."""

    def __init__(
        self,
        *,
        bin_dir: StrPath | None,
        data_dir: Path | None,
        temp_dir: Path | None,
        account_name: str | None,
        fast: bool,
    ) -> None:
        found = find_bin_dir(bin_dir)
        account = find_account(account_name)
        with contextlib.ExitStack() as undo:
            private = _TemporaryDir(_temporary_parent(temp_dir, account), account)
            undo.callback(private.close)
            # Opened once: root must not open files by name in a directory that belongs to another account.
            self.log = undo.enter_context((private.path / "server.log").open("a+b"))
            data: _TemporaryDir | _DataDir = private
            self._temporary = {private.path}
            if data_dir is not None:
                data = _DataDir(data_dir, account)
                undo.callback(os.close, data.lock_fd)
            elif fast and temp_dir is None and (memory := memory_parent(account)) is not None:
                # Only the data: programs often may not be run from a file system in memory.
                data = _TemporaryDir(memory, account)
                self._temporary.add(data.path)
                undo.callback(data.close)
            self.watchdog = Watchdog(remove=self._temporary, keep_open={private.lock_fd, data.lock_fd})
            undo.callback(self.watchdog.dismiss)
            self.password = secrets.token_urlsafe(24)
            password_file = private.path / "password"
            _write_secret(password_file, self.password, account)
            self.programs = load_programs(found, account, private.path)
            for directory in self._temporary:
                give_to(account, directory)
            if isinstance(data, _DataDir):
                self.data_dir = data.path
                known = data.read_password(self.programs.major)
                if known is not None:
                    self.password = known
                else:
                    self.programs.initdb(data.path, password_file, self.watchdog, throwaway=False, sync=not fast)
                    # After initdb, which wants an empty directory.
                    _write_secret(data.path / _PASSWORD_FILE, self.password, account)
            else:
                self.data_dir = data.path / "data"
                self.programs.initdb(self.data_dir, password_file, self.watchdog, throwaway=fast, sync=False)
            self._undo = undo.pop_all()

    def log_tail(self) -> str:
        """Return the end of the log."""
        descriptor = self.log.fileno()
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, os.fstat(descriptor).st_size - _TAIL_BYTES))
        return tail.decode(errors="replace").strip() or "(nothing was logged)"

    def close(self) -> None:
        """Remove the temporary files and release the locks."""
        # Before the watchdog is dismissed: if this is interrupted, the watchdog removes the rest.
        for directory in self._temporary:
            remove_tree(directory)
        self._undo.close()


def memory_parent(account: pwd.struct_passwd | None) -> Path | None:
    """Return a file system in memory with enough room; making a database there can be ten times faster."""
    usable = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and can_enter(account, _MEMORY)
    return _MEMORY if usable and shutil.disk_usage(_MEMORY).free >= _MEMORY_ROOM else None


def in_use(data_dir: Path) -> DataDirError:
    """Return the error for a data directory that another server uses."""
    return DataDirError(
        f"data_dir={str(data_dir)!r} is in use by another running server. Stop it, or choose another path."
    )


class _TemporaryDir:
    """A new directory of mode 0700, locked as long as this process or its watchdog lives."""

    def __init__(self, parent: Path, account: pwd.struct_passwd | None) -> None:
        _remove_abandoned(parent, account)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self.lock_fd = _lock(self.path)

    def close(self) -> None:
        remove_tree(self.path)
        os.close(self.lock_fd)


class _DataDir:
    """A data directory that the user named: created when missing, never removed, used by one server at a time."""

    def __init__(self, path: Path, account: pwd.struct_passwd | None) -> None:
        self.path = path
        self._account = account
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                give_to(account, path)
            self.lock_fd = _lock(path, _LOCK_TIMEOUT)
        except BlockingIOError:
            raise in_use(path) from None
        except OSError as error:
            raise self._unusable(error) from error

    def read_password(self, major: int) -> str | None:
        """Return the password of the data made by `major`, or `None` for an empty directory; raise for others."""
        try:
            self._check_owner()
            if not any(self.path.iterdir()):
                return None
            made_by = (self.path / "PG_VERSION").read_text().strip()
            if made_by != str(major):
                raise DataDirError(
                    f"data_dir={str(self.path)!r} was made by PostgreSQL {made_by}, and these binaries are PostgreSQL "
                    f"{major}. Name the binaries of {made_by} with bin_dir=, migrate the directory with pg_upgrade, or "
                    "choose another data_dir."
                )
            return (self.path / _PASSWORD_FILE).read_text().strip()
        except FileNotFoundError as error:
            raise DataDirError(
                f"data_dir={str(self.path)!r} is not empty, and EmbeddedPostgres did not make it: "
                f"{error.filename!r} is missing. Choose an empty directory or a path that does not exist yet."
            ) from None
        except OSError as error:
            raise self._unusable(error) from error

    def _check_owner(self) -> None:
        account = self._account
        owner = os.geteuid() if account is None else account.pw_uid
        if self.path.stat().st_uid != owner or not can_enter(account, self.path):
            who = "the current user" if account is None else f"the account {account.pw_name!r}"
            raise DataDirError(
                f"data_dir={str(self.path)!r} does not belong to {who}, which runs the server, or lies in a directory "
                "that this account cannot enter. Choose a path that does not exist yet, in a directory open to it."
            )

    def _unusable(self, error: OSError) -> DataDirError:
        return DataDirError(f"data_dir={str(self.path)!r} cannot be used: {error}. Choose another path.")


def _temporary_parent(wanted: Path | None, account: pwd.struct_passwd | None) -> Path:
    """Return a directory for temporary files that `account` can enter; `wanted` allows no other."""
    usual = wanted or Path(tempfile.gettempdir())
    if account is None:
        return usual
    # The temporary directory of root may be closed to other accounts.
    for parent in (usual,) if wanted is not None else (usual, *_PUBLIC):
        if can_enter(account, parent):
            return parent
    raise AccountError(
        f"The account {account.pw_name!r}, which runs the server, cannot enter the temporary directory "
        f"{str(usual)!r}. Name one that it can enter with temp_dir= or the environment variable TMPDIR."
    )


def _lock(directory: Path, timeout: float = 0.0) -> int:
    """Return a descriptor that holds the lock of `directory`; raise `BlockingIOError` when another process has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                os.close(descriptor)
                raise
            time.sleep(_LOCK_POLL)
        else:
            return descriptor


def _remove_abandoned(parent: Path, account: pwd.struct_passwd | None) -> None:
    """Remove directories whose owner died together with its watchdog, as when a container is killed.

    A server that still runs in one notices within a minute that its files are gone, and shuts down.
    """
    owners = {os.geteuid()} if account is None else {os.geteuid(), account.pw_uid}
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = directory.lstat()
            if status.st_uid in owners and time.time() - status.st_mtime > _LOCKED_AFTER:
                lock_fd = _lock(directory)
                shutil.rmtree(directory, ignore_errors=True)
                os.close(lock_fd)


def _write_secret(path: Path, text: str, account: pwd.struct_passwd | None) -> None:
    # O_EXCL: root must not follow a link that the owner of the directory may have put there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{text}\n")
    give_to(account, path)
