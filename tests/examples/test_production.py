"""examples/production as it is deployed: the commands of its compose file, as processes, on Postgres and Kafka."""

import asyncio
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaConsumer
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.examples.test_production_files import COMPOSE, DOCKERFILE, FOLDER, ROOT, seconds
from tests.servers.kafka import Kafka, KafkaCluster
from tests.servers.plugin import need
from tests.servers.process import Process, free_port
from tests.waiting import until

SCRIPTS = Path(sys.executable).parent


class Shop:
    """The processes of the service, started by the commands of its compose file."""

    def __init__(self, database: Database, kafka: str, topic: str, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._variables = os.environ | {
            "DATABASE_URL": database.url("asyncpg"),
            "RELAY_DATABASE": database.dsn,
            "KAFKA": f"kafka://{kafka}",
            "OUTBOX_ROUTES": json.dumps({"confirmed": topic}),
            "PYTHONPATH": str(FOLDER),
            "PYTHONUNBUFFERED": "1",
        }
        self.ports: dict[str, int] = {}
        self.processes: dict[str, Process] = {}

    def start(self, role: str) -> Process:
        """Start what the role runs, on a port of this test, and with the file of the checkout."""
        port = self.ports.setdefault(role, free_port())
        program, *arguments = COMPOSE["services"][role]["command"]
        here = {"/etc/shop/relay.toml": str(FOLDER / "relay.toml"), "0.0.0.0": "127.0.0.1", "8000": str(port)}  # noqa: S104
        command = [sys.executable] if program == "python" else [str(SCRIPTS / program)]
        process = Process(
            *command,
            *(here.get(argument, argument) for argument in arguments),
            log=self.log(role),
            cwd=self._folder,
            env=self._variables | {"OUTBOX_HEALTH": f"127.0.0.1:{port}"},
        )
        self._stack.callback(process.kill)
        self.processes[role] = process
        return process

    def log(self, role: str) -> Path:
        return self._folder / f"{role}.log"

    async def migrate(self) -> None:
        process = self.start("migrate")
        await until(lambda: not process.runs)
        assert process._popen.returncode == 0, self.log("migrate").read_text()

    async def ready(self, role: str) -> None:
        """Wait until the probe of the compose file answers well."""
        _, program, *arguments, _, path = COMPOSE["services"][role]["healthcheck"]["test"]
        assert program == "python"

        async def probe() -> int:
            asking = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, str(self.ports[role]), path,
                env=self._variables, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            return await asking.wait()

        assert await self.get(role, "/health/nothing") in {0, 404}
        await until(probe, lambda status: status == 0)
        assert await self.get(role, "/health/live") in {200, 204}

    async def get(self, role: str, path: str) -> int:
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{self.ports[role]}{path}", timeout=60)).status_code
        except httpx.TransportError:
            return 0

    async def order(self, product: str) -> int:
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{self.ports['web']}/orders"
            answer = await client.post(url, json={"product": product}, timeout=60)
        assert answer.status_code == 201
        return int(answer.json()["id"])

    async def stop(self, role: str) -> None:
        """Send SIGTERM; the process ends by itself within the grace period of the compose file."""
        process = self.processes[role]
        process._popen.terminate()
        # On a machine with other work, wait longer than the platform would; it is the program that must not hang.
        await until(lambda: not process.runs, seconds=2 * seconds(COMPOSE["services"][role]["stop_grace_period"]))
        # uvicorn ends by the signal that it was stopped by, after it has drained.
        assert process._popen.returncode in {0, -15}, self.log(role).read_text()
        assert "Traceback" not in self.log(role).read_text()


@contextmanager
def shop_on(database: Database, folder: Path, kafka: str = "127.0.0.1:1", topic: str = "none") -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(database, kafka, topic, folder, stack)


@pytest.fixture
async def outbox(outbox_postgres: Database) -> Any:
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    yield PostgresBackend(engine)
    await engine.dispose()


async def test_an_order_goes_from_the_web_through_a_worker_and_the_relay_to_kafka(
    outbox_postgres: Database, outbox: PostgresBackend, kafka_server: KafkaCluster, tmp_path: Path
) -> None:
    topic = f"confirmed-{os.getpid()}"
    await kafka_server.create_topic(topic, 6)
    with shop_on(outbox_postgres, tmp_path, kafka_server.bootstrap_servers, topic) as shop:
        await shop.migrate()
        for role in ("web", "worker", "relay"):
            shop.start(role)
        for role in ("web", "worker", "relay"):
            await shop.ready(role)
        order = await shop.order("tea")
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            message = await asyncio.wait_for(consumer.getone(), 90)
        finally:
            await consumer.stop()
        assert (message.key, json.loads(message.value)) == (str(order).encode(), {"order_id": order, "product": "tea"})
        assert await outbox.one("SELECT status FROM orders WHERE id = :id", id=order) == "confirmed"
        await until(lambda: outbox.one("SELECT count(*) FROM outbox"), lambda count: count == 0)
        for role in ("web", "worker", "relay"):
            await shop.stop(role)
    stopped = [json.loads(line) for line in shop.log("relay").read_text().splitlines() if "relay_stopped" in line]
    assert [line["relayed"] for line in stopped] == [1]


async def test_a_worker_that_is_stopped_finishes_what_it_handles_and_leaves_the_rest_free(
    outbox_postgres: Database, outbox: PostgresBackend, tmp_path: Path
) -> None:
    with shop_on(outbox_postgres, tmp_path) as shop:
        await shop.migrate()
        shop.start("web")
        await shop.ready("web")
        orders = [await shop.order(f"tea {number}") for number in range(30)]
        # The handlers of all orders wait for these rows, so that four run and the others wait behind them.
        async with outbox.transaction() as session:
            connection = await session.connection()
            await connection.exec_driver_sql("SELECT * FROM orders FOR UPDATE")
            shop.start("worker")
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE%'"
            await until(lambda: outbox.one(waiting), lambda count: count == 4)
            shop.processes["worker"]._popen.terminate()
            await until(lambda: "Shutting down" in shop.log("worker").read_text())
        await shop.stop("worker")
        confirmed = len(await outbox.run("SELECT id FROM orders WHERE status = 'confirmed'"))
        left = await outbox.run("SELECT acquired_token, attempts_count FROM outbox WHERE queue = 'orders'")
        announced = await outbox.one("SELECT count(*) FROM outbox WHERE queue = 'confirmed'")
        assert 4 <= confirmed == announced
        assert confirmed + len(left) == len(orders)
        assert {(token, attempts) for token, attempts in left} <= {(None, 0)}
        await shop.stop("web")


@pytest.mark.parametrize(("role", "alive", "not_ready"), [("web", 200, 503), ("worker", 204, 500)])
async def test_while_the_database_is_away_a_process_is_alive_and_not_ready(
    tmp_path: Path, role: str, alive: int, not_ready: int
) -> None:
    nowhere = Database("postgresql://shop@127.0.0.1:1/shop")
    with shop_on(nowhere, tmp_path) as shop:
        shop.start(role)
        await until(lambda: shop.get(role, "/health/live"), lambda status: status == alive)
        assert await shop.get(role, "/health/ready") == not_ready


class KafkaOfCompose(Kafka):
    """A Kafka with the settings that the compose file gives its container."""

    def _settings(self) -> dict[str, object]:
        given = {
            name.removeprefix("KAFKA_").lower().replace("_", "."): str(value)
            for name, value in COMPOSE["services"]["kafka"]["environment"].items()
        }
        here = {"kafka:": "127.0.0.1:", "0.0.0.0:": "127.0.0.1:", "9092": self.port, "9093": self.controller_port}
        for name, value in here.items():
            given = {setting: text.replace(name, str(value)) for setting, text in given.items()}
        return {**given, "log.dirs": self.directory / "data"}


async def test_kafka_starts_with_the_settings_of_the_compose_file(request: pytest.FixtureRequest) -> None:
    need(KafkaOfCompose, request)
    async with KafkaOfCompose() as kafka:
        [partitions] = [
            int(word.partition("=")[2])
            for word in COMPOSE["services"]["topics"]["command"]
            if word.startswith("--partitions")
        ]
        await kafka.create_topic("shop.confirmed", partitions)


def pip_lines() -> list[str]:
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    return [line.removeprefix("RUN ") for line in lines if line.startswith("RUN pip")]


@pytest.mark.timeout(600)  # it downloads
def test_the_pip_lines_of_the_dockerfile_install_all_that_the_commands_need(tmp_path: Path) -> None:
    """Run both lines in an environment of their own, as the image would."""
    building, installing = pip_lines()
    venv.create(tmp_path / "venv", with_pip=True)
    wheels = tmp_path / "wheels"
    environment = os.environ | {"PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}"}
    for line in (building, installing):
        here = line.replace("/wheels", str(wheels)).replace("--no-cache-dir", "")
        done = subprocess.run(
            ["sh", "-c", here], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if re.search(r"NewConnectionError|Temporary failure in name resolution", done.stderr):
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
    variables = {"PYTHONPATH": str(FOLDER), "DATABASE_URL": "postgresql+asyncpg://h/d", "PATH": environment["PATH"]}
    for command in (
        "python -c 'import shop.web, shop.worker, shop.migrate, alembic'",
        "faststream-outbox relay --help",
    ):
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    for role in ("web", "worker", "relay", "migrate"):
        assert (tmp_path / "venv" / "bin" / COMPOSE["services"][role]["command"][0]).exists()
