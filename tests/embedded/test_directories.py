"""A data directory that outlives its server, and temporary directories that do not outlive their owner."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faststream_outbox.embedded import DataDirError, EmbeddedPostgres, directories
from faststream_outbox.embedded.programs import find_account

Fetch = Callable[..., Any]


def modes_of_files_with(text: str, directory: Path) -> list[int]:
    files = [file for file in directory.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]
    return [stat.S_IMODE(file.stat().st_mode) for file in files]


@pytest.fixture
def data_dir(open_dir: Path) -> Path:
    return open_dir / "made" / "on demand"


@pytest.fixture
def used_data_dir(data_dir: Path) -> Path:
    with EmbeddedPostgres(data_dir=data_dir, fast=True):
        pass
    return data_dir


async def test_data_and_password_survive(data_dir: Path, fetch: Fetch) -> None:
    with EmbeddedPostgres(data_dir=data_dir) as first:
        await fetch(first.dsn, "CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (7) RETURNING id")
        password = first.dsn.split(":")[2].split("@")[0]
    with EmbeddedPostgres(data_dir=data_dir) as second:
        assert await fetch(second.dsn, "SELECT id FROM kept") == 7
        assert password in second.dsn
    assert modes_of_files_with(password, data_dir) == [0o600]


def test_directory_of_another_version_is_refused(used_data_dir: Path) -> None:
    (used_data_dir / "PG_VERSION").write_text("12\n")
    with pytest.raises(DataDirError, match=r"made by PostgreSQL 12, .*choose another data_dir"):
        EmbeddedPostgres(data_dir=used_data_dir).start()


def test_directory_in_use_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_LOCK_TIMEOUT", 0.1)
    with EmbeddedPostgres(data_dir=data_dir, fast=True) as first:
        with pytest.raises(DataDirError, match="in use by another running server"):
            EmbeddedPostgres(data_dir=data_dir, fast=True).start()
        assert first.pid is not None


def test_directory_in_use_by_a_server_that_was_started_another_way_is_refused(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only EmbeddedPostgres locks the directory; PostgreSQL's own lock file remains.
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, _operation: None)
    with EmbeddedPostgres(data_dir=data_dir, fast=True) as first:
        with pytest.raises(DataDirError, match="in use by another running server"):
            EmbeddedPostgres(data_dir=data_dir, fast=True).start()
        assert first.pid is not None


def test_directory_of_something_else_is_refused_and_left_alone(open_dir: Path) -> None:
    photos = open_dir / "photos"
    photos.mkdir()
    (photos / "cat.jpg").touch()
    if os.geteuid() == 0:
        account = find_account(None)
        assert account is not None
        os.chown(photos, account.pw_uid, account.pw_gid)
    with pytest.raises(DataDirError, match="EmbeddedPostgres did not make it"):
        EmbeddedPostgres(data_dir=photos).start()
    assert [file.name for file in photos.iterdir()] == ["cat.jpg"]


def test_cluster_of_unknown_password_is_refused(used_data_dir: Path) -> None:
    (used_data_dir / "faststream_outbox_password").unlink()
    with pytest.raises(DataDirError, match=r"faststream_outbox_password. is missing"):
        EmbeddedPostgres(data_dir=used_data_dir).start()


def test_file_instead_of_a_directory_is_refused(open_dir: Path) -> None:
    (open_dir / "file").touch()
    with pytest.raises(DataDirError, match="Not a directory"):
        EmbeddedPostgres(data_dir=open_dir / "file").start()


def test_directories_of_dead_owners_are_removed_and_others_are_not(open_dir: Path) -> None:
    names = {f"{directories.PREFIX}{owner}" for owner in ("dead", "alive", "young")} | {"else"}
    for name in names:
        (open_dir / name / "data").mkdir(parents=True)
        if not name.endswith("young"):
            os.utime(open_dir / name, (0, 0))
    alive = os.open(open_dir / f"{directories.PREFIX}alive", os.O_RDONLY)
    fcntl.flock(alive, fcntl.LOCK_EX)
    with EmbeddedPostgres(temp_dir=open_dir, fast=True):
        pass
    os.close(alive)
    assert {path.name for path in open_dir.iterdir()} == names - {f"{directories.PREFIX}dead"}
