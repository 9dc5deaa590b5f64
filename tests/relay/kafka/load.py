"""Publishes rows while a fault goes on, and checks by the rules of relay rounds what became of them."""

import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker

from faststream_outbox.relay import Relay, Route
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Endpoint, KafkaEndpoint
from tests.relay.faults.arrivals import arrivals_of
from tests.relay.faults.rules import check_arrivals
from tests.relay.faults.settings import BURNT
from tests.soak.checker import CLOCK_SLACK, FinalState, Left, Violation
from tests.soak.history import Arrived, Committed, Committing, Event, Inserted
from tests.soak.row_histories import assemble

KEYS = ("a", "b", "c", None)

# The class of FastStream's broker, and how it is given an option of the client.
CLIENTS: dict[str, Any] = {"aiokafka": KafkaBroker, "confluent": ConfluentBroker}
both_clients = pytest.mark.parametrize("client", CLIENTS)


class Load:
    """The rows of a test, in the queues of one relay."""

    def __init__(self, postgres: PostgresBackend) -> None:
        self.postgres = postgres
        self.records = Records()
        self.broker = broker_on(postgres, self.records)
        self._events: list[Event] = []
        self._uids: dict[str, set[str]] = {}

    @asynccontextmanager
    async def relayed(self, to: Any, routes: Mapping[str, Route], **options: Any) -> AsyncIterator[Relay]:
        """Relay, and watch which rows an attempt is counted for."""
        for statement in BURNT:
            await self.postgres.run(statement)
        async with Relay(self.broker, to=to, routes=routes, **options) as relay:
            yield relay

    async def publish(
        self, queue: str, count: int = 40, *, keys: Sequence[str | None] = KEYS, **headers: str
    ) -> list[str]:
        """Publish rows with these keys in turn, and return their bodies."""
        uids = self._uids.setdefault(queue, set())
        bodies = [f"{queue}-{number}" for number in range(len(uids), len(uids) + count)]
        uids.update(bodies)
        return await self._insert(queue, bodies, [keys[number % len(keys)] for number in range(count)], headers)

    async def publish_one(self, queue: str, body: str, key: str | None, **headers: str) -> None:
        """Publish one row, which is not among those that have to arrive."""
        async with self.postgres.transaction() as session:
            await self.broker.publish(body.encode(), queue=queue, key=key, headers=headers, session=session)

    async def _insert(self, queue: str, bodies: list[str], keys: list[str | None], headers: Any) -> list[str]:
        began, tx = time.monotonic(), f"tx{len(self._events)}"
        async with self.postgres.transaction() as session:
            ids = await self.broker.publish_batch(
                *(body.encode() for body in bodies), queue=queue, keys=keys, headers=headers, session=session
            )
        now = time.monotonic()
        self._events += [
            Inserted(now, tx, body, row_id, began, 0.0, None, key)
            for body, row_id, key in zip(bodies, ids, keys, strict=True)
        ]
        self._events += [Committing(now, tx), Committed(now, tx)]
        return bodies

    async def waiting(self, queue: str) -> int:
        """Return how many rows of a queue are in the outbox."""
        return int(str(await self.postgres.one("SELECT count(*) FROM outbox WHERE queue = :queue", queue=queue)))

    async def dead(self) -> dict[str, str]:
        """Return the dead letters, each with its reason."""
        return {dead.payload[:40].decode(): str(dead.last_exception) for dead in await self.postgres.dead_letters()}

    async def violations(self, queue: str, endpoint: Endpoint, *, refused: Collection[str] = ()) -> list[Violation]:
        """Check the rows of a queue that are not refused: all arrived, in the order of their keys, and none is dead."""
        uids = self._uids[queue] - set(refused)
        events = [each for each in self._events if not isinstance(each, Inserted) or each.uid in uids]
        number = 0
        async for item in arrivals_of(endpoint).read():
            number += 1
            key, sequence = item.headers.get("outbox_key"), item.headers.get("outbox_sequence")
            events.append(
                Arrived(
                    time.monotonic(),
                    number,
                    0.0,
                    item.partition,
                    item.body.decode(),
                    item.headers["outbox_id"],
                    key,
                    None if sequence is None else int(sequence),
                )
            )
        burnt = [bytes(payload).decode() for (payload,) in await self.postgres.run("SELECT payload FROM burnt")]  # type: ignore[call-overload]  # bytea
        final = FinalState(
            [Left(row.payload.decode(), row.id, 0) for row in await self.postgres.rows() if row.queue == queue],
            [Left(body, 0, 0) for body in await self.dead() if body in uids],
            [body for body in burnt if body in uids],
        )
        return check_arrivals(assemble(events), final, CLOCK_SLACK, once=False)


def topic_on(server: Any, name: str) -> KafkaEndpoint:
    """Return the endpoint of a topic that a test has created."""
    endpoint = KafkaEndpoint(server)
    endpoint.name = name
    return endpoint
