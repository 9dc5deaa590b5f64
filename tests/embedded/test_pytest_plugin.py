"""The pytest plugin, in test runs of its own."""

import asyncio
import importlib.util
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from faststream_outbox.embedded import EmbeddedPostgres

Fetch = Callable[..., Any]
StartPython = Callable[..., subprocess.Popen[str]]

TESTS = textwrap.dedent(
    """
    import asyncio, asyncpg, pytest
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    @pytest.mark.parametrize("number", range(3))
    async def test_database_is_fresh(outbox_postgres, number):
        engine = create_async_engine(outbox_postgres.url("asyncpg"))
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE only_once (id int)"))
        await engine.dispose()

    def test_sync_test_has_one_too(outbox_postgres):
        async def use():
            global connection
            connection = await asyncpg.connect(outbox_postgres.dsn)
            await connection.execute("CREATE TABLE only_once (id int)")
            # Left open: dropping the database must not wait for it.
        asyncio.run(use())

    def test_server_is_the_one_of_the_run(outbox_postgres, outbox_postgres_server):
        assert outbox_postgres.name != outbox_postgres_server.name
        with open("servers", "a") as file:
            file.write(outbox_postgres_server.dsn + "\\n")
        with open("databases", "a") as file:
            file.write(outbox_postgres.dsn + "\\n")
    """
)


@pytest.fixture
def run_tests(start_python: StartPython, tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    (tmp_path / "test_inner.py").write_text(TESTS)

    def run(*arguments: str, **env: str) -> str:
        process = start_python("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, cwd=tmp_path, env=env)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
        return output

    return run


def test_each_test_has_a_fresh_database(
    run_tests: Callable[..., str], tmp_path: Path, is_listening: Callable[[int], bool]
) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["faststream_outbox.embedded.pytest_plugin"]\n')
    assert "5 passed" in run_tests()
    port = urlsplit((tmp_path / "servers").read_text()).port
    assert port is not None
    assert not is_listening(port)


def test_workers_of_xdist_have_servers_of_their_own(run_tests: Callable[..., str], tmp_path: Path) -> None:
    if importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed")
    (tmp_path / "test_inner_too.py").write_text(TESTS)
    plugin = "faststream_outbox.embedded.pytest_plugin"
    assert "10 passed" in run_tests("-p", plugin, "-n", "2", "--dist", "loadfile")
    assert len(set((tmp_path / "servers").read_text().split())) == 2


def test_named_server_is_used_instead_and_left_clean(
    run_tests: Callable[..., str], tmp_path: Path, system_bin_dir: Path, open_dir: Path, fetch: Fetch
) -> None:
    databases = "SELECT array_agg(datname ORDER BY datname) FROM pg_database"
    with EmbeddedPostgres(bin_dir=system_bin_dir, temp_dir=open_dir, fast=True) as server:
        before = asyncio.run(fetch(server.dsn, databases))
        plugin = "faststream_outbox.embedded.pytest_plugin"
        assert "5 passed" in run_tests("-p", plugin, OUTBOX_TEST_DSN=server.url("psycopg"))
        assert asyncio.run(fetch(server.dsn, databases)) == before
        assert (tmp_path / "servers").read_text().strip() == server.dsn
