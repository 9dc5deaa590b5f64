"""Kafkas of two brokers, with rights, or behind a proxy: for what one broker that trusts everybody cannot show."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import admin as confluent_admin

from tests.servers.kafka import Kafka
from tests.servers.process import Process, free_port

USER, PASSWORD = "relay", "secret"
_acl: Any = confluent_admin  # whose types leave out what it imports


class SecondBroker(Kafka):
    """A broker that another Kafka controls. Its death leaves the controller alone."""

    def __init__(self, first: Kafka) -> None:
        super().__init__()
        self._first = first

    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        return {
            **settings,
            "node.id": 2,
            "process.roles": "broker",
            "controller.quorum.voters": f"1@127.0.0.1:{self._first.controller_port}",
            "listeners": settings["advertised.listeners"],
        }

    async def ready(self) -> bool:
        return await super().ready() and len(await brokers(self.bootstrap_servers)) == 2


class KafkaPair(Kafka):
    """Two brokers. The first is the controller and always there; what is done to the pair is done to the second."""

    def __init__(self) -> None:
        super().__init__(
            settings={
                # A replica that does not answer is out of sync after this time; half a minute by default.
                "replica.lag.time.max.ms": 1500,
                # Kafka would give a partition back to its first replica after five minutes, at any time in a test.
                "auto.leader.rebalance.enable": "false",
            }
        )
        self.second = SecondBroker(self)

    @property
    def processes(self) -> list[Process]:
        return super().processes + self.second.processes

    async def start(self) -> None:
        await super().start()
        await self.second.start()

    async def stop(self) -> None:
        await self.second.stop()

    async def kill(self) -> None:
        await self.second.kill()

    def pause(self) -> None:
        self.second.pause()

    def resume(self) -> None:
        self.second.resume()

    def end(self) -> None:
        self.second.end()
        super().end()

    async def create_replicated_topic(
        self, name: str, leaders: list[int], *, replicas: int = 2, **settings: str
    ) -> None:
        """Create a topic with a partition for each of the given leaders, and a replica of it on the other broker."""
        assignments = {number: [leader, 3 - leader][:replicas] for number, leader in enumerate(leaders)}
        configs = {setting.replace("_", "."): value for setting, value in settings.items()}
        topic = NewTopic(name, -1, -1, replica_assignments=assignments, topic_configs=configs)
        async with _admin(self.bootstrap_servers) as admin:
            answer = await admin.create_topics([topic])
            assert [error[1] for error in answer.topic_errors] == [0], answer


class KafkaWithRights(Kafka):
    """A Kafka that lets the user `relay` write to those topics only that it was allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.user_port = free_port()

    @property
    def login(self) -> dict[str, str]:
        """The server and the password of the user, by the names of librdkafka."""
        return {"bootstrap.servers": f"127.0.0.1:{self.user_port}", "sasl.username": USER, "sasl.password": PASSWORD}

    def _settings(self) -> dict[str, object]:
        listeners = f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.user_port}"
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        return {
            **super()._settings(),
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Clients without a password: the tests.
            "super.users": "User:ANONYMOUS",
        }

    async def allow(self, topic: str) -> None:
        """Let the user write to a topic."""
        await asyncio.to_thread(
            self._change, "create_acls", _right(_acl.AclBinding, topic, _acl.AclPermissionType.ALLOW)
        )

    async def forbid(self, topic: str) -> None:
        """Take that right away."""
        await asyncio.to_thread(
            self._change, "delete_acls", _right(_acl.AclBindingFilter, topic, _acl.AclPermissionType.ANY)
        )

    def _change(self, method: str, rights: Any) -> None:
        admin: Any = _acl.AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for change in getattr(admin, method)([rights]).values():
            change.result()


class KafkaBehindProxy(Kafka):
    """A Kafka that sends those who come by way of a proxy there again; it closes connections at large requests."""

    LARGEST_REQUEST = 200_000

    def __init__(self) -> None:
        super().__init__()
        self._proxied_port = free_port()
        self.proxy_port = free_port()

    @property
    def url(self) -> str:
        """What the proxy leads to."""
        return f"kafka://127.0.0.1:{self._proxied_port}"

    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        return {
            **settings,
            "listeners": f"{settings['listeners']},PROXIED://127.0.0.1:{self._proxied_port}",
            "advertised.listeners": f"{settings['advertised.listeners']},PROXIED://127.0.0.1:{self.proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "socket.request.max.bytes": self.LARGEST_REQUEST,
        }


async def brokers(bootstrap_servers: str) -> list[int]:
    """Return the numbers of the brokers that take part."""
    async with _admin(bootstrap_servers) as admin:
        return [broker["node_id"] for broker in (await admin.describe_cluster())["brokers"]]


async def topics_of(server: Kafka) -> list[str]:
    """Return the names of all topics."""
    async with _admin(server.bootstrap_servers) as admin:
        names: list[str] = await admin.list_topics()
        return names


async def delete_topic(server: Kafka, name: str) -> None:
    """Delete a topic, and wait until Kafka has closed its files: it takes messages until then."""
    async with _admin(server.bootstrap_servers) as admin:
        await admin.delete_topics([name])
    while any((server.directory / "data").glob(f"{name}-[0-9]")):
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _admin(bootstrap_servers: str) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def _right(kind: Any, topic: str, permission: Any) -> Any:
    literal, write = _acl.ResourcePatternType.LITERAL, _acl.AclOperation.WRITE
    return kind(_acl.ResourceType.TOPIC, topic, literal, f"User:{USER}", "*", write, permission)
