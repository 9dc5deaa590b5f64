"""What a process holds in memory is bounded in bytes: rows, their headers, and the answers of handlers."""

from collections.abc import Iterable
from typing import Any

import pytest

from faststream_outbox import NoRetry, OutboxBroker
from faststream_outbox.engine.claim import ledger_claims, prefetch
from faststream_outbox.engine.dispatch import dispatcher
from faststream_outbox.engine.settle import settle_buffer
from faststream_outbox.storage import Settled, Settlement, checks
from faststream_outbox.storage.postgres.lane import PostgresLane
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty

# The bounds, a hundredth of the real ones, and what exceeds them.
MOST_BYTES = 640_000
MAX_BYTES = 80_000
ROWS = 80
ANSWER = 20_000
ROW = 20_000


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prefetch, dispatcher):
        monkeypatch.setattr(module, "MOST_BYTES", MOST_BYTES)
    for module in (ledger_claims, dispatcher, settle_buffer):
        monkeypatch.setattr(module, "MAX_BYTES", MAX_BYTES)


class Watch:
    """The most bytes that a subscriber had in hand, and that one settle wrote."""

    def __init__(self, broker: OutboxBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker = broker
        self.in_hand = 0
        self.written = 0
        settle = PostgresLane.settle

        async def watched(lane: PostgresLane, settlements: Iterable[Settlement]) -> Settled:
            settlements = list(settlements)
            self.written = max(self.written, sum(each.output_bytes for each in settlements))
            return await settle(lane, settlements)

        monkeypatch.setattr(PostgresLane, "settle", watched)

    def look(self) -> None:
        ledger: Any = self._broker._outbox_subscribers[0]._pipeline._ledger  # type: ignore[union-attr] # running
        self.in_hand = max(self.in_hand, ledger.bytes + ledger.output_bytes)


async def until_answered(postgres: PostgresBackend, count: int) -> None:
    counted = "SELECT count(*) FILTER (WHERE queue = 'q'), count(*) FILTER (WHERE queue = 'answers') FROM outbox"
    await until(lambda: postgres.run(counted), lambda rows: rows[0] == (0, count))


@pytest.mark.parametrize("kind", ["one by one", "workers", "keys", "one key", "batches"])
async def test_answers_larger_than_their_messages_are_written_before_more_are_made(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    workers = 4 if kind in ("workers", "keys") else 1
    broker = broker_on(postgres)
    watch = Watch(broker, monkeypatch)

    if kind == "batches":

        @broker.publisher("answers")
        @broker.subscriber("q", batch=True, max_records=2)
        async def answer_all(_: list[int]) -> bytes:
            watch.look()
            return b"x" * ANSWER

    else:

        @broker.publisher("answers")
        @broker.subscriber("q", max_workers=workers)
        async def answer(_: int) -> bytes:
            watch.look()
            return b"x" * ANSWER

    keys = {"keys": [f"k{n % 8}" for n in range(ROWS)], "one key": ["k"] * ROWS}.get(kind)
    async with postgres.transaction() as session:
        await broker.publish_batch(*range(ROWS), queue="q", session=session, keys=keys)
    async with started(broker):
        await until_answered(postgres, ROWS // 2 if kind == "batches" else ROWS)
        ledger: Any = broker._outbox_subscribers[0]._pipeline._ledger  # type: ignore[union-attr] # running
        await until(lambda: (len(ledger), ledger.bytes, ledger.output_bytes) == (0, 0, 0))
    assert watch.in_hand < MOST_BYTES + (workers + 1) * ANSWER
    # Of workers that end together, each run of a key may be as large as a statement.
    assert ANSWER <= watch.written < (workers if kind == "keys" else 1) * MAX_BYTES + 2 * ANSWER


async def test_answers_that_fit_into_no_statement_fail_their_call(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_PAYLOADS", 10_000)
    broker = broker_on(postgres)

    @broker.publisher("answers")
    @broker.publisher("more")
    @broker.subscriber("q", retry_strategy=NoRetry())
    async def answer(number: int) -> bytes:
        return b"x" * (number * 6000)

    async with started(broker):
        await publish(broker, postgres, 0, 1)
        await until(postgres.dead_letters)
    [dead] = await postgres.dead_letters()
    assert dead.payload == b"1"
    assert "The answers of one call have 12,000 bytes" in (dead.last_exception or "")
    assert sorted(row.queue for row in await postgres.rows()) == ["answers", "more"]


@pytest.mark.parametrize("key", ["NULL", "'k' || n % 50", "'k'"], ids=["no keys", "keys", "one key"])
async def test_headers_are_counted_with_their_payload(postgres: PostgresBackend, key: str) -> None:
    """Postgres stores headers compressed: what a row takes in memory may be many times that."""
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, headers) SELECT 'q', "
        f"{key}, convert_to(n::text, 'UTF8'), jsonb_build_object('content-type', 'application/json', 'text', "
        "(SELECT string_agg(md5(n::text || m::text), ' ') FROM generate_series(1, 100) m)"
        f" || repeat('many ', {ROW // 5})) FROM generate_series(1, 200) n"
    )
    broker, most, seen = broker_on(postgres, Records()), 0, 0

    @broker.subscriber("q")
    async def handle(_: int) -> None:
        nonlocal most, seen
        ledger: Any = broker._outbox_subscribers[0]._pipeline._ledger  # type: ignore[union-attr] # running
        held = [part for row in ledger.all() for part in row.parts]
        assert ledger.bytes == sum(len(row.payload) + len(row.headers_json) for row in held)
        most, seen = max(most, ledger.bytes), seen + 1

    async with started(broker):
        await until(lambda: seen == 200)
        await until_empty(postgres)
    assert ROW < most < MOST_BYTES + MAX_BYTES + ROW
