"""An Apache Kafka in KRaft mode: one node that is broker and controller."""

import os
import shutil
from collections.abc import Mapping
from typing import Protocol

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from tests.servers.kafka_jars import jars
from tests.servers.process import Process, accepts, free_port
from tests.servers.server import Server

ELSEWHERE = "KAFKA_BOOTSTRAP_SERVERS"
_JAVA = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # half the time to start, and tests never run long enough to want more
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_CLUSTER_ID = "b3V0Ym94LW91dGJveC0xMg"


class KafkaCluster(Protocol):
    """Wherever it runs."""

    @property
    def bootstrap_servers(self) -> str: ...

    async def create_topic(self, name: str, partitions: int = 1) -> None: ...


class Kafka(Server):
    """A topic that nobody created is unknown, unless `auto_create_topics`."""

    name = "Kafka"
    how = f"python -m tests.servers.kafka_jars (needs mvn and java), or {ELSEWHERE}=host:port of a running one"

    def __init__(self, *, auto_create_topics: bool = False, settings: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.controller_port = free_port()
        self._auto_create_topics = auto_create_topics
        self._more_settings = settings or {}

    @classmethod
    def lacks(cls) -> str | None:
        if not shutil.which("java"):
            return "there is no java"
        return None if jars().is_dir() else "its jars are not fetched"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def create_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Create one; a setting's dots are underscores here."""
        await _create_topic(self.bootstrap_servers, name, partitions, **settings)

    def configure(self) -> None:
        """Write the settings, which count from the next start on."""
        settings = "\n".join(f"{name}={value}" for name, value in self._settings().items())
        (self.directory / "server.properties").write_text(settings)

    async def prepare(self) -> None:
        self.configure()
        formatting = self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c")

        async def formatted() -> bool:
            return (self.directory / "data" / "meta.properties").exists() and not formatting.runs

        try:
            await formatting.until(formatted, seconds=self.seconds_to_start)
        finally:
            formatting.kill()

    def launch(self) -> Process:
        return self._java("kafka.Kafka")

    async def ready(self) -> bool:
        return await accepts(self.port) and await _answers(self.bootstrap_servers)

    def _java(self, *program: str) -> Process:
        return Process(*_JAVA, "-cp", f"{jars()}/*", *program, f"{self.directory}/server.properties", log=self.log)

    def _settings(self) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.directory / "data",
            "auto.create.topics.enable": str(self._auto_create_topics).lower(),
            # There is no second broker.
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            # As little as it takes.
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "num.network.threads": 1,
            "num.io.threads": 2,
            "background.threads": 1,
            "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
            # A group is complete when its first member asks; tests know who else comes.
            "group.initial.rebalance.delay.ms": 0,
            # After a kill, its former self holds the place for so long.
            "broker.session.timeout.ms": 1000,
            "broker.heartbeat.interval.ms": 200,
            **self._more_settings,
        }


class KafkaElsewhere:
    """One that somebody else runs, and that no test may stop."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    @classmethod
    def given(cls) -> "KafkaElsewhere | None":
        servers = os.environ.get(ELSEWHERE)
        return cls(servers) if servers else None

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        await _create_topic(self.bootstrap_servers, name, partitions)


async def _create_topic(bootstrap_servers: str, name: str, partitions: int, **settings: str) -> None:
    configs = {setting.replace("_", "."): value for setting, value in settings.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, topic_configs=configs)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        answer = await admin.create_topics([topic])
        assert [error[1] for error in answer.topic_errors] == [0], answer
    finally:
        await admin.close()


async def _answers(bootstrap_servers: str) -> bool:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=2000)
    try:
        await admin.start()
        return bool((await admin.describe_cluster())["brokers"])
    except KafkaError:
        return False
    finally:
        await admin.close()
