"""Settings from a file, from the environment and from the command line."""

from pathlib import Path
from typing import Any

import pytest

from faststream_outbox import AdvisoryLocks, HashShards, HeadLease
from faststream_outbox.cli.database import database_url, make_engine
from faststream_outbox.cli.relay.brokers import make_broker
from faststream_outbox.cli.relay.logs import LOGGER
from faststream_outbox.cli.relay.outbox import make_ordering, make_outbox
from faststream_outbox.cli.relay.program import make_relay
from faststream_outbox.cli.relay.settings import RelaySettings, Security, Target
from faststream_outbox.cli.relay.strategies import make_route
from faststream_outbox.cli.secrets import Secret
from faststream_outbox.relay import Route, by_header
from faststream_outbox.storage.ordering import Ordering
from tests.cli.programs import relaying
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import in_order, publish
from tests.waiting import until_empty


async def test_a_file_and_the_command_line(setup: RelaySetup) -> None:
    file = setup.folder / "relay.toml"
    file.write_text(
        f"""
        dsn = "env:SHOP_DATABASE"
        source = "shop"
        ordering = "advisory-locks"
        on-dead = "park"
        dlq_table = "outbox_dlq"
        cloudevents = true
        log_level = "error"

        [to]
        url = "{setup.redis.url}"
        options = {{ health_check_interval = 10 }}

        [routes]
        orders = "not-this-one"
        events = "header:where|{setup.stream.name}"
        """
    )
    await publish(setup.outbox, range(50))
    await publish(setup.outbox, range(50, 60), queue="events", where=f"stream:{setup.stream.name}")
    await publish(setup.outbox, range(60, 70), queue="events")
    given = ("--config", str(file), "--route", f"orders={setup.stream.name}", "--log-level", "info")
    with relaying(*given, folder=setup.folder, SHOP_DATABASE=setup.database.dsn) as program:
        numbers = await setup.stream.numbers(70)
        await until_empty(setup.outbox)
        assert await program.stop() == 0, program.output
        # INFO is logged, so the command line won over the file.
        assert program.lines("relay_stopped")
    assert sorted(numbers) == list(range(70))
    assert in_order(numbers[:50])
    headers = [headers for _, headers in await setup.stream.messages()]
    assert {each["outbox_source"] for each in headers} == {each["ce_source"] for each in headers} == {"shop"}


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("orders", "orders"),
        ("header:where", by_header("where")),
        ("header:where|orders", by_header("where", default="orders")),
        ("header:where=orders, audit-*", by_header("where", allow=["orders", "audit-*"])),
        ("header:where=orders|other", by_header("where", default="other", allow=["orders"])),
    ],
)
def test_a_route_is_a_name_or_a_header(text: str, route: Route) -> None:
    assert make_route(text) == route


def test_the_file_gives_way_to_the_command_line(tmp_path: Path) -> None:
    text = "table = 'one'\nschema = 'shop'\nlease-ttl-seconds = 5\n[routes]\na = 'c'\nd = 'e'"
    settings = RelaySettings.load(
        {"dsn": "postgresql://h/d", "to": "redis://h", "table": "two", "schema": None, "routes": {"a": "b"}},
        written(tmp_path, text),
    )
    assert (settings.table, settings.schema_name, settings.lease_ttl_seconds) == ("two", "shop", 5)
    assert settings.routes == {"a": "b", "d": "e"}


def test_the_environment_wins_over_the_file_and_an_option_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(
        tmp_path,
        """
        dsn = "env:NOT_THERE"
        schema = "file"
        dlq_table = "file"
        lease_ttl_seconds = 5
        progress = false
        routes = { a = "file", b = "file", c = "file" }
        to = { security = { username = "relay" } }
        """,
    )
    for name, value in {
        "DSN": "postgresql://h/d",
        "TO": "redis://h",
        "SCHEMA": "variable",
        "DLQ_TABLE": "variable",
        "LEASE_TTL_SECONDS": "6",
        "PROGRESS": "true",
        "TABLE": "",
        "ROUTES": '{"b": "variable", "c": "variable"}',
    }.items():
        monkeypatch.setenv(f"OUTBOX_{name}", value)
    settings = RelaySettings.load({"dlq_table": "option", "routes": {"c": "option"}}, file)
    assert (settings.dsn, settings.to.url, settings.to.security) == ("postgresql://h/d", "redis://h", None)
    assert (settings.table, settings.schema_name, settings.dlq_table) == ("outbox", "variable", "option")
    assert (settings.lease_ttl_seconds, settings.progress) == (6, True)
    assert settings.routes == {"a": "file", "b": "variable", "c": "option"}


def test_secrets_are_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", "kafka://h:9092")
    monkeypatch.setenv("KAFKA_PASSWORD", "top-secret")
    text = """
    dsn = "postgresql://h/d"
    routes = { a = "b" }
    [to]
    url = "env:BROKER"
    security = { mechanism = "scram-sha-512", username = "relay", password = "env:KAFKA_PASSWORD" }
    """
    settings = RelaySettings.load({}, written(tmp_path, text))
    assert settings.to.url == "kafka://h:9092"
    assert settings.to.security is not None
    assert settings.to.read_password() == "top-secret"
    assert "top-secret" not in repr(settings)


