"""Which binaries run, and under which account: an unprivileged one when Python is root, else the current user."""

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from faststream_outbox._installation import needs_extra
from faststream_outbox.embedded import AccountError, BinariesNotFoundError, DataDirError, EmbeddedPostgres
from faststream_outbox.embedded.programs import find_bin_dir

Fetch = Callable[..., Any]
StartPython = Callable[..., "subprocess.Popen[str]"]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change accounts")
NO_ACCOUNT = 54321


def test_missing_wheel_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BinariesNotFoundError, match=re.escape(needs_extra("EmbeddedPostgres", "embedded"))):
        EmbeddedPostgres().start()


async def test_other_installation_runs(system_bin_dir: Path, open_dir: Path, fetch: Fetch) -> None:
    with EmbeddedPostgres(bin_dir=system_bin_dir, temp_dir=open_dir) as server:
        version = await fetch(server.dsn, "SHOW server_version")
        assert version.split(".")[0] == system_bin_dir.parent.name
        server.stop("immediate")
        server.start()
        assert await fetch(server.dsn, "SHOW server_encoding") == "UTF8"


def test_directory_without_binaries_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BinariesNotFoundError, match="holds no postgres and no initdb"):
        EmbeddedPostgres(bin_dir=tmp_path).start()


def test_binaries_that_do_not_run_are_an_error(program_dir: Path, open_dir: Path) -> None:
    for program in ("postgres", "initdb"):
        (program_dir / program).write_text("#!/bin/sh\necho 'wrong architecture' >&2\nexit 1\n")
        (program_dir / program).chmod(0o755)
    with pytest.raises(BinariesNotFoundError, match="wrong architecture"):
        EmbeddedPostgres(bin_dir=program_dir, temp_dir=open_dir).start()
    assert not any(open_dir.iterdir())


@needs_root
def test_root_runs_the_server_under_the_named_account(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    with EmbeddedPostgres(temp_dir=open_dir, fast=True, account="nobody") as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        facts = dict(line.split(":", 1) for line in status.splitlines())
        assert facts["Uid"].split() == [str(nobody.pw_uid)] * 4
        assert facts["Gid"].split() == [str(nobody.pw_gid)] * 4
        assert facts["Groups"].split() == []


@needs_root
async def test_binaries_the_account_cannot_reach_are_copied_and_nothing_is_loosened(
    program_dir: Path, fetch: Fetch
) -> None:
    real = find_bin_dir(None)
    locked = program_dir / "locked"
    locked.mkdir(mode=0o700)
    # Root passes through the closed directory, the account does not.
    (locked / "site").symlink_to(real.parents[2])
    bin_dir = locked / "site" / real.relative_to(real.parents[2])
    watched = [locked, *real.parents[:4], real / "postgres", real / "initdb"]
    before = [path.stat().st_mode for path in watched]
    temp_dir = program_dir / "temp"
    temp_dir.mkdir()

    with EmbeddedPostgres(bin_dir=bin_dir, temp_dir=temp_dir, fast=True) as server:
        running = Path(await fetch(server.dsn, "SELECT setting FROM pg_config WHERE name = 'BINDIR'"))
        assert running.is_relative_to(temp_dir)
        # A library that the server loads from the copy while it runs.
        await fetch(server.dsn, "CREATE EXTENSION pg_trgm", "SELECT show_trgm('outbox')")
        assert [path.stat().st_mode for path in watched] == before
    assert list(temp_dir.iterdir()) == []
    assert [path.stat().st_mode for path in watched] == before


@needs_root
def test_account_that_does_not_exist_is_an_error(open_dir: Path) -> None:
    with pytest.raises(AccountError, match=r"no unprivileged account 'no-such-account'.*account="):
        EmbeddedPostgres(temp_dir=open_dir, account="no-such-account").start()
    with pytest.raises(AccountError, match="no unprivileged account 'root'"):
        EmbeddedPostgres(temp_dir=open_dir, account="root").start()


@needs_root
def test_directories_closed_to_the_account_are_errors(open_dir: Path) -> None:
    closed = open_dir / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(DataDirError, match="cannot enter"):
        EmbeddedPostgres(data_dir=closed / "data").start()
    with pytest.raises(AccountError, match="cannot enter the temporary directory"):
        EmbeddedPostgres(temp_dir=closed).start()
    with pytest.raises(DataDirError, match="does not belong to the account"):
        EmbeddedPostgres(data_dir=closed).start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert closed.stat().st_uid == 0


@needs_root
def test_default_temporary_directory_of_root_may_be_closed(open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = open_dir / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", str(closed))
    with EmbeddedPostgres() as server:
        assert server.pid is not None


@pytest.fixture
def public_python(start_python: StartPython) -> StartPython:
    """Starts an interpreter that any account can read, with our packages."""
    packages = [str(Path(__file__).parents[2]), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {"PYTHONPATH": os.pathsep.join(packages), "HOME": "/"}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, shutil.which(version, path=os.defpath), shutil.which("python3", path=os.defpath)):
        if python is not None and _runs_for_nobody(python, environment):
            return partial(start_python, python=python, env=environment, cwd="/", extra_groups=[])
    pytest.skip("there is no interpreter that an unprivileged account can run with our packages")


def _runs_for_nobody(python: str, environment: dict[str, str]) -> bool:
    try:
        probe = subprocess.run(
            [python, "-c", "import asyncpg, sqlalchemy.ext.asyncio, faststream_outbox.embedded"],
            env=environment,
            cwd="/",
            user=pwd.getpwnam("nobody").pw_uid,
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return probe.returncode == 0


SCENARIO = textwrap.dedent(
    """
    import asyncio, asyncpg, os, sys
    from faststream_outbox.embedded import EmbeddedPostgres

    async def fetch(dsn, *statements):
        connection = await asyncpg.connect(dsn)
        values = [await connection.fetchval(statement) for statement in statements]
        await connection.close()
        return values[-1]

    async def main():
        async with EmbeddedPostgres(temp_dir=sys.argv[1], settings={"fsync": False}) as server:
            print(os.stat(f"/proc/{server.pid}").st_uid)
            await fetch(server.dsn, "CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
            server.stop("immediate")
            server.start()
            print(await fetch(server.dsn, "SELECT count(*) FROM kept"))
        with EmbeddedPostgres(data_dir=sys.argv[1] + "/data") as server:
            print(await fetch(server.create_database().dsn, "SELECT 1"))

    asyncio.run(main())
    """
)


@needs_root
def test_normal_user_just_runs_it(public_python: StartPython, open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(open_dir, nobody.pw_uid, nobody.pw_gid)
    process = public_python("-c", SCENARIO, str(open_dir), user=nobody.pw_uid, group=nobody.pw_gid)
    output, errors = process.communicate(timeout=120)
    assert (output.split(), errors) == ([str(nobody.pw_uid), "1", "1"], "")
    assert [path.name for path in open_dir.iterdir()] == ["data"]


@needs_root
def test_user_without_an_account_is_an_error(public_python: StartPython) -> None:
    script = "from faststream_outbox.embedded import EmbeddedPostgres; EmbeddedPostgres().start()"
    process = public_python("-c", script, user=NO_ACCOUNT, group=NO_ACCOUNT)
    _, errors = process.communicate(timeout=120)
    assert f"The current user id {NO_ACCOUNT} has no account on this machine" in errors
