"""Rows for a relay: numbers, in ten keys."""

from collections import defaultdict
from collections.abc import Iterable

from faststream_outbox import OutboxBroker
from tests.backends import PostgresBackend

KEYS = 10


async def publish(outbox: PostgresBackend, numbers: Iterable[int], *, queue: str = "orders", **headers: str) -> None:
    numbers = list(numbers)
    broker = OutboxBroker(outbox_table=outbox.outbox_table)
    keys = [f"k{number % KEYS}" for number in numbers]
    async with outbox.transaction() as session:
        await broker.publish_batch(*numbers, queue=queue, session=session, keys=keys, headers=headers)


async def publish_without_keys(outbox: PostgresBackend, numbers: Iterable[int], *, queue: str = "orders") -> None:
    broker = OutboxBroker(outbox_table=outbox.outbox_table)
    async with outbox.transaction() as session:
        await broker.publish_batch(*numbers, queue=queue, session=session)


def in_order(numbers: Iterable[int]) -> bool:
    """Return whether the numbers of each key came in their order, and none twice."""
    keys = defaultdict[int, list[int]](list)
    for number in numbers:
        keys[number % KEYS].append(number)
    return all(each == sorted(set(each)) for each in keys.values())
