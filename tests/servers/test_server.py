"""What a test may do to any server."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from tests.servers.kafka_mock import KafkaMock
from tests.servers.nats import Nats
from tests.servers.plugin import Servers, end, need
from tests.servers.process import Process, accepts, ask, free_port, running
from tests.servers.redis import Redis
from tests.servers.server import Server
from tests.waiting import until


# Of the others it is checked when the session ends; they take too long to start to do so twice.
@pytest.mark.parametrize("kind", [KafkaMock, Nats, Redis], ids=lambda kind: kind.__name__)
async def test_nothing_is_left_of_it(kind: type[Server], request: pytest.FixtureRequest) -> None:
    need(kind, request)
    server = kind()
    await server.start()
    [process], directory = server.processes, server.directory
    server.pause()
    end(server)
    assert not psutil.pid_exists(process.pid)
    assert not directory.exists()
    assert not await accepts(server.port)


async def test_one_that_is_paused_holds_its_connections_and_says_nothing(redis_server: Redis) -> None:
    redis_server.pause()
    assert await accepts(redis_server.port), "by the kernel"
    assert await ask(redis_server.port, b"PING\r\n", lines=1, seconds=0.5) is None
    redis_server.resume()
    assert await ask(redis_server.port, b"PING\r\n", lines=1) == b"+PONG\r\n"


async def test_one_that_is_paused_can_be_stopped(redis_server: Redis) -> None:
    redis_server.pause()
    await redis_server.stop()
    assert not redis_server.runs


@pytest.mark.parametrize("left", ["pause", "stop", "kill"])
async def test_a_server_that_a_test_left_down_is_up_for_the_next_test(
    servers: Servers, request: pytest.FixtureRequest, left: str
) -> None:
    server = await servers.up(Redis, request)
    if left == "pause":
        server.pause()
    else:
        await getattr(server, left)()
    assert await servers.up(Redis, request) is server
    assert await ask(server.port, b"PING\r\n", lines=1) == b"+PONG\r\n"


async def test_a_program_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)sh ended with 3: .*no, thank you"):
        async with running(free_port(), "sh", "-c", "echo no, thank you; exit 3", log=tmp_path / "log"):
            pytest.fail("it runs")


async def test_a_program_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    process = Process("sleep", "600", log=tmp_path / "log")

    async def never() -> bool:
        return False

    with pytest.raises(RuntimeError, match=r"sleep was not ready in 0\.1 s"):
        await process.until(never, seconds=0.1)
    process.kill()
    assert not psutil.pid_exists(process.pid)


async def test_a_program_dies_with_whoever_started_it(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from tests.servers.process import Process;"
        " print(Process('sleep', '600', log=Path(sys.argv[1])).pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path / "log"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await starter.communicate()
    await until(lambda: not psutil.pid_exists(int(output)))
