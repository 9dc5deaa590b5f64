"""A server starts, stops, crashes, restarts and cleans up."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from faststream_outbox.embedded import EmbeddedPostgres, EmbeddedPostgresError, PortTakenError, ServerStartError
from faststream_outbox.embedded import server as server_module
from tests.waiting import until

Fetch = Callable[..., Any]


def is_empty(directory: Path) -> bool:
    return not any(directory.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_async_block_runs_a_server_and_leaves_nothing_behind(
    fetch: Fetch, is_listening: Callable[[int], bool]
) -> None:
    server = EmbeddedPostgres(fast=True)
    for _ in ("first", "afresh"):
        async with server:
            assert await fetch(server.dsn, "SELECT 1") == 1
            private_dir = Path(await fetch(server.dsn, "SHOW data_directory")).parent
            assert not is_empty(private_dir)
            port = urlsplit(server.dsn).port
            assert port is not None
        assert not is_listening(port)
        with pytest.raises(FileNotFoundError):
            is_empty(private_dir)
    server.close()


def test_sync_block_runs_a_server_and_leaves_nothing_behind_after_an_exception(
    open_dir: Path, fetch: Fetch, is_listening: Callable[[int], bool]
) -> None:
    ports: list[int] = []

    def fail_inside() -> None:
        with EmbeddedPostgres(temp_dir=open_dir, fast=True) as server:
            assert asyncio.run(fetch(server.dsn, "SELECT 1")) == 1
            ports.append(urlsplit(server.dsn).port or 0)
            raise LookupError

    with pytest.raises(LookupError):
        fail_inside()
    assert not is_listening(ports[0])
    assert is_empty(open_dir)


async def test_stop_and_crash_keep_address_and_data(open_dir: Path, fetch: Fetch) -> None:
    with EmbeddedPostgres(temp_dir=open_dir) as server:
        dsn = server.dsn
        await fetch(dsn, "CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1) RETURNING id")
        server.stop()
        assert server.pid is None
        with pytest.raises(OSError):  # noqa: PT011 - the driver wraps it differently on each system
            await fetch(dsn, "SELECT 1")
        server.start()
        assert server.dsn == dsn
        assert await fetch(dsn, "INSERT INTO kept VALUES (2) RETURNING id") == 2

        server.stop("immediate")
        server.start()
        assert "not properly shut down" in server.log_tail()
        assert await fetch(dsn, "SELECT count(*) FROM kept") == 2


async def test_starts_again_after_its_process_was_killed(open_dir: Path, fetch: Fetch) -> None:
    with EmbeddedPostgres(temp_dir=open_dir) as server:
        connection = await asyncpg.connect(server.dsn)
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        assert server.pid is not None
        # A backend that has not yet noticed the death of its parent holds the old memory.
        os.kill(backend, signal.SIGSTOP)
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.pid is None)
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        await until(lambda: "pre-existing shared memory block" in server.log_tail())
        os.kill(backend, signal.SIGCONT)
        await starting
        assert await fetch(server.dsn, "SELECT 1") == 1
        connection.terminate()


async def test_start_that_takes_too_long_is_an_error(
    open_dir: Path, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedPostgres(temp_dir=open_dir, fast=True) as server:
        server.stop()
        with monkeypatch.context() as impatient:
            impatient.setattr(server_module, "_START_TIMEOUT", 0.0)
            with pytest.raises(ServerStartError, match="not ready after 0 seconds"):
                server.start()
        assert server.pid is None
        server.start()
        assert await fetch(server.dsn, "SELECT 1") == 1


async def test_start_twice_is_one_server(server: EmbeddedPostgres) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid


async def test_cancelled_start_leaves_nothing_behind(open_dir: Path) -> None:
    server = EmbeddedPostgres(temp_dir=open_dir, fast=True)
    starting = asyncio.create_task(server.__aenter__())
    await until(lambda: any(open_dir.glob("*/data")))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert server.pid is None
    assert is_empty(open_dir)


def test_address_before_the_start_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"call start\(\)"):
        _ = EmbeddedPostgres().dsn


async def test_other_users_are_kept_out(server: EmbeddedPostgres, fetch: Fetch) -> None:
    password = urlsplit(server.dsn).password
    assert password is not None
    assert len(password) >= 32
    assert password not in repr(server)
    assert password not in repr(server.database)
    with pytest.raises(asyncpg.InvalidPasswordError):
        await fetch(server.dsn.replace(password, "guess"), "SELECT 1")
    assert await fetch(server.dsn, "SHOW listen_addresses") == "127.0.0.1"
    assert await fetch(server.dsn, "SHOW unix_socket_directories") == ""
    data_dir = Path(await fetch(server.dsn, "SHOW data_directory"))
    assert mode_of(data_dir.parent) == 0o700
    assert mode_of(data_dir) == 0o700


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_process_list_does_not_show_the_password(server: EmbeddedPostgres) -> None:
    password = urlsplit(server.dsn).password
    assert password is not None
    command = Path(f"/proc/{server.pid}/cmdline").read_text()
    assert "listen_addresses" in command
    assert password not in command


async def test_is_durable_unless_fast(open_dir: Path, server: EmbeddedPostgres, fetch: Fetch) -> None:
    with EmbeddedPostgres(temp_dir=open_dir) as durable:
        for name in ("fsync", "full_page_writes"):
            assert await fetch(durable.dsn, f"SHOW {name}") == "on"
            assert await fetch(server.dsn, f"SHOW {name}") == "off"
        verifier = "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'"
        assert (await fetch(durable.dsn, verifier)).startswith("SCRAM-SHA-256$4096:")
        assert (await fetch(server.dsn, verifier)).startswith("SCRAM-SHA-256$1:")


async def test_settings_and_port_reach_the_server(open_dir: Path, fetch: Fetch) -> None:
    settings: dict[str, str | int] = {"max_connections": 17, "autovacuum": False, "work_mem": "5MB"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with EmbeddedPostgres(temp_dir=open_dir, port=port, fast=True, settings=settings) as server:
        assert await fetch(server.dsn, "SHOW port") == str(port)
        assert await fetch(server.dsn, "SHOW max_connections") == "17"
        assert await fetch(server.dsn, "SHOW autovacuum") == "off"
        assert await fetch(server.dsn, "SHOW work_mem") == "5MB"


def test_settings_of_our_own_are_refused() -> None:
    with pytest.raises(ValueError, match="must not contain port"):
        EmbeddedPostgres(settings={"port": 1})


def test_failed_start_shows_the_log_and_leaves_nothing_behind(open_dir: Path) -> None:
    server = EmbeddedPostgres(temp_dir=open_dir, fast=True, settings={"no_such_setting": 1})
    with pytest.raises(ServerStartError, match='unrecognized configuration parameter "no_such_setting"'):
        server.start()
    assert is_empty(open_dir)


def test_fixed_port_that_is_taken_is_an_error(open_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedPostgres(temp_dir=open_dir, fast=True, port=taken.getsockname()[1])
        with pytest.raises(PortTakenError, match="in use"):
            server.start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hold a port for another listener")
def test_port_stays_reserved_while_the_server_is_down(open_dir: Path) -> None:
    with EmbeddedPostgres(temp_dir=open_dir, fast=True) as server:
        server.stop()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", urlsplit(server.dsn).port))
        server.start()
