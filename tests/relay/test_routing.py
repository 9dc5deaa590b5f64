"""Routes by header: what a header may name, and that it does not operate the broker."""

from typing import Any

import nats
import pytest
from faststream.nats import NatsBroker

from faststream_outbox.relay import Relay, by_header
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.relay.endpoints import Endpoint, NatsStream, RabbitQueueEndpoint
from tests.relay.memory_target import Memory
from tests.waiting import until_empty


async def test_a_header_names_only_what_is_allowed(postgres: PostgresBackend) -> None:
    broker, target = broker_on(postgres), Memory()
    async with postgres.transaction() as session:
        for where in ("orders", "audit-1", "orders-2", "audit", "", None):
            headers = {} if where is None else {"where": where}
            await broker.publish(str(where).encode(), queue="q", headers=headers, session=session)
    route = by_header("where", default="fallback", allow=["orders", "audit-*"])
    async with Relay(broker, to=target, routes={"q": route}):
        await until_empty(postgres)
    assert target.destinations == {b"orders": "orders", b"audit-1": "audit-1", b"None": "fallback"}
    dead = await postgres.dead_letters()
    assert {(each.payload, each.failure_reason) for each in dead} == {
        (b"orders-2", "rejected"),
        (b"audit", "rejected"),
        (b"", "rejected"),
    }


def test_allow_is_a_list() -> None:
    with pytest.raises(TypeError, match="allow is a list"):
        by_header("where", allow="orders")


async def _coroutine(row: object) -> str:
    return str(row)


class _Callable:
    async def __call__(self, row: object) -> str:
        return str(row)


@pytest.mark.parametrize("route", [_coroutine, _Callable()], ids=["a function", "an object"])
def test_a_route_that_is_not_awaited_is_refused(postgres: PostgresBackend, route: Any) -> None:
    """Each of its rows would be dead."""
    with pytest.raises(TypeError, match="'q' is a coroutine function"):
        Relay(broker_on(postgres), to=Memory(), routes={"q": route})


@pytest.mark.parametrize(
    "subject", ["$JS.API.STREAM.DELETE.x", "core:$SYS.x", "_INBOX.x", "core:_INBOX.x", "a..b", "a."]
)
def test_a_fixed_route_to_what_is_not_ones_own_is_refused(postgres: PostgresBackend, subject: str) -> None:
    for route in (subject, by_header("where", default=subject)):
        with pytest.raises(ValueError, match=r"belongs to NATS itself|cannot be published to"):
            Relay(broker_on(postgres), to=NatsBroker("nats://127.0.0.1:1"), routes={"q": route})


@pytest.mark.parametrize("prefix", ["", "core:"])
@pytest.mark.parametrize("endpoint", [NatsStream], indirect=True)
async def test_no_row_deletes_a_stream(postgres: PostgresBackend, endpoint: Endpoint, prefix: str) -> None:
    broker = broker_on(postgres)
    headers = {"where": f"{prefix}$JS.API.STREAM.DELETE.{endpoint.name}"}
    async with postgres.transaction() as session:
        await broker.publish(b"", queue="q", headers=headers, session=session)
        await broker.publish(b"", queue="q", key="k", headers=headers, session=session)
    routes: Any = {"q": lambda row: (row.headers or {})["where"]}
    async with Relay(broker, to=endpoint.broker(), routes=routes):
        await until_empty(postgres)
    client = await nats.connect(endpoint.running.url)
    assert (await client.jetstream().stream_info(endpoint.name)).config.name == endpoint.name
    await client.close()
    assert {dead.failure_reason for dead in await postgres.dead_letters()} == {"rejected"}


@pytest.mark.parametrize("name", ["Nats-Rollup", " nats-rollup", "Nats-Expected-Last-Sequence", "Nats-Msg-Id"])
@pytest.mark.parametrize("endpoint", [NatsStream], indirect=True)
async def test_no_header_of_a_row_steers_jetstream(postgres: PostgresBackend, endpoint: Endpoint, name: str) -> None:
    client = await nats.connect(endpoint.running.url)
    stream = client.jetstream()
    await stream.update_stream(name=endpoint.name, subjects=[endpoint.name], allow_rollup_hdrs=True)
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        for _ in range(2):
            await broker.publish(b"1", queue="q", key="k", headers={name: "all"}, session=session)
    async with Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}):
        await until_empty(postgres)
    assert (await stream.stream_info(endpoint.name)).state.messages == 2
    await client.close()
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("endpoint", [RabbitQueueEndpoint], indirect=True)
async def test_no_header_of_a_row_steers_rabbitmq(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        headers = {"CC": "other", "BCC": "another", "Cc": "kept"}
        await broker.publish(b"1", queue="q", headers=headers, session=session)
    async with endpoint.listening() as inbox, Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}):
        await inbox.until(1)
        await until_empty(postgres)
    assert await postgres.dead_letters() == []
    assert {"CC", "BCC", "Cc"} & inbox.messages[0].headers.keys() == {"Cc"}
