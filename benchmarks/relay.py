"""Rows with keys on their way to a Kafka, by a relay and by a handler that publishes each."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.aims import RELAY_RATE, RELAY_RATIO
from benchmarks.batch import Order, order
from benchmarks.keyed import rows_with_keys
from benchmarks.measure import PATIENCE, Spread, Usage, ratios
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.results import Lines, Result, per_message
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from tests.servers.kafka import Kafka, KafkaCluster, KafkaElsewhere

PARTITIONS: Final = 6
ONE_BY_ONE: Final = "a handler, @kafka.publisher"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows are relayed in a turn, how many of them by handlers, which are slow, and how often."""

    messages: int
    by_handlers: int
    rounds: int
    # Or only what P9 compares.
    all_ways: bool = True


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(messages=300, by_handlers=50, rounds=1),
    "quick": Sizes(messages=20_000, by_handlers=300, rounds=3, all_ways=False),
    "full": Sizes(messages=20_000, by_handlers=1_000, rounds=5),
}


# What carries rows from an outbox to a topic while it is entered.
Way = Callable[["Road", OutboxBroker, str], AbstractAsyncContextManager[None]]


class Road:
    """A table with rows, a topic for each turn, and what is on the way between."""

    def __init__(self, bench: Bench, engine: AsyncEngine, kafka: KafkaCluster) -> None:
        self._bench = bench
        self._engine = engine
        self._kafka = kafka
        self._outbox = Outbox(bench, engine, "relay")
        self._turns = 0

    async def drain(self, way: Way, count: int, *, keyed: bool = True) -> Usage:
        """Fill the table, and tell what it took from the start of a way until all is settled and it has stopped."""
        topic = await self._topic()
        await self._outbox.create()
        columns, values = rows_with_keys(str(self._turns)) if keyed else ("queue", f"'{QUEUE}'")
        await self._outbox.load(count, columns, values, payload=json.dumps(order(0)).encode())
        await self._bench.control.execute(f"VACUUM (ANALYZE) {self._outbox.name}")
        broker = OutboxBroker(self._engine, outbox_table=self._outbox.store.outbox_table, logger=None)
        before = await self._bench.meter.read()
        async with asyncio.timeout(PATIENCE), way(self, broker, topic):
            while await self._bench.control.fetchval(f"SELECT count(*) FROM {self._outbox.name}"):  # noqa: ASYNC110 - the database knows
                await asyncio.sleep(0.02)
        usage = await self._bench.meter.since(before)
        await self._check(topic, count)
        return usage

    async def send_bare(self, count: int) -> Usage:
        """Send as many messages by the client alone, each awaited with all others."""
        topic, payload = await self._topic(), json.dumps(order(0)).encode()
        producer = AIOKafkaProducer(bootstrap_servers=self.servers, enable_idempotence=True)
        await producer.start()
        before = await self._bench.meter.read()
        sent = [await producer.send(topic, payload, key=b"%d" % (number // 5)) for number in range(count)]
        await asyncio.gather(*sent)
        usage = await self._bench.meter.since(before)
        await producer.stop()
        await self._check(topic, count)
        return usage

    @property
    def servers(self) -> str:
        """Where Kafka is."""
        return self._kafka.bootstrap_servers

    async def _topic(self) -> str:
        self._turns += 1
        topic = f"bench-{uuid4().hex}"
        await self._kafka.create_topic(topic, PARTITIONS)
        return topic

    async def _check(self, topic: str, count: int) -> None:
        """See that all has arrived, once."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
        await consumer.start()
        ends = await consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
        await consumer.stop()
        if sum(ends.values()) != count:
            raise AssertionError(f"{sum(ends.values())} messages arrived, and not {count}.")


@asynccontextmanager
async def by_relay(road: Road, broker: OutboxBroker, topic: str) -> AsyncIterator[None]:
    """Relay through aiokafka."""
    async with Relay(broker, to=KafkaBroker(road.servers, logger=None), routes={QUEUE: topic}):
        yield


@asynccontextmanager
async def by_confluent(road: Road, broker: OutboxBroker, topic: str) -> AsyncIterator[None]:
    """Relay through confluent-kafka."""
    async with Relay(broker, to=ConfluentBroker(road.servers, logger=None), routes={QUEUE: topic}):
        yield


@asynccontextmanager
async def by_handler(road: Road, broker: OutboxBroker, topic: str, *, workers: int = 1) -> AsyncIterator[None]:
    """Publish each row from a handler, as one does without a relay."""
    kafka = KafkaBroker(road.servers, logger=None, enable_idempotence=True)

    # The row's key goes along, as Kafka's.
    @kafka.publisher(topic)
    @broker.subscriber(QUEUE, max_workers=workers)
    async def announce(order: Order) -> Order:
        return order

    async with broker:
        await broker.start()
        yield


async def run(bench: Bench) -> list[Result]:
    """Relay to a Kafka: one of ours, or the one of `KAFKA_BOOTSTRAP_SERVERS`."""
    elsewhere = KafkaElsewhere.given()
    if elsewhere is None and (lacks := Kafka.lacks()):
        bench.say(f"no Kafka: {lacks}. {Kafka.how}")
        return []
    async with _kafka(elsewhere) as kafka, bench.engine("asyncpg", connections=8) as engine:
        return [await _compare(bench, Road(bench, engine, kafka))]


@asynccontextmanager
async def _kafka(elsewhere: KafkaElsewhere | None) -> AsyncIterator[KafkaCluster]:
    if elsewhere is not None:
        yield elsewhere
    else:
        async with Kafka() as kafka:
            yield kafka


async def _compare(bench: Bench, road: Road) -> Result:
    sizes = SIZES[bench.scale]
    counts: dict[str, int] = {}
    cases: dict[str, Callable[[], Awaitable[Usage]]] = {}

    def add(name: str, count: int, turn: Callable[[int], Awaitable[Usage]]) -> None:
        counts[name], cases[name] = count, partial(turn, count)

    add(ONE_BY_ONE, sizes.by_handlers, partial(road.drain, by_handler))
    add(f"{ONE_BY_ONE}, 16 workers", sizes.by_handlers, partial(road.drain, partial(by_handler, workers=16)))
    add("relay", sizes.messages, partial(road.drain, by_relay))
    add("relay, confluent", sizes.messages, partial(road.drain, by_confluent))
    add("relay, no keys", sizes.messages, partial(road.drain, by_relay, keyed=False))
    add("aiokafka alone, no outbox", sizes.messages, road.send_bare)
    if not sizes.all_ways:
        cases = {name: cases[name] for name in (ONE_BY_ONE, "relay", "aiokafka alone, no outbox")}
    measured = await bench.interleave("relaying", cases, rounds=sizes.rounds, warmup=bool(sizes.rounds > 1))
    rates = {case: [counts[case] / usage.seconds for usage in usages] for case, usages in measured.items()}
    lines: Lines = {}
    for case, usages in measured.items():
        lines[case] = {
            "msg/s": Spread.of(rates[case]),
            "ratio": ratios(rates[case], rates[ONE_BY_ONE]),
            **per_message(usages, counts[case]),
        }
        del lines[case]["statements"]  # those of a relay are not counted
    note = (
        f"Rows of {len(json.dumps(order(0)))} bytes, 1 to 10 of each key, to a topic of {PARTITIONS} partitions on a "
        "Kafka of one node beside Postgres here; a relay with its defaults, from its start to the end of its stop. A "
        "handler publishes a row and waits for its confirmation. Ratios are to one with one worker."
    )
    rate, ratio = lines["relay"]["msg/s"], lines["relay"]["ratio"]
    assert isinstance(rate, Spread)
    assert isinstance(ratio, Spread)
    targets = [
        RELAY_RATE.target("relay: messages a second", rate.median),
        RELAY_RATIO.target("relay: beside a handler that publishes each", ratio.median),
    ]
    return Result(f"relaying {sizes.messages:,} rows to Kafka", lines, note, targets)


SCENARIO: Final = Scenario("relay", "rows on their way to a real Kafka, by a relay and by handlers", run)
