"""The servers with TLS and a password that a test may change: what a relay is given in production."""

import json
import os
import signal
import ssl
import subprocess
from abc import abstractmethod
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nats
from aio_pika import connect
from aiokafka import AIOKafkaConsumer, TopicPartition
from faststream.redis.parser import BinaryMessageFormatV1
from redis.asyncio import Redis as RedisClient

from tests.servers.kafka import Kafka
from tests.servers.nats import Nats
from tests.servers.nats import _program as nats_program
from tests.servers.process import Process, accepts, free_port
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis
from tests.servers.redis import _program as redis_program
from tests.servers.server import Server

USER, FIRST_PASSWORD = "relay", "first-of-passwords"


def make_certificates(folder: Path) -> None:
    """Make `ca.pem`, and `server.pem` and `server.key` for 127.0.0.1."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", *signing, "-out", "server.pem")


class Secure(Server):
    """A server that only accepts TLS and the present password of one user."""

    def __init__(self) -> None:
        super().__init__()
        self.password = FIRST_PASSWORD

    async def prepare(self) -> None:
        make_certificates(self.directory)
        await super().prepare()

    async def ready(self) -> bool:
        return await accepts(self.port)

    @property
    def address(self) -> str:
        """The address for a relay, without the scheme and the password."""
        return f"{USER}@127.0.0.1:{self.port}"

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.directory / "ca.pem")

    @abstractmethod
    async def create(self, destination: str) -> None:
        """Create what is sent to."""

    @abstractmethod
    async def bodies(self, destination: str) -> list[bytes]:
        """Return what has arrived."""

    @abstractmethod
    async def change_password(self, password: str) -> None:
        """Accept another password, and close the connections that were opened with the old one."""


class SecureRedis(Secure, Redis):
    def launch(self) -> Process:
        options = {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": "server.pem",
            "tls-key-file": "server.key",
            "tls-ca-cert-file": "ca.pem",
            "tls-auth-clients": "no",
            "bind": "127.0.0.1",
            "save": "",
        }
        lines = [f'{name} "{value}"' for name, value in options.items()]
        lines += ["user default off", f"user {USER} on >{self.password} ~* &* +@all"]
        (self.directory / "redis.conf").write_text("\n".join(lines))
        return Process(redis_program() or "redis-server", "redis.conf", log=self.log, cwd=self.directory)

    def _client(self) -> Any:
        ca = str(self.directory / "ca.pem")
        url = f"rediss://127.0.0.1:{self.port}"
        return RedisClient.from_url(url, username=USER, password=self.password, ssl_ca_certs=ca)

    async def create(self, destination: str) -> None:
        """Do nothing: Redis creates it with the first message."""

    async def bodies(self, destination: str) -> list[bytes]:
        async with self._client() as client:
            entries: Any = await client.xrange(destination)
        return [BinaryMessageFormatV1.parse(fields[b"__data__"])[0] for _, fields in entries]

    async def change_password(self, password: str) -> None:
        async with self._client() as client:
            await client.acl_setuser(USER, enabled=True, reset_passwords=True, passwords=[f"+{password}"])
            self.password = password
            await client.client_kill_filter(_type="normal", skipme=True)


class SecureNats(Secure, Nats):
    def launch(self) -> Process:
        self._configure()
        return Process(nats_program() or "nats-server", "-c", "nats.conf", log=self.log, cwd=self.directory)

    def _configure(self) -> None:
        settings = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": "data"},
            "tls": {"cert_file": "server.pem", "key_file": "server.key"},
            "authorization": {"user": USER, "password": self.password},
        }
        (self.directory / "nats.conf").write_text(json.dumps(settings))

    async def _connect(self) -> Any:
        servers = f"tls://127.0.0.1:{self.port}"
        return await nats.connect(servers, user=USER, password=self.password, tls=self.context)

    async def create(self, destination: str) -> None:
        client = await self._connect()
        await client.jetstream().add_stream(name=destination, subjects=[destination])
        await client.close()

    async def bodies(self, destination: str) -> list[bytes]:
        client = await self._connect()
        stream = client.jetstream()
        number = (await stream.stream_info(destination)).state.messages
        subscription = await stream.subscribe(destination, ordered_consumer=True)
        found = [(await subscription.next_msg(timeout=30)).data for _ in range(number)]
        await client.close()
        return found

    async def change_password(self, password: str) -> None:
        self.password = password
        self._configure()
        [process] = self.processes
        os.kill(process.pid, signal.SIGHUP)  # reloads, and closes what the new password does not allow


class SecureRabbitMQ(Secure, RabbitMQ):
    async def prepare(self) -> None:
        await super().prepare()
        file = self.directory / "rabbitmq.conf"
        [_, *others] = file.read_text().splitlines()
        lines = [
            "listeners.tcp = none",
            f"listeners.ssl.1 = 127.0.0.1:{self.port}",
            f"ssl_options.cacertfile = {self.directory}/ca.pem",
            f"ssl_options.certfile = {self.directory}/server.pem",
            f"ssl_options.keyfile = {self.directory}/server.key",
            "ssl_options.verify = verify_none",
            f"default_user = {USER}",
            f"default_pass = {self.password}",
        ]
        file.write_text("\n".join([*lines, *others, ""]))

    async def _connect(self) -> Any:
        url = f"amqps://{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/"
        return await connect(url, ssl_context=self.context)

    async def create(self, destination: str) -> None:
        async with await self._connect() as connection:
            channel = await connection.channel()
            await channel.declare_queue(destination, durable=True)

    async def bodies(self, destination: str) -> list[bytes]:
        async with await self._connect() as connection:
            queue = await (await connection.channel()).get_queue(destination)
            found = []
            while (message := await queue.get(fail=False)) is not None:  # they are back when the connection is closed
                found.append(message.body)
        return found

    async def change_password(self, password: str) -> None:
        self.password = password
        self.control("change_password", USER, password)
        self.control("close_all_connections", "The password was changed.")


class SecureKafka(Secure, Kafka):
    """It also accepts clients without TLS and password on a port that a relay is not given."""

    def __init__(self) -> None:
        super().__init__()
        self._open_port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._open_port}"

    async def ready(self) -> bool:
        return await accepts(self.port) and await Kafka.ready(self)

    def _settings(self) -> dict[str, object]:
        listeners = f"PLAINTEXT://127.0.0.1:{self._open_port},SASL_SSL://127.0.0.1:{self.port}"
        controller = f"CONTROLLER://127.0.0.1:{self.controller_port}"
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{self.password}";'
        server = self.directory / "both.pem"
        server.write_text((self.directory / "server.key").read_text() + (self.directory / "server.pem").read_text())
        return {
            **super()._settings(),
            "listeners": f"{listeners},{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": server,
        }

    async def create(self, destination: str) -> None:
        await self.create_topic(destination)

    async def bodies(self, destination: str) -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap_servers)
        await consumer.start()
        try:
            partition = TopicPartition(destination, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            [end] = (await consumer.end_offsets([partition])).values()
            found: list[bytes] = []
            while await consumer.position(partition) < end:
                batches = await consumer.getmany(timeout_ms=1000)
                found += [record.value or b"" for records in batches.values() for record in records]
            return found
        finally:
            await consumer.stop()

    async def change_password(self, password: str) -> None:
        """Start again with it: Kafka has these passwords from its settings."""
        self.password = password
        self.configure()
        await self.stop()
        await self.start()
