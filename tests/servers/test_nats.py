import pytest
from faststream.nats import JStream, NatsBroker
from nats.js.api import DeliverPolicy

from tests.servers.nats import Nats
from tests.servers.process import accepts
from tests.servers.round_trips import echoed, received


async def test_a_message_goes_there_and_back(nats_server: Nats, name: str) -> None:
    broker = NatsBroker(nats_server.url)
    assert await echoed(broker, broker.subscriber(name), "hello", subject=name) == ["hello"]


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_stream_comes_back_with_its_data(nats_server: Nats, name: str, end: str) -> None:
    async with NatsBroker(nats_server.url) as broker:
        client = await broker.connect()
        await client.jetstream().add_stream(name=name, subjects=[name])
        await broker.publish("hello", name, stream=name)
    await getattr(nats_server, end)()
    assert not await accepts(nats_server.port)
    await nats_server.start()
    broker = NatsBroker(nats_server.url)
    stream = JStream(name, declare=False)
    subscriber = broker.subscriber(name, stream=stream, deliver_policy=DeliverPolicy.ALL)
    assert await received(broker, subscriber) == ["hello"]
