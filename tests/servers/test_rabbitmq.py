import aio_pika
import pytest
from aiormq.exceptions import AMQPConnectionError
from faststream.rabbit import RabbitBroker, RabbitQueue

from tests.servers.rabbitmq import RabbitMQ
from tests.servers.round_trips import echoed, received


async def test_a_message_goes_there_and_back(rabbitmq_server: RabbitMQ, name: str) -> None:
    broker = RabbitBroker(rabbitmq_server.url)
    assert await echoed(broker, broker.subscriber(name), "hello", queue=name) == ["hello"]


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_durable_queue_comes_back_with_its_data(rabbitmq_server: RabbitMQ, name: str, end: str) -> None:
    queue = RabbitQueue(name, durable=True)
    async with RabbitBroker(rabbitmq_server.url) as broker:
        await broker.declare_queue(queue)
        await broker.publish("hello", queue, persist=True)
    await getattr(rabbitmq_server, end)()
    with pytest.raises(AMQPConnectionError):
        await aio_pika.connect(rabbitmq_server.url)
    await rabbitmq_server.start()
    broker = RabbitBroker(rabbitmq_server.url)
    assert await received(broker, broker.subscriber(queue)) == ["hello"]
