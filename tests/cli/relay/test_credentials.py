"""Relays with TLS and passwords, which are wrong at first and change while rows are relayed; nothing is lost."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.cli.programs import Program, relaying
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import in_order, publish
from tests.servers.plugin import Servers
from tests.servers.secure import FIRST_PASSWORD, Secure, SecureKafka, SecureNats, SecureRabbitMQ, SecureRedis
from tests.waiting import until, until_empty

WRONG, SECOND = "wrong-of-passwords", "second/of@passwords"
# By the scheme of its address: the server, and what it answers to a wrong password.
REFUSALS: dict[str, tuple[type[Secure], str]] = {
    "rediss": (SecureRedis, "AuthenticationError: invalid username-password pair"),
    "tls": (SecureNats, "Authorization Violation"),
    "amqps": (SecureRabbitMQ, "ACCESS_REFUSED - Login was refused"),
    "kafka": (SecureKafka, "Authentication failed: Invalid username or password"),
    "kafka+confluent": (SecureKafka, "Authentication failed: Invalid username or password"),
}


def write(file: Path, text: str) -> None:
    """Replace a file as Kubernetes does: it is never seen half written."""
    new = file.with_suffix(".new")
    new.write_text(f"{text}\n")
    os.replace(new, file)  # noqa: PTH105 - the name says that it replaces


class Load:
    """Publishes numbers until it is stopped."""

    def __init__(self, outbox: PostgresBackend) -> None:
        self._outbox = outbox
        self.published = 0

    async def more(self, count: int = 20) -> None:
        await publish(self._outbox, range(self.published, self.published + count))
        self.published += count

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        enough = asyncio.Event()

        async def publish_on() -> None:
            while not enough.is_set():
                await self.more()
                await asyncio.sleep(0.05)

        task = asyncio.create_task(publish_on())
        try:
            yield
        finally:
            enough.set()
            await task

    def relayed(self, program: Program) -> int:
        return sum(line["relayed"] for line in program.lines("relay_progress")[-1:])


@pytest.fixture(params=REFUSALS)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def server(servers: Servers, request: pytest.FixtureRequest, scheme: str) -> Secure:
    return await servers.up(REFUSALS[scheme][0], request)


def configure(server: Secure, scheme: str, destination: str, folder: Path) -> tuple[Path, Path]:
    """Return the file of a relay's settings, and that of its password."""
    settings, password = folder / "relay.toml", folder / "password"
    settings.write_text(
        f"""
        log_level = "debug"
        progress_interval = 0.05
        [to]
        url = "{scheme}://{server.address}"
        [to.security]
        {'username = "relay"' if scheme.startswith("kafka") else ""}
        password = "file:{password}"
        tls = true
        ca_file = "{server.directory / "ca.pem"}"
        [routes]
        orders = "{destination}"
        """
    )
    return settings, password


async def test_a_password_that_is_wrong_then_right_then_changed(
    server: Secure, outbox_postgres: Database, outbox: PostgresBackend, tmp_path: Path, scheme: str
) -> None:
    load, destination = Load(outbox), f"d{uuid4().hex}"
    await server.create(destination)
    settings, password = configure(server, scheme, destination, tmp_path)
    write(password, WRONG)
    await load.more()
    with relaying("--config", str(settings), folder=tmp_path, OUTBOX_DSN=outbox_postgres.dsn) as program:
        await program.wait_for_line("relay_paused")
        # In the message of the pause, or in what the client logs.
        await until(lambda: REFUSALS[scheme][1] in program.output)
        write(password, server.password)
        await until_empty(outbox)
        async with load.running():
            relayed = load.relayed(program)
            await until(lambda: load.relayed(program) > relayed)
            other = FIRST_PASSWORD if server.password == SECOND else SECOND  # a test before may have changed it
            await server.change_password(other)
            write(password, other)
            relayed = load.published
            await until(lambda: load.relayed(program) > relayed, seconds=90)
        await until_empty(outbox)
        assert await program.stop() == 0, program.output
    numbers = [int(body) for body in await server.bodies(destination)]
    assert set(numbers) == set(range(load.published))
    # What was not confirmed is sent again, so numbers may repeat; but the first of each come in order.
    assert in_order(dict.fromkeys(numbers))
    assert [each for each in (WRONG, SECOND, FIRST_PASSWORD) if each in program.output] == []


@pytest.mark.parametrize(("driver", "source"), [("asyncpg", "file:{}"), ("psycopg", "command:cat {}")])
async def test_the_password_of_the_database_changes(setup: RelaySetup, driver: str, source: str) -> None:
    outbox = setup.outbox
    role, password, load = f"relay_{uuid4().hex}", setup.folder / "password", Load(outbox)
    await outbox.run(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{FIRST_PASSWORD}'")
    write(password, FIRST_PASSWORD)
    url = make_url(setup.database.url(driver)).set(username=role, password=None)
    with relaying(
        *(*setup.route, "--progress-interval", "0.05"),
        folder=setup.folder,
        OUTBOX_DSN=url.render_as_string(hide_password=False),
        OUTBOX_DSN_PASSWORD=source.format(password),
    ) as program:
        async with load.running():
            await until(lambda: load.relayed(program))
            write(password, SECOND)
            await outbox.run(f"ALTER ROLE {role} PASSWORD '{SECOND}'")
            await outbox.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :role", role=role)
            relayed = load.published
            await until(lambda: load.relayed(program) > relayed, seconds=90)
        await until_empty(outbox)
        assert await program.stop() == 0, program.output
    numbers = await setup.stream.numbers(load.published)
    assert set(numbers) == set(range(load.published))
    assert in_order(dict.fromkeys(numbers))
    assert [each for each in (FIRST_PASSWORD, SECOND) if each in program.output] == []
    await outbox.run(f"DROP ROLE {role}")
