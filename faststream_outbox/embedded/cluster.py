"""A PostgreSQL data directory: made once with `initdb`, recognised when it is used again."""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from faststream_outbox.embedded.account import Account, switch_to
from faststream_outbox.embedded.binaries import Binaries
from faststream_outbox.embedded.environment import clean_environment
from faststream_outbox.embedded.errors import DataDirError, ServerStartError

SUPERUSER = "postgres"
_PASSWORD_FILE = "faststream_outbox_password"  # noqa: S105 - the name of the file, not a password
_BUILTIN_LOCALE_SINCE = 17
_INITDB_TIMEOUT = 120.0
_INITDB_PATIENCE = 5.0
# A server whose owner was just killed needs a moment to shut down and let go of its directory.
_LOCK_PATIENCE = 3.0
_LOCK_POLL = 0.05


class PersistentDataDir:
    """A data directory that the user named: created when missing, kept for ever, used by one server at a time."""

    def __init__(self, path: Path, account: Account | None) -> None:
        self.path = path
        self._account = account
        self._create_if_missing()
        self.lock_fd = self._lock()

    def is_made(self, major: int) -> bool:
        """Whether `initdb` already ran here; raises when this directory is not one that we can use."""
        try:
            self._check_owner()
            version_file = self.path / "PG_VERSION"
            if not version_file.is_file():
                self._check_empty()
                return False
            made_by = version_file.read_text().strip()
        except OSError as error:
            raise DataDirError(f"data_dir={str(self.path)!r} cannot be read: {error}") from error
        if made_by != str(major):
            raise DataDirError(
                f"data_dir={str(self.path)!r} was made by PostgreSQL {made_by}, and these binaries are PostgreSQL "
                f"{major}. Name the binaries of {made_by} with bin_dir=, migrate the directory with pg_upgrade, or "
                "choose another data_dir."
            )
        return True

    def read_password(self) -> str:
        """Return the password that was chosen when the directory was made."""
        try:
            descriptor = os.open(self.path / _PASSWORD_FILE, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(descriptor, encoding="ascii") as file:
                return file.read().strip()
        except OSError as error:
            raise DataDirError(
                f"data_dir={str(self.path)!r} holds a PostgreSQL cluster whose password is not known here: "
                f"{_PASSWORD_FILE} is missing or unreadable. Choose a directory that EmbeddedPostgres made, or one "
                "that does not exist yet."
            ) from error

    def write_password(self, password: str) -> None:
        """Keep the password for the next start; `initdb` wants an empty directory, so this comes after it."""
        # O_EXCL: as root we write into a directory that another account owns, and must not follow what it put there.
        descriptor = os.open(self.path / _PASSWORD_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            if self._account is not None:
                os.fchown(descriptor, self._account.uid, self._account.gid)
            file.write(f"{password}\n")
            file.flush()
            os.fsync(descriptor)

    def release(self) -> None:
        """Let another server use the directory."""
        os.close(self.lock_fd)

    def _create_if_missing(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
                if self._account is not None:
                    os.chown(self.path, self._account.uid, self._account.gid)
        except OSError as error:
            raise DataDirError(f"data_dir={str(self.path)!r} cannot be created: {error}") from error
        if not self.path.is_dir():
            raise DataDirError(f"data_dir={str(self.path)!r} is not a directory. Choose another path.")
        if self._account is not None and not self._account.can_enter(self.path.parent):
            raise DataDirError(
                f"data_dir={str(self.path)!r} lies in a directory that the account {self._account.name!r}, which runs "
                "the server, cannot enter. Choose a path outside it, or another account with account=."
            )

    def _check_owner(self) -> None:
        uid = os.geteuid() if self._account is None else self._account.uid
        if self.path.stat().st_uid != uid:
            who = "the current user" if self._account is None else f"the account {self._account.name!r}"
            raise DataDirError(
                f"data_dir={str(self.path)!r} does not belong to {who}, which runs the server. "
                "Choose a path that does not exist yet, or change the owner of the directory."
            )

    def _check_empty(self) -> None:
        if any(self.path.iterdir()):
            raise DataDirError(
                f"data_dir={str(self.path)!r} is not empty and is not a PostgreSQL data directory. "
                "Choose an empty directory or a path that does not exist yet."
            )

    def _lock(self) -> int:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise DataDirError(f"data_dir={str(self.path)!r} cannot be read: {error}") from error
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_POLL)
                    continue
                os.close(descriptor)
                raise in_use(self.path) from None
            except OSError:
                # No locks on this file system; PostgreSQL's own lock file still keeps a second server out.
                return descriptor
            return descriptor


def in_use(path: Path) -> DataDirError:
    """Say that a live server holds the directory."""
    return DataDirError(
        f"data_dir={str(path)!r} is in use by another running server. Stop that server, or choose another directory."
    )


def run_initdb(
    binaries: Binaries,
    data_dir: Path,
    account: Account | None,
    *,
    password_file: Path,
    sync: bool,
    on_start: Callable[[int], None],
) -> None:
    """Make a data directory whose superuser has the password in `password_file`."""
    command = [
        binaries.initdb,
        f"--pgdata={data_dir}",
        f"--username={SUPERUSER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        # The same order and the same speed on every machine, whatever locales it has.
        "--locale=C",
    ]
    if binaries.major >= _BUILTIN_LOCALE_SINCE:
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    if not sync:
        command.append("--no-sync")
    # A session of its own: Ctrl-C in the terminal must reach us, not half of a running initdb.
    process = subprocess.Popen(
        command,
        env=clean_environment(),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **switch_to(account),
    )
    try:
        on_start(process.pid)
        output, _ = process.communicate(timeout=_INITDB_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ServerStartError(
            f"initdb took longer than {_INITDB_TIMEOUT:.0f} seconds to make {str(data_dir)!r}."
        ) from None
    finally:
        if process.poll() is None:
            _end_initdb(process)
    if process.returncode != 0:
        raise ServerStartError(f"initdb could not make the data directory {str(data_dir)!r}:\n{output.strip()}")


def _end_initdb(process: subprocess.Popen[str]) -> None:
    # In good order if possible: a killed postgres under it leaves its shared memory behind.
    process.terminate()
    try:
        process.communicate(timeout=_INITDB_PATIENCE)
    except subprocess.TimeoutExpired:
        # The whole group, because initdb runs postgres as its child.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
