"""Redis streams and NATS JetStream as a consumer meets them: a message that is not acked comes again."""

from collections.abc import Callable
from typing import Any, Protocol

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsRouter, PullSub
from faststream.redis import RedisBroker, RedisRouter, StreamSub
from nats.js.api import ConsumerConfig

from faststream_outbox import Inbox
from tests.servers.nats import Nats
from tests.servers.redis import Redis

_GROUP = "billing"


class Stream(Protocol):
    """One stream of a broker, and one group of consumers."""

    @property
    def server(self) -> type[Nats] | type[Redis]: ...

    def broker(self, url: str, **options: Any) -> Any: ...

    def subscribe(self, broker: Any, inbox: Inbox, handler: Callable[..., Any], *, one_by_one: bool = False) -> None:
        """Have a handler receive each message, and, unless it is one by one, again what was not acked."""

    async def create(self, broker: Any) -> None: ...

    async def publish(self, broker: Any, body: str, message_id: str) -> None: ...

    async def unacked(self, broker: Any) -> int: ...


class RedisStream:
    """Redis gives a message to others when they ask for what has lain too long."""

    server = Redis

    def broker(self, url: str, **options: Any) -> RedisBroker:
        return RedisBroker(url, **options)

    def subscribe(
        self, broker: RedisBroker, inbox: Inbox, handler: Callable[..., Any], *, one_by_one: bool = False
    ) -> None:
        new = StreamSub("q", group=_GROUP, consumer="one", last_id=">", polling_interval=10)
        left = StreamSub("q", group=_GROUP, consumer="two", min_idle_time=100, polling_interval=10)
        assert inbox.consumer is not None
        # They share the messages of one group, and therefore a name.
        both = ((new, inbox), (left, inbox.named(inbox.consumer)))
        for stream, each in both[:1] if one_by_one else both:
            router = RedisRouter(middlewares=[each])
            router.subscriber(stream=stream, ack_policy=AckPolicy.NACK_ON_ERROR)(handler)
            broker.include_router(router)

    async def create(self, broker: RedisBroker) -> None:
        await (await broker.connect()).xgroup_create("q", _GROUP, id="0", mkstream=True)

    async def publish(self, broker: RedisBroker, body: str, message_id: str) -> None:
        await broker.publish(body, stream="q", headers={"outbox_id": message_id})

    async def unacked(self, broker: RedisBroker) -> int:
        client = await broker.connect()
        [group] = await client.xinfo_groups("q")
        # Redis 6 reports no lag.
        undelivered = await client.xrange("q", min=f"({group['last-delivered-id'].decode()}")
        return int(group["pending"]) + len(undelivered or ())


class NatsStream:
    """NATS gives a message again when it was nacked, or not acked in time."""

    server = Nats

    def broker(self, url: str, **options: Any) -> NatsBroker:
        return NatsBroker(url, **options)

    def subscribe(
        self, broker: NatsBroker, inbox: Inbox, handler: Callable[..., Any], *, one_by_one: bool = False
    ) -> None:
        router = NatsRouter(middlewares=[inbox])
        router.subscriber(
            "q",
            stream=JStream("stream", declare=False),
            durable=_GROUP,
            pull_sub=PullSub(timeout=0.1),
            config=ConsumerConfig(ack_wait=0.5),
            max_workers=1 if one_by_one else 2,
            ack_policy=AckPolicy.NACK_ON_ERROR,
        )(handler)
        broker.include_router(router)

    async def create(self, broker: NatsBroker) -> None:
        client = await broker.connect()
        await client.jetstream().add_stream(name="stream", subjects=["q"])

    async def publish(self, broker: NatsBroker, body: str, message_id: str) -> None:
        await broker.publish(body, "q", stream="stream", headers={"outbox_id": message_id})

    async def unacked(self, broker: NatsBroker) -> int:
        client = await broker.connect()
        info = await client.jetstream().consumer_info("stream", _GROUP)
        return int(info.num_ack_pending or 0) + int(info.num_pending or 0)


STREAMS: dict[str, Stream] = {"redis": RedisStream(), "nats": NatsStream()}
