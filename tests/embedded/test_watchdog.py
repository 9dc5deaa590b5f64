"""A server ends with its owner: after Ctrl-C, an exit, a kill, and for forked children."""

import asyncio
import os
import signal
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from faststream_outbox.embedded import DataDirError, EmbeddedPostgres
from tests.waiting import until

Fetch = Callable[..., Any]
StartPython = Callable[..., subprocess.Popen[str]]
WaitUntil = Callable[[Callable[[], bool]], None]
IsListening = Callable[[int], bool]

OWNER = textwrap.dedent(
    """
    import sys, time
    from faststream_outbox.embedded import EmbeddedPostgres

    with EmbeddedPostgres(temp_dir=sys.argv[1], fast=True) as server:
        print(server.dsn, flush=True)
        time.sleep(60)
    """
)
ASYNC_OWNER = textwrap.dedent(
    """
    import asyncio, sys
    from faststream_outbox.embedded import EmbeddedPostgres

    async def main():
        async with EmbeddedPostgres(temp_dir=sys.argv[1], fast=True) as server:
            print(server.dsn, flush=True)
            await asyncio.sleep(60)

    asyncio.run(main())
    """
)
TIDY_OWNER = textwrap.dedent(
    """
    import asyncio, asyncpg, sys, time
    from faststream_outbox.embedded import EmbeddedPostgres

    async def finish_work():
        connection = await asyncpg.connect(server.dsn)
        print(await connection.fetchval("SELECT 'finished'"), flush=True)
        await connection.close()

    with EmbeddedPostgres(temp_dir=sys.argv[1], fast=True) as server:
        try:
            print(server.dsn, flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            asyncio.run(finish_work())
    """
)
FORGETFUL_OWNER = textwrap.dedent(
    """
    import sys
    from faststream_outbox.embedded import EmbeddedPostgres

    server = EmbeddedPostgres(temp_dir=sys.argv[1], fast=True)
    server.start()
    print(server.dsn, flush=True)
    """
)
FORKING_OWNER = textwrap.dedent(
    """
    import asyncio, asyncpg, os, sys, time
    from faststream_outbox.embedded import EmbeddedPostgres, EmbeddedPostgresError

    async def select():
        connection = await asyncpg.connect(server.dsn)
        await connection.close()

    with EmbeddedPostgres(temp_dir=sys.argv[1], fast=True) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            try:
                server.start()
            except EmbeddedPostgresError:
                sys.exit(7)
            sys.exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        asyncio.run(select())
        if os.fork() == 0:
            time.sleep(60)
        print(server.dsn, flush=True)
        time.sleep(60)
    """
)


def read_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    port = urlsplit(process.stdout.readline()).port
    assert port is not None
    return port


@pytest.mark.parametrize("owner", [OWNER, ASYNC_OWNER], ids=["sync", "async"])
def test_ctrl_c_cleans_up(owner: str, start_python: StartPython, open_dir: Path, is_listening: IsListening) -> None:
    process = start_python("-c", owner, str(open_dir))
    port = read_port(process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    # The end by KeyboardInterrupt shows that Python itself cleaned up.
    assert "KeyboardInterrupt" in errors
    assert not is_listening(port)
    assert list(open_dir.iterdir()) == []


def test_ctrl_c_leaves_the_server_to_its_owner(start_python: StartPython, open_dir: Path) -> None:
    process = start_python("-c", TIDY_OWNER, str(open_dir))
    read_port(process)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, "finished\n", "")


@pytest.mark.parametrize("owner", [OWNER, ASYNC_OWNER], ids=["sync", "async"])
def test_ctrl_c_during_the_start_cleans_up(
    owner: str, start_python: StartPython, open_dir: Path, wait_until: WaitUntil
) -> None:
    process = start_python("-c", owner, str(open_dir))
    wait_until(lambda: any(open_dir.glob("*/data/base")))
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert list(open_dir.iterdir()) == []


def test_exit_without_close_cleans_up(start_python: StartPython, open_dir: Path, is_listening: IsListening) -> None:
    process = start_python("-c", FORGETFUL_OWNER, str(open_dir))
    port = read_port(process)
    assert process.wait(timeout=120) == 0
    assert not is_listening(port)
    assert list(open_dir.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_owner_does_not_leave_its_server_running(
    number: signal.Signals,
    start_python: StartPython,
    open_dir: Path,
    is_listening: IsListening,
    wait_until: WaitUntil,
) -> None:
    process = start_python("-c", OWNER, str(open_dir))
    port = read_port(process)
    assert is_listening(port)
    # The whole group: neither server nor watchdog may share it with the owner.
    os.killpg(process.pid, number)
    assert process.wait(timeout=120) == -number
    wait_until(lambda: not is_listening(port) and not list(open_dir.iterdir()))


def test_owner_killed_during_initdb_leaves_nothing_behind(
    start_python: StartPython, open_dir: Path, wait_until: WaitUntil
) -> None:
    process = start_python("-c", OWNER, str(open_dir))
    wait_until(lambda: any(open_dir.glob("*/data/base")))
    process.kill()
    wait_until(lambda: not list(open_dir.iterdir()))


def test_forked_child_neither_stops_the_server_nor_keeps_it_alive(
    start_python: StartPython, open_dir: Path, is_listening: IsListening, wait_until: WaitUntil
) -> None:
    process = start_python("-c", FORKING_OWNER, str(open_dir))
    port = read_port(process)
    process.kill()
    wait_until(lambda: not is_listening(port) and not list(open_dir.iterdir()))
    # The second child is still there, and went on without the server.
    os.killpg(process.pid, signal.SIGKILL)


async def test_data_directory_of_an_owner_killed_during_initdb_can_still_be_used(
    start_python: StartPython, open_dir: Path, fetch: Fetch
) -> None:
    for attempt in range(3):
        data_dir = open_dir / f"data {attempt}"
        process = start_python("-c", OWNER.replace("temp_dir=", "data_dir="), str(data_dir))
        await until((data_dir / "base").exists)
        process.kill()
        try:
            with EmbeddedPostgres(data_dir=data_dir, fast=True) as server:
                assert await fetch(server.dsn, "SELECT 1") == 1
                return
        except DataDirError:
            continue  # the kill came in the moment between the end of initdb and the note of its password
    pytest.fail("The directory could not be used again.")


async def test_data_directory_of_a_killed_owner_can_be_used_at_once(
    start_python: StartPython, open_dir: Path, fetch: Fetch
) -> None:
    owner = OWNER.replace("temp_dir=sys.argv[1], fast=True", "data_dir=sys.argv[1]")
    data_dir = open_dir / "data"
    process = start_python("-c", owner, str(data_dir))
    assert process.stdout is not None
    dsn = (await asyncio.to_thread(process.stdout.readline)).strip()
    await fetch(dsn, "CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (7) RETURNING id")
    process.kill()
    with EmbeddedPostgres(data_dir=data_dir) as server:
        assert await fetch(server.dsn, "SELECT id FROM kept") == 7


def test_no_process_is_left_as_our_child(open_dir: Path) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("this system does not list the children of a process")
    before = children.read_text()
    with EmbeddedPostgres(temp_dir=open_dir, fast=True):
        assert children.read_text() != before
    assert children.read_text() == before