def test_the_servers_and_options_of_kafka() -> None:
    broker = make_broker(Target(url="kafka://a:1,b:2?client_id=relay&linger_ms=5"), LOGGER)
    arguments = broker._connection_kwargs
    assert arguments["bootstrap_servers"] == ["a:1", "b:2"]
    assert (arguments["client_id"], arguments["linger_ms"], arguments["enable_idempotence"]) == ("relay", 5, True)


def test_the_security_of_kafka() -> None:
    security = Security(mechanism="scram-sha-256", username="relay", password=Secret("top-secret"), tls=True)
    arguments = make_broker(Target(url="kafka://a:1", security=security), LOGGER)._connection_kwargs
    assert (arguments["security_protocol"], arguments["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == ("relay", "top-secret")
    arguments = make_broker(
        Target(url="kafka+confluent://a:1", security=security.model_copy(update={"ca_file": "/ca.pem"})), LOGGER
    ).config.broker_config.connection_config.producer_config
    assert (arguments["security.protocol"], arguments["sasl.mechanism"]) == ("sasl_ssl", "SCRAM-SHA-256")
    assert (arguments["ssl.ca.location"], arguments["enable.idempotence"]) == ("/ca.pem", True)


def test_a_mechanism_that_a_client_does_not_know() -> None:
    security = Security(mechanism="scram-sha-256", username="relay", password=Secret("top-secret"))
    with pytest.raises(ValueError, match="is for Kafka only"):
        make_broker(Target(url="amqp://h", security=security), LOGGER)


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("postgresql://u@h/d?sslmode=require", "postgresql+asyncpg://u@h/d?ssl=require"),
        ("postgres://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql+psycopg://u@h/d?sslmode=require", "postgresql+psycopg://u@h/d?sslmode=require"),
    ],
)
def test_a_dsn(dsn: str, url: str) -> None:
    assert str(database_url(dsn)) == url


def settings(**given: object) -> RelaySettings:
    return RelaySettings.load({"dsn": "postgresql://h/d", "to": "redis://h", "routes": {"a": "b"}, **given}, None)


@pytest.mark.parametrize(
    ("name", "ordering"),
    [("head-lease", HeadLease()), ("advisory-locks", AdvisoryLocks()), ("hash-shards", HashShards(count=8))],
)
def test_the_ordering(name: str, ordering: Ordering) -> None:
    assert make_ordering(settings(ordering=name, shards=8)) == ordering


@pytest.mark.parametrize(
    ("given", "shards"),
    [("3", [3]), ("0,2", [0, 2]), ("4-6, 1", [1, 4, 5, 6]), ("1/3", [1, 4, 7]), (2, [2]), ([5, 1], [1, 5])],
    ids=str,
)
@pytest.mark.parametrize("source", ["option", "variable", "file"])
def test_the_shards_of_one_node(
    given: object, shards: list[int], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {"ordering": "hash-shards", "shards": 8}
    if source == "file":
        needed = {"dsn": "postgresql://h/d", "to": "redis://h", "routes": {"a": "b"}}
        made = RelaySettings.load({**needed, **common}, written(tmp_path, f"own_shards = {given!r}"))
    elif not isinstance(given, str):
        return  # only the file has numbers and lists
    elif source == "variable":
        monkeypatch.setenv("OUTBOX_OWN_SHARDS", given)
        made = settings(**common)
    else:
        made = settings(**common, own_shards=given)
    assert make_ordering(made) == HashShards(count=8, shards=shards)
    assert (made.effective["shards"], made.effective["own_shards"]) == (8, shards)
    outbox = make_outbox(made, make_engine(made), lambda _event, _tags: None)
    assert set(outbox.client.table.metadata.tables) == {"outbox"}  # type: ignore[attr-defined]  # of Postgres


def test_the_tables() -> None:
    given = settings(table="mail", schema="shop", dlq_table="dead", ordering="hash-shards", shards_table="shares")
    outbox = make_outbox(given, make_engine(given), lambda _event, _tags: None)
    assert set(outbox.client.table.metadata.tables) == {"shop.mail", "shop.dead", "shop.shares"}  # type: ignore[attr-defined]  # of Postgres


def test_the_relay() -> None:
    given = settings(source="shop", on_dead="park", lease_ttl_seconds=7, cloudevents=True, graceful_timeout=3)
    outbox = make_outbox(given, make_engine(given), lambda _event, _tags: None)
    relay: Any = make_relay(given, outbox, make_broker(given.to, LOGGER))
    assert outbox.config.broker_config.graceful_timeout == 3
    assert relay._source == "shop"
    assert relay._cloudevents is True
    assert (relay._options.on_dead, relay._options.lease_ttl_seconds) == ("park", 7)


def written(folder: Path, text: str) -> Path:
    file = folder / "relay.toml"
    file.write_text(text)
    return file
