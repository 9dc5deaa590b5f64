"""Pytest fixtures: one server of a kind for a worker, started on first use; and a report of those that were missing."""

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import psutil
import pytest

from tests.pooler import PgBouncer
from tests.servers.chromium import Chromium
from tests.servers.kafka import Kafka, KafkaCluster, KafkaElsewhere
from tests.servers.kafka_mock import KafkaMock
from tests.servers.nats import Nats
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis
from tests.servers.server import Installable, Server

SERVERS: tuple[type[Server], ...] = (Kafka, KafkaMock, Nats, RabbitMQ, Redis)
_ALL: tuple[type[Installable], ...] = (*SERVERS, Chromium, PgBouncer)
_KNOWN = {kind.name: kind for kind in _ALL}
_LACKED = "lacked"
_S = TypeVar("_S", bound=Server)


class Servers:
    """The servers of one worker."""

    def __init__(self) -> None:
        self._servers: dict[type[Server], Server] = {}

    async def up(self, kind: type[_S], request: pytest.FixtureRequest) -> _S:
        """Have one that runs, whatever the last test did to it; or skip the test that asks."""
        need(kind, request)
        if kind not in self._servers:
            self._servers[kind] = kind()
        server = self._servers[kind]
        assert isinstance(server, kind)
        await server.start()
        return server

    def end(self) -> None:
        for server in self._servers.values():
            end(server)


def end(server: Server) -> None:
    """End a server, and make sure that nothing of it is left."""
    mains = [psutil.Process(process.pid) for process in server.processes]
    family = [*mains, *(child for main in mains for child in main.children(recursive=True))]
    server.end()
    _, left = psutil.wait_procs(family, timeout=10)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def need(kind: type[Installable], request: pytest.FixtureRequest) -> None:
    """Skip a test on a machine that lacks what it needs, and have that told at the end."""
    if lacks := kind.lacks():
        # Workers of xdist send this along with the outcome.
        request.node.user_properties.append((_LACKED, kind.name))
        pytest.skip(f"{kind.name}: {lacks}")


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.end()


@pytest.fixture
async def kafka_server(servers: Servers, request: pytest.FixtureRequest) -> KafkaCluster:
    """A Kafka to send to: the one of KAFKA_BOOTSTRAP_SERVERS, or our own."""
    return KafkaElsewhere.given() or await servers.up(Kafka, request)


@pytest.fixture
async def own_kafka_server(servers: Servers, request: pytest.FixtureRequest) -> Kafka:
    """A Kafka to stop and to kill."""
    return await servers.up(Kafka, request)


@pytest.fixture
async def kafka_mock(servers: Servers, request: pytest.FixtureRequest) -> KafkaMock:
    return await servers.up(KafkaMock, request)


@pytest.fixture
async def nats_server(servers: Servers, request: pytest.FixtureRequest) -> Nats:
    return await servers.up(Nats, request)


@pytest.fixture
async def rabbitmq_server(servers: Servers, request: pytest.FixtureRequest) -> RabbitMQ:
    return await servers.up(RabbitMQ, request)


@pytest.fixture
async def redis_server(servers: Servers, request: pytest.FixtureRequest) -> Redis:
    return await servers.up(Redis, request)


@pytest.fixture
def chromium(request: pytest.FixtureRequest) -> str:
    """The path of a real browser."""
    need(Chromium, request)
    return str(Chromium.path())


@pytest.fixture
def pgbouncer(request: pytest.FixtureRequest) -> None:
    need(PgBouncer, request)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = Counter(
        str(value)
        for report in terminalreporter.getreports("skipped")
        for name, value in report.user_properties
        if name == _LACKED and report.when == "setup"
    )
    if not skipped:
        return
    terminalreporter.section("servers that this machine lacks")
    for name, number in sorted(skipped.items()):
        kind = _KNOWN[name]
        terminalreporter.line(f"{name}: {kind.lacks()}; {number} skipped. To run them: {kind.how}")
