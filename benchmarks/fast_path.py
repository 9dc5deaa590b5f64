"""What the fast path saves: the Python time of one message through it, and through FastStream's `process_message`."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from uuid import uuid4

from sqlalchemy import MetaData

from benchmarks.measure import Spread, ratios
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.subscriber.fast_path import FastPath
from faststream_outbox.subscriber.usecase import OutboxSubscriber

# How many messages a round has, and how many rounds there are.
SIZES: Final[dict[Scale, tuple[int, int]]] = {"tiny": (200, 1), "quick": (5_000, 5), "full": (20_000, 9)}
FAST: Final = "fast path"
FASTSTREAM: Final = "FastStream's process_message"


def make_subscriber(broker: OutboxBroker) -> OutboxSubscriber:
    """Return a subscriber with one handler that does nothing; it needs no database."""
    subscriber = broker.subscriber("orders")

    @subscriber
    async def handle(order: dict[str, int]) -> None:
        pass

    subscriber._build_fastdepends_model()  # noqa: SLF001 - what start() does, without a database
    subscriber.running = True
    return subscriber


def make_delivery() -> OutboxDelivery:
    """Return a row as a claim returns it."""
    now = time.time()
    return OutboxDelivery(
        id=1,
        queue="orders",
        entity_key=None,
        payload=b'{"id": 1}',
        headers_json='{"content-type": "application/json"}',
        timer_id=None,
        created_epoch=now,
        next_attempt_epoch=now,
        acquired_epoch=now,
        acquired_token=uuid4(),
        lease_expires_epoch=now,
        attempts_count=0,
        deliveries_count=1,
        first_attempt_epoch=None,
        last_attempt_epoch=None,
    )


async def _time(process: Callable[[OutboxDelivery], Awaitable[object]], count: int) -> float:
    deliveries = [make_delivery() for _ in range(count)]
    began = time.process_time()
    for delivery in deliveries:
        await process(delivery)
    return (time.process_time() - began) / count * 1e6


async def run(bench: Bench) -> list[Result]:
    """Let both ways take turns."""
    count, rounds = SIZES[bench.scale]
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()), logger=None)
    await broker.connect()
    subscriber = make_subscriber(broker)
    config, policy = subscriber._outer_config, subscriber.ack_policy  # noqa: SLF001 - the parts, without a broker that runs
    fast_path = FastPath(subscriber, subscriber.calls[0], config, policy, no_reply=False)
    cases = {
        FAST: partial(_time, fast_path.process, count),
        FASTSTREAM: partial(_time, subscriber.process_message, count),
    }
    took = await bench.interleave("fast path", cases, rounds=rounds, warmup=1)
    subscriber.running = False
    await broker.stop()
    lines: Lines = {case: {"Python µs": Spread.of(each)} for case, each in took.items()}
    lines[FAST]["of FastStream's"] = ratios(took[FAST], took[FASTSTREAM])
    note = f"{count:,} messages a round, one handler that does nothing, no middlewares, no log, no database."
    return [Result("The fast path", lines, note)]


SCENARIO: Final = Scenario(
    "fast-path", "a message through the fast path and through FastStream, without a database", run
)
