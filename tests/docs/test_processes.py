"""The files of the page on processes, started by the commands that it names."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.backends import PostgresBackend
from tests.servers.process import Process, free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "processes.md").read_text()
FILES = dict(re.findall(r'^```python title="([\w/.]+)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE))
URL = "postgresql+asyncpg://localhost/app"
COMMANDS = dict(re.findall(r"`uvicorn (shop\.(\w+):app)` runs it", PAGE))


@pytest.fixture
def driver() -> str:
    """The page names this one."""
    return "asyncpg"


@pytest.fixture
def folder(postgres: PostgresBackend, tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace(URL, postgres.engine.url.render_as_string(hide_password=False)))
    return tmp_path


@pytest.fixture
def ports(folder: Path) -> Iterator[dict[str, int]]:
    """Both processes, by the port of each."""
    ports = {role: free_port() for role in COMMANDS.values()}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    with ExitStack() as stack:
        for application, role in COMMANDS.items():
            command = (sys.executable, "-m", "uvicorn", application, "--port", str(ports[role]))
            process = Process(*command, log=folder / f"{role}.log", cwd=folder, env=environment)
            stack.callback(process.kill)
        yield ports


async def test_the_files_are_a_service(postgres: PostgresBackend, ports: dict[str, int]) -> None:
    assert set(FILES) == {"shop/tables.py", "shop/web.py", "shop/worker.py"}
    assert set(ports) == {"web", "worker"}
    worker, web = (f"http://127.0.0.1:{ports[role]}" for role in ("worker", "web"))
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:

        async def status(url: str) -> int:
            try:
                return (await client.get(url)).status_code
            except httpx.TransportError:
                return 0

        await until(lambda: status(f"{worker}/health/ready"), lambda found: found == 204)
        assert await status(f"{worker}/health/live") == 204
        await until(lambda: status(f"{web}/docs"), lambda found: found == 200)
        assert (await client.post(f"{web}/orders/7")).status_code == 200
    await until(postgres.rows, lambda rows: [row.queue for row in rows] == ["confirmed"])


IMPORTS_THE_WORKER = """
import asyncio

from sqlalchemy.ext.asyncio import AsyncSession

from shop.worker import broker, engine


async def main():
    async with broker:
        async with AsyncSession(engine) as session, session.begin():
            await broker.publish(7, queue="orders", key="7", session=session)
        assert await broker.ping(timeout=5.0)
        assert not any(subscriber.running for subscriber in broker.subscribers)
    await engine.dispose()


asyncio.run(main())
"""


async def test_another_process_publishes_by_the_broker_of_the_worker_and_claims_nothing(
    postgres: PostgresBackend, folder: Path
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", IMPORTS_THE_WORKER, env=environment)
    assert await program.wait() == 0
    [row] = await postgres.rows()
    assert (row.queue, row.acquired_token, row.deliveries_count) == ("orders", None, 0)
