"""Fixtures for the tests of the embedded server."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from faststream_outbox.embedded import EmbeddedPostgres
from faststream_outbox.embedded.directories import memory_parent
from tests.waiting import until

_CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every account can enter; pytest's own ones are closed to all but the current user."""
    # In memory where possible, because these tests make dozens of clusters.
    with _open_dir_in(memory_parent(None)) as directory:
        yield directory


@pytest.fixture
def program_dir() -> Iterator[Path]:
    """The same on disk, from where programs can be run."""
    with _open_dir_in(None) as directory:
        yield directory


@contextlib.contextmanager
def _open_dir_in(parent: Path | None) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="outbox-embedded-tests-", dir=parent))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """One server for the tests of a module that do not change it."""
    with EmbeddedPostgres(fast=True) as running:
        yield running


@pytest.fixture(scope="session")
def system_bin_dir() -> Path:
    """The binaries of a PostgreSQL that the operating system's packages installed."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not installed:
        pytest.skip("no PostgreSQL server of the operating system is installed")
    return installed[-1].parent


@pytest.fixture(scope="session")
def fetch() -> Callable[..., Any]:
    """A function that executes statements on one connection and returns the first value of the last one."""

    async def run(dsn: str, *statements: str) -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return run


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """`until` for tests without an event loop."""

    def wait(is_true: Callable[[], bool]) -> None:
        asyncio.run(until(is_true))

    return wait


@pytest.fixture(scope="session")
def is_listening() -> Callable[[int], bool]:
    """A function that returns whether a process accepts connections on a loopback port."""

    def check(port: int) -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
        return False

    return check


@pytest.fixture
def start_python() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """A function that starts Python as a terminal does: in its own process group, with the default action of Ctrl-C."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
        sigint: signal.Handlers = signal.SIG_DFL,
        **options: Any,
    ) -> subprocess.Popen[str]:
        packages = [str(_CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        inherited = {name: value for name, value in os.environ.items() if name != "OUTBOX_TEST_DSN"}
        process = subprocess.Popen(
            [python, *arguments],
            env={**inherited, "PYTHONPATH": os.pathsep.join(packages), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Children inherit an ignored SIGINT, which a shell without job control gives to its background jobs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, sigint),  # noqa: PLW1509 - calls nothing but sigaction
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
